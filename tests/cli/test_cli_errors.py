"""Whatever is typed wrongly, or whatever a disk refuses: one sentence that names the fix, and nothing lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from coterie.cli import main
from forks import BESIDE, ENVIRONMENT
from helpers_cli import (
    DATA,
    SMALL,
    Cli,
    assert_same_run,
    contents,
    rows,
    saved_rounds,
    tmpfs,
)


@pytest.fixture(scope="module")
def whole(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, never to be changed."""
    cwd = tmp_path_factory.mktemp("whole")
    cli.succeed("run", "fedavg", *SMALL, "--out", "a", cwd=cwd)
    return cwd / "a"


@pytest.fixture(scope="module")
def killed(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, killed in its last round: two checkpoints count."""
    cwd = tmp_path_factory.mktemp("killed")
    done = cli.run("run", "fedavg", *SMALL, "--out", "a", cwd=cwd, at="rename a/checkpoint/round-000003.json")
    assert done.status == -signal.SIGKILL
    assert saved_rounds(cwd / "a") == [1, 2]
    return cwd / "a"


@pytest.fixture
def begun(killed: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(killed, tmp_path / "a"))


# A request that cannot be carried out


WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "method": ("run fedavgg", ("method", "'fedavgg'", "did you mean fedavg")),
    "method-nothing-near": ("run quux", ("method", "'quux'", "dfedalt", "dfedavg", "fedavg", "fedper", "local")),
    "method-compared": ("compare fedavg dfedatl", ("method", "'dfedatl'", "did you mean dfedalt")),
    "method-twice": ("compare fedavg fedavg", ("twice", "once")),
    "format": ("compare fedavg local --format pdf", ("format", "'pdf'", "latex, markdown, table")),
    "format-nearly": ("compare fedavg local --format markdwon", ("'markdwon'", "did you mean markdown")),
    "target-share": ("compare fedavg local --target 0", ("--target 0", "above 0", "100")),
    "target-beyond": ("compare fedavg local --target 101", ("--target 101", "above 0", "100")),
    "target-nan": ("compare fedavg local --target nan", ("--target nan", "above 0", "100")),
    "data": ("run fedavg --data digitz", ("'digitz'", "did you mean digits")),
    "data-option": ("run fedavg --data synthetic:sice=3", ("'sice'", "size", "classes", "noise")),
    "data-value": ("run fedavg --data synthetic:size=many", ("size", "'many'", "integer")),
    "topology": ("run dfedavg --topology rong", ("topology", "'rong'", "did you mean ring")),
    "topology-set": ("run dfedavg --set topology=rong", ("topology", "'rong'", "did you mean ring")),
    "fresh-graph-of-one-step": (
        "run dfedsam-mgs --set fresh_graph=true --set gossip_steps=1",
        ("fresh_graph", "raise gossip_steps"),
    ),
    "init-of-a-server": ("run fedavg --init per-client", ("init=per-client", "fedavg", "leave init out")),
    "init-of-servers": ("compare fedavg fedsam --init per-client", ("fedavg, fedsam", "leave --init out")),
    "init-unknown": ("run dfedavg --init own", ("init='own'", "common", "per-client")),
    "silence-of-a-server": ("run fedavg --drop-messages 0.2", ("fedavg", "no topology", "leave --drop-messages out")),
    "offline-of-a-server": ("run fedavg --offline 0.2", ("offline=0.2", "fedavg", "participation")),
    "offline-of-servers": ("compare fedavg fedsam --offline 0.2", ("fedavg, fedsam", "participation")),
    "silence-of-servers": (
        "compare fedlmt fedavg --drop-messages 0.2",
        ("fedlmt, fedavg", "participation", "--drop-messages"),
    ),
    "silence-is-a-probability": ("run dfedavg --drop-messages 1.2", ("drop_messages=1.2", "between 0 and 1")),
    "bits": ("run dfedavg --set quantize=1", ("quantize=1", "between 2 and 16")),
    "a-width-above-one": ("run heterofl --capacities 1-1.5", ("rate=1.5", "at most 1")),
    "a-rank-of-zero": ("run fedhm --capacities 0-1", ("rank_ratio=0.0", "above 0")),
    "more-stages-than-there-are": ("run depthfl --capacities 4-1", ("4 stages", "has 3")),
    "groups-of-a-narrow-layer": (
        "run heterofl --model resnet8-gn --capacities 1-0.25",
        ("groups=8", "4 channels", "choose groups=4"),
    ),
    "capacities-for-others": ("run heterofl --capacities b4x3-b2x3", ("6 clients", "there are 20", "add up")),
    "capacities-for-longer": ("run heterofl --capacities b2@30-b4 --rounds 20", ("no round of 20", "more rounds")),
    "capacities-of-some-rounds": ("run heterofl --capacities b2@3-b4@4 --rounds 20", ("7 rounds", "there are 20")),
    "capacities-of-equals": ("run fedavg --capacities b4", ("fedavg has no capacities", "leave --capacities out")),
    "no-stages": ("run depthfl --model small-cnn", ("not built in stages", "resnet8-gn")),
    "a-shape": ("capacity --shape 3x32", ("--shape 3x32", "3,32,32")),
    "a-measure": ("run fedavg --record singular-values", ("low rank", "fedlmt")),
    "topology-of-a-server": ("run fedavg --topology ring", ("fedavg", "no topology", "leave --topology out")),
    "partition": ("run fedavg --partition dirichlett:1", ("partition", "'dirichlett'", "did you mean dirichlet")),
    "model": ("run fedavg --model cnnn", ("model", "'cnnn'", "did you mean cnn")),
    "model-option": ("run fedavg --model mlp:depth=3", ("mlp", "depth", "width")),
    "model-plain-value": ("run fedavg --model mlp:128", ("mlp", "128", "width")),
    "model-of-nothing": ("run fedavg --model mlp:width=0", ("width=0", "at least 1")),
    "engine": ("run fedavg --engine vectorised", ("engine", "'vectorised'", "did you mean vectorized")),
    "engine-chunk": ("run fedavg --engine vectorized:0", ("chunk=0", "at least 1")),
    "engine-without-chunk": ("run fedavg --engine serial:3", ("serial", "3")),
    "device": ("run fedavg --device tpu", ("device", "'tpu'", "auto", "cpu", "cuda")),
    "device-of-another-machine": ("run fedavg --device hpu", ("hpu", "cpu")),
    "device-without-values": ("run fedavg --device meta", ("meta", "cpu")),
    "set-unknown": ("run fedavg --set lrr=1", ("'lrr'", "fedavg", "did you mean lr")),
    "set-ill-typed": ("run fedavg --set lr=abc", ("lr='abc'", "fedavg", "a number")),
    "set-fraction": ("run fedavg --set epochs=1.5", ("epochs='1.5'", "an integer")),
    "set-no-switch": ("run fedavg --set keep_optimizer_state=1", ("keep_optimizer_state='1'", "true or false")),
    "set-without-value": ("run fedavg --set lr", ("--set lr", "--set KEY=VALUE")),
    "set-without-key": ("run fedavg --set =3", ("''", "lr,")),
    "set-for-another-method": ("compare fedavg local --set fedper.lr=1", ("fedper.lr=1", "not among", "fedavg, local")),
    "set-of-another-method": ("compare fedavg dfedavg --set fedavg.topology=ring", ("'topology'", "fedavg has", "lr,")),
    "lr-negative": ("run fedavg --set lr=-1", ("lr=-1", "at least 0")),
    "lr-gamma-alone": ("run fedavg --set lr_gamma=0.1", ("lr_gamma", "lr_milestones")),
    "lr-milestones-beyond": ("run fedavg --set lr_milestones=0.5,1.5", ("lr_milestones=(0.5, 1.5)", "(0.5, 0.75)")),
    "lr-milestones-in-disorder": ("run fedavg --set lr_milestones=0.75,0.5", ("ascending",)),
    "lr-milestones-no-numbers": ("run fedavg --set lr_milestones=half", ("'half'", "numbers with commas")),
    "lr-two-schedules": ("run fedavg --set lr_milestones=0.5 --set lr_min=0.1", ("lr_min", "lr_milestones", "leave")),
    "lr-infinite": ("run fedavg --set lr=inf", ("lr=inf",)),
    "lr-nan": ("run fedavg --set lr=nan", ("lr=nan",)),
    "clip-infinite": ("run fedavg --set clip=inf", ("clip=inf",)),
    "outer-lr-infinite": ("run fedavg --set outer_lr=inf", ("outer_lr=inf",)),
    "momentum-too-large": ("run fedavg --set momentum=2", ("momentum=2", "between 0 and 1")),
    "batch-size": ("run fedavg --set batch_size=0", ("batch_size=0", "at least 1")),
    "weighting": ("run fedavg --set weighting=age", ("weighting='age'", "size", "uniform")),
    "clients-without-samples": (f"run fedavg {' '.join(DATA)} --clients 500", ("clients=500", "300 samples", "to 300")),
    "dirichlet-zero": ("run fedavg --partition dirichlet:0", ("alpha=0", "above 0")),
    "dirichlet-negative": ("run fedavg --partition dirichlet:-1", ("alpha=-1", "above 0")),
    "dirichlet-without-alpha": ("run fedavg --partition dirichlet", ("alpha", "dirichlet:")),
    "neighbors": ("run dfedavg --topology random:10 --clients 8", ("random:10", "random:7 or fewer", "11 clients")),
    "push-without-weights": ("run dfedavg --topology random-push:3", ("random-push:3", "column", "random-pull")),
    "personal-nothing": (
        "run fedper --model mlp --set personal=fc*",
        ("'fc*'", "1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias"),
    ),
    "participation-count": ("run fedavg --set participation=30", ("participation=30", "30 of 20 clients", "1.0")),
    "participation-share": ("run fedavg --set participation=1.5", ("participation=1.5", "20 clients", "1.0")),
    "participation-none": ("run fedper --set participation=0", ("participation=0", "20 clients")),
    "resume-what": ("run fedavg --resume", ("--resume", "--out FOLDER", "coterie run FOLDER --resume")),
    "resume-which-comparison": ("compare fedavg local --resume", ("--resume", "--out FOLDER")),
    "config-missing": ("run nowhere/config.json", ("nowhere/config.json", "No such file", "run folder")),
    "out-below-a-device": (f"run fedavg {' '.join(DATA)} --out /dev/null/a", ("/dev/null/a", "Not a directory")),
    # Found before the first method is trained, not hours later when its turn comes.
    "compared-neighbors": ("compare fedavg dfedavg --topology random:10 --clients 8", ("random:7 or fewer",)),
    "compared-personal": ("compare fedavg fedper --set fedper.personal=fc*", ("'fc*'", "0.weight")),
    "compared-participation": ("compare local fedavg --set participation=30", ("participation=30",)),
}  # fmt: skip


@pytest.mark.parametrize(("typed", "names"), WRONG.values(), ids=WRONG)
def test_a_wrong_request_names_the_fix(cli: Cli, tmp_path: Path, typed: str, names: tuple[str, ...]) -> None:
    cli.refuse(*typed.split(), cwd=tmp_path, names=names)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("run fedavg --clients 0", "--clients"),
        ("run fedavg --rounds many", "--rounds"),
        ("run fedavg --evaluate-every 0", "--evaluate-every"),
        ("compare local --seeds 0", "--seeds"),
        ("run fedavg --color red", "--color"),
        ("run", "METHOD"),
    ],
)
def test_a_wrong_option_shows_the_usage(cli: Cli, tmp_path: Path, typed: str, name: str) -> None:
    done = cli.run(*typed.split(), cwd=tmp_path)
    assert (done.status, contents(tmp_path)) == (2, {})
    assert name in done.err
    assert "Usage:" in done.err
    assert "Traceback" not in done.err


def test_the_installed_script_ends_the_same_way(tmp_path: Path) -> None:
    done = subprocess.run(
        [BESIDE / "coterie", "run", "fedavgg"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("coterie: unknown method 'fedavgg': did you mean fedavg")
    assert done.stderr.count("\n") == 1


# A run that diverges

# The learning rate is fine in the first round and 1e30 times as large in the second.
DIVERGING = (*SMALL, "--set", "lr_decay=1e30", "--set", "clip=none")


@pytest.mark.parametrize("method", ["fedavg", "dfedavg"])
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_divergence_keeps_the_rounds_before(cli: Cli, tmp_path: Path, method: str, engine: str) -> None:
    names = ("client 0", "round 2", "lower lr", "clip")
    first = cli.refuse(
        "run", method, *DIVERGING, "--engine", engine, "--out", "a", cwd=tmp_path, names=(*names, "not finite")
    )
    kept = contents(tmp_path)
    assert saved_rounds(tmp_path / "a") == [1]
    assert [row["round"] for row in rows(tmp_path / "a")] == [1]
    again = cli.refuse("run", "a", "--resume", cwd=tmp_path, names=names)
    assert again.sentences == first.sentences
    assert contents(tmp_path) == kept


def test_divergence_in_the_first_round(cli: Cli, tmp_path: Path) -> None:
    typed = ("run", "fedavg", *SMALL, "--set", "lr=1e30", "--set", "clip=none", "--out", "a")
    cli.refuse(*typed, cwd=tmp_path, names=("client 0", "round 1", "lower lr", "clip"))
    assert saved_rounds(tmp_path / "a") == []
    cli.refuse("run", "a", "--resume", cwd=tmp_path, names=("client 0", "round 1"))


def test_a_step_to_infinity_is_noticed_in_its_own_round(cli: Cli, tmp_path: Path) -> None:
    """The loss of a single step is that of the model before it, which was still finite."""
    typed = ("run", "local", "--data", "synthetic:noise=1000", "--set", "lr=1e37", "--set", "clip=none")
    typed = (*typed, "--set", "steps=1", "--out", "a")
    cli.refuse(*typed, cwd=tmp_path, names=("model of client", "round 1", "lower lr"))
    assert saved_rounds(tmp_path / "a") == []


# Folders in the way


def test_an_existing_run_is_not_overwritten(cli: Cli, whole: Path) -> None:
    before = contents(whole.parent)
    for method in ("fedavg", "local"):
        cli.refuse("run", method, *SMALL, "--out", "a", cwd=whole.parent, names=("a already", "--out", "--resume"))
    cli.refuse("run", "a/config.json", "--out", "a", cwd=whole.parent, names=("a already", "--out", "--resume"))
    cli.refuse("compare", "local", *SMALL, "--out", "a", cwd=whole.parent, names=("a already", "--out", "--resume"))
    assert contents(whole.parent) == before


@pytest.mark.parametrize("options", [(), ("--resume",)], ids=["new", "resume"])
@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("out", ["notes.txt", "notes.txt/a"])
def test_out_may_not_be_a_file(cli: Cli, tmp_path: Path, command: str, out: str, options: tuple[str, ...]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    cli.refuse(command, "fedavg", *SMALL, "--out", out, *options, cwd=tmp_path, names=(out, "choose another --out"))
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_somebody_elses_folder_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "draft.tex").write_text("mine")
    before = contents(tmp_path)
    for more in ((), ("--resume",)):
        cli.refuse("run", "fedavg", *SMALL, "--out", "thesis", *more, cwd=tmp_path, names=("thesis", "another --out"))
    cli.refuse("run", "thesis", "--resume", cwd=tmp_path, names=("thesis/config.json", "No such file", "run folder"))
    assert contents(tmp_path) == before


# A saved configuration


@pytest.mark.parametrize(
    ("changed", "key", "there", "here"),
    [
        (["--set", "lr=0.5"], "settings.lr", "0.02", "0.5"),
        (["--rounds", "4"], "rounds", "3", "4"),
        (["--clients", "6"], "data.clients", "5", "6"),
        (["--seed", "1"], "seed", "0", "1"),
        (["--partition", "iid"], "data.partition", "'dirichlet:0.3'", "'iid'"),
        (["--model", "logreg"], "model.name", "'mlp'", "'logreg'"),
        (["--evaluate-every", "2"], "evaluate_every", "1", "2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_run_is_not_resumed_as_another(
    cli: Cli, whole: Path, changed: list[str], key: str, there: str, here: str
) -> None:
    before = contents(whole.parent)
    difference = f"{key}: {there} there, {here} here"
    cli.refuse(
        *("run", "fedavg", *SMALL, *changed, "--out", "a", "--resume"),
        cwd=whole.parent,
        names=("cannot resume a", difference, "same options", "another --out"),
    )
    assert contents(whole.parent) == before


def test_a_run_is_not_resumed_by_another_method(cli: Cli, whole: Path) -> None:
    before = contents(whole.parent)
    difference = "method: 'fedavg' there, 'local' here"
    cli.refuse("run", "local", *SMALL, "--out", "a", "--resume", cwd=whole.parent, names=("cannot resume", difference))
    assert contents(whole.parent) == before


@pytest.mark.parametrize(
    "options",
    [
        ["--data", "digits"],
        ["--model", "mlp"],
        ["--partition", "iid"],
        ["--clients", "3"],
        ["--loss", "mse"],
        ["--validation", "0.2"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("path", ["a", "a/config.json"])
def test_a_saved_configuration_keeps_its_data_and_model(cli: Cli, whole: Path, path: str, options: list[str]) -> None:
    before = contents(whole.parent)
    names = (options[0], "saved configuration", "fedavg", "leave it out")
    cli.refuse("run", path, *options, "--out", "b", cwd=whole.parent, names=names)
    assert contents(whole.parent) == before


NO_CONFIG: dict[str, str] = {
    "empty": "",
    "cut-off": '{"method": "fedavg", "settin',
    "prose": "method = fedavg",
    "list": "[1, 2]",
    "number": "3",
    "not-text": "\udcff\udcfe{}",
}


@pytest.mark.parametrize("text", NO_CONFIG.values(), ids=NO_CONFIG)
def test_a_config_that_is_none(cli: Cli, begun: Path, text: str) -> None:
    (begun / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    before = contents(begun.parent)
    cli.refuse("run", "a", "--resume", cwd=begun.parent, names=("a/config.json",))
    cli.refuse("run", "a/config.json", "--out", "b", cwd=begun.parent, names=("a/config.json",))
    cli.refuse("run", "fedavg", *SMALL, "--out", "a", "--resume", cwd=begun.parent, names=("a/config.json",))
    assert contents(begun.parent) == before


NEEDED = ("method", "settings", "data", "model", "loss", "rounds", "seed", "evaluate_every", "device", "engine")


@pytest.mark.parametrize("key", NEEDED)
def test_a_config_that_is_not_complete(cli: Cli, whole: Path, tmp_path: Path, key: str) -> None:
    config = json.loads((whole / "config.json").read_text())
    del config[key]
    (tmp_path / "mine.json").write_text(json.dumps(config))
    before = contents(tmp_path)
    cli.refuse("run", "mine.json", "--out", "b", cwd=tmp_path, names=("mine.json", f"{key} is missing"))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", "fedavgg"),
        ("method", 3),
        ("settings", []),
        ("settings", {"lr": "abc"}),
        ("settings", {"lr": [1]}),
        ("settings", {"lrr": 1}),
        ("settings", {"participation": 30}),
        ("data", []),
        ("data", {"source": "digits", "clients": "many"}),
        ("data", {"source": "digits", "clients": 5, "partition": 3}),
        ("data", {"source": "digits", "color": 5}),
        ("model", {"name": "mlp"}),
        ("model", {"name": "mlp", "classes": 4, "input_shape": 20}),
        ("model", {"name": "logreg", "classes": 4, "input_shape": [7]}),
        ("model", {"name": "logreg", "classes": 3, "input_shape": [20]}),
        ("rounds", "many"),
        ("rounds", -1),
        ("rounds", 1.5),
        ("seed", "lucky"),
        ("evaluate_every", 0),
        ("evaluate_every", "often"),
        ("device", 7),
        ("engine", None),
    ],
    ids=lambda value: value if value in NEEDED else json.dumps(value),
)
def test_a_config_that_was_edited_wrongly(cli: Cli, whole: Path, tmp_path: Path, key: str, value: object) -> None:
    config = json.loads((whole / "config.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps(config | {key: value}))
    before = contents(tmp_path)
    cli.refuse("run", "mine.json", "--out", "b", cwd=tmp_path, names=())
    assert contents(tmp_path) == before


# What was saved is damaged


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """One bit, in the middle: among the numbers of a checkpoint."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other_round(path: Path) -> None:
    """The one bit that makes a 2 a 3 in the small file beside the numbers."""
    marker = path.with_suffix(".json")
    marker.write_text(marker.read_text().replace('"round": 2', '"round": 3'))
    assert '"round": 3' in marker.read_text()


def no_marker(path: Path) -> None:
    path.with_suffix(".json").write_text("3")


DAMAGE = {"cut": cut, "flipped-bit": flip, "emptied": lambda path: os.truncate(path, 0), "gone": Path.unlink}
MARKER_DAMAGE = {
    "marker-cut": lambda path: cut(path.with_suffix(".json")),
    "marker-of-another-round": other_round,
    "marker-of-nothing": no_marker,
}


@pytest.mark.parametrize("damage", (DAMAGE | MARKER_DAMAGE).values(), ids=DAMAGE | MARKER_DAMAGE)
def test_a_damaged_checkpoint_costs_one_round(
    cli: Cli, whole: Path, begun: Path, damage: Callable[[Path], object]
) -> None:
    damage(begun / "checkpoint" / "round-000002.safetensors")
    done = cli.succeed("run", "a", "--resume", cwd=begun.parent)
    assert "a/checkpoint/round-000002." in done.err
    assert "going back to the checkpoint before it" in done.err
    assert done.err.count("is damaged, because") == done.err.count("is damaged") == 1
    assert "resuming a after round 1" in done.err
    assert_same_run(begun, whole)


def test_a_run_whose_checkpoints_are_all_damaged(cli: Cli, begun: Path) -> None:
    for path in (begun / "checkpoint").glob("*.safetensors"):
        flip(path)
    before = contents(begun.parent)
    names = ("every checkpoint in a/checkpoint is damaged", "another --out")
    cli.refuse("run", "a", "--resume", cwd=begun.parent, names=names)
    cli.refuse("run", "fedavg", *SMALL, "--out", "a", "--resume", cwd=begun.parent, names=names)
    assert contents(begun.parent) == before


METRICS: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda content: b"",
    "first-row-lost": lambda content: content.partition(b"\n")[2],
    "cut": lambda content: content[: len(content) // 4],
    "not-text": lambda content: b"\xff" + content[1:],
    "no-rows": lambda content: b"1\n2\n3\n",
    "other-rows": lambda content: content.replace(b'"round"', b'"rounf"'),
}


@pytest.mark.parametrize("change", METRICS.values(), ids=METRICS)
def test_damaged_metrics_are_not_continued(cli: Cli, begun: Path, change: Callable[[bytes], bytes]) -> None:
    path = begun / "metrics.jsonl"
    path.write_bytes(change(path.read_bytes()))
    before = contents(begun.parent)
    names = ("a/metrics.jsonl", "rounds 1 to 2", "another --out")
    cli.refuse("run", "a", "--resume", cwd=begun.parent, names=names)
    assert contents(begun.parent) == before


# What the disk refuses


def test_a_read_only_disk(cli: Cli, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "ro"):
        for command in ("run", "compare"):
            cli.refuse(
                *(command, "fedavg", *SMALL, "--out", "disk/a"),
                cwd=tmp_path,
                names=("cannot write disk/a", "Read-only file system", "another --out"),
            )
        assert contents(tmp_path / "disk") == {}


def test_a_disk_that_becomes_read_only(cli: Cli, whole: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "rw"):
        cli.run("run", "fedavg", *SMALL, "--out", "disk/a", cwd=tmp_path, at="rename disk/a/checkpoint/round-000002*")
        before = contents(tmp_path)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        cli.refuse("run", "disk/a", "--resume", cwd=tmp_path, names=("cannot write disk/a", "Read-only"))
        assert contents(tmp_path) == before
        subprocess.run(["mount", "-o", "remount,rw", tmp_path / "disk"], check=True)
        cli.succeed("run", "disk/a", "--resume", cwd=tmp_path)
        assert_same_run(tmp_path / "disk" / "a", whole)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_of_somebody_else(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    typed = ("run", "fedavg", *SMALL, "--out", "theirs/a")
    cli.refuse(*typed, cwd=tmp_path, names=("cannot write theirs/a", "Permission denied", "another --out"))
    assert contents(tmp_path) == {"theirs": None}


def test_a_full_disk(cli: Cli, whole: Path, tmp_path: Path) -> None:
    """Enough for two checkpoints, and then for nothing."""
    with tmpfs(tmp_path / "disk", "size=76k"):
        typed = ("run", "fedavg", *SMALL, "--out", "disk/a")
        cli.refuse(*typed, cwd=tmp_path, names=("cannot write disk/a/", "No space left on device", "free the disk"))
        assert saved_rounds(tmp_path / "disk" / "a") == [1, 2]
        assert not [name for name in contents(tmp_path) if "tmp" in name]
        kept = contents(tmp_path / "disk" / "a" / "checkpoint")
        cli.refuse("run", "disk/a", "--resume", cwd=tmp_path, names=("No space left on device",))
        assert contents(tmp_path / "disk" / "a" / "checkpoint") == kept
        subprocess.run(["mount", "-o", "remount,size=2m", tmp_path / "disk"], check=True)
        cli.succeed("run", "disk/a", "--resume", cwd=tmp_path)
        assert_same_run(tmp_path / "disk" / "a", whole)


def test_a_disk_full_from_the_start(cli: Cli, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=64k"):
        (tmp_path / "disk" / "other").write_bytes(bytes(64 * 1024))
        typed = ("run", "fedavg", *SMALL, "--out", "disk/a")
        cli.refuse(*typed, cwd=tmp_path, names=("cannot write disk/a", "No space left on device", "free the disk"))
        (tmp_path / "disk" / "other").unlink()
        subprocess.run(["mount", "-o", "remount,size=2m", tmp_path / "disk"], check=True)
        cli.succeed(*typed, "--resume", cwd=tmp_path)


@pytest.mark.parametrize("larger", [500, 20_000], ids=["config", "checkpoint"])
def test_a_limit_on_the_size_of_files(cli: Cli, whole: Path, tmp_path: Path, larger: int) -> None:
    """Whatever could not be written, the same command with --resume finishes once it can be."""
    typed = ("run", "fedavg", *SMALL, "--out", "a")
    cli.refuse(*typed, cwd=tmp_path, limit=larger, names=("cannot write a/", "File too large", "--out"))
    assert not [name for name in contents(tmp_path) if "tmp" in name]
    cli.succeed(*typed, "--resume", cwd=tmp_path)
    assert_same_run(tmp_path / "a", whole)


def test_a_limit_met_by_a_resumed_run(cli: Cli, whole: Path, begun: Path) -> None:
    before = contents(begun / "checkpoint")
    done = cli.refuse("run", "a", "--resume", cwd=begun.parent, limit=20_000, names=("File too large", "--out"))
    assert "a/checkpoint/round-000003.safetensors" in done.sentences[0]
    assert contents(begun / "checkpoint") == before
    cli.succeed("run", "a", "--resume", cwd=begun.parent)
    assert_same_run(begun, whole)


def test_metrics_that_cannot_grow(cli: Cli, tmp_path: Path) -> None:
    """With few parameters the rows outgrow the checkpoints: half a row is on the disk when the write fails."""
    typed = ("run", "fedavg", "--data", "synthetic:size=400,classes=2,features=1", "--model", "logreg")
    small = (*typed, "--clients", "5", "--rounds", "3")
    cli.succeed(*small, "--out", "whole", cwd=tmp_path)
    names = ("cannot write a/metrics.jsonl", "File too large", "--out")
    cli.refuse(*small, "--out", "a", cwd=tmp_path, limit=2300, names=names)
    assert saved_rounds(tmp_path / "a") == [1, 2]
    cli.succeed("run", "a", "--resume", cwd=tmp_path)
    assert_same_run(tmp_path / "a", tmp_path / "whole")


def test_clients_that_cannot_be_written(cli: Cli, whole: Path, begun: Path) -> None:
    """The training is done: only the last files are missing, and no summary claims that they are there."""
    cli.run("run", "a", "--resume", cwd=begun.parent, at="rename a/clients/common*")
    before = contents(begun)
    assert "summary.json" not in before
    cli.refuse("run", "a", "--resume", cwd=begun.parent, limit=20_000, names=("a/clients/", "File too large"))
    after, before = (
        {k: v for k, v in files.items() if k != "metrics.jsonl" and not k.endswith(".tmp")}
        for files in (contents(begun), before)
    )
    assert after == before
    cli.succeed("run", "a", "--resume", cwd=begun.parent)
    assert_same_run(begun, whole)


def test_ctrl_c_while_the_commands_are_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(ModuleType):
        """What an import finds that somebody interrupts."""

        def __getattr__(self, name: str) -> NoReturn:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "coterie.cli.app", Interrupted("app"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
