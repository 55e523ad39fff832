"""``coterie peer alone``: each member sees whether its federation helps it, with tables, images and arrays alike."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("cryptography", reason="peers need coterie[peers]")

from coterie.core.files import write_json
from coterie.measure.compare import Comparison
from coterie.net.operations import alone
from coterie.net.setup.config import PeerConfig, load
from coterie.net.setup.own_data import own_data
from coterie.net.setup.shared_columns import columns_of, merged
from coterie.net.setup.start import participant
from coterie.report.collect import collect
from coterie.report.groups import setups
from coterie.training.config import describe
from coterie.training.results import run_after
from helpers_cli import Cli
from laws import build
from local_peers import run_together
from pages import Page
from toys import experiment, net, ragged

MEMBERS = ("alpha", "beta", "gamma")
ROUNDS = 3
DATA = {"csv": "csv:{}.csv,target=ill,missing=mean", "images": "images-{}", "npz": "npz:{}.npz"}
SHARED = {
    "csv": 'model = "logreg"\ncolumns = "columns.json"\nclasses = 2\n',
    "images": 'model = "small-cnn"\nclasses = ["dark", "light"]\nmean = [0.4]\nstd = [0.3]\n',
    "npz": 'model = "mlp:width=8"\nclasses = 3\n',
}
OWN = {"npz": 'validation = 0.2\nselect = "best-validation"\n'}


def write_data(folder: Path, kind: str, name: str) -> None:
    """A member's own samples; one kind of text is in the table of one member alone."""
    draw = np.random.default_rng(MEMBERS.index(name))
    if kind == "npz":
        y = np.arange(45) % 3
        x = (draw.normal(size=(45, 4)) + np.eye(4)[y]).astype(np.float32)
        np.savez(folder / "npz" / f"{name}.npz", x=x[:30], y=y[:30], test_x=x[30:], test_y=y[30:])
    elif kind == "csv":
        ages, kinds = draw.normal(50, 10, 40), draw.choice(["a", "b", *(["c"] if name == "beta" else [])], 40)
        rows = [f"{'' if i == 3 else f'{age:.1f}'},{k},{int(age > 50)}" for i, (age, k) in enumerate(zip(ages, kinds))]  # noqa: B905
        (folder / "csv" / f"{name}.csv").write_text("\n".join(["age,kind,ill", *rows]) + "\n")
    else:
        for part, label, i in ((p, c, i) for p in ("train", "test") for c in ("dark", "light") for i in range(6)):
            place = folder / "images" / f"images-{name}" / part / label
            place.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 180, (8, 8)) + (60 if label == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")


def write_member(folder: Path, kind: str, name: str) -> PeerConfig:
    places = "".join(f'{other} = "127.0.0.1:{7443 + i}"\n' for i, other in enumerate(MEMBERS))
    path = folder / kind / f"{name}.toml"
    path.write_text(
        f'[federation]\nid = "{kind}"\nmethod = "dfedalt"\nrounds = {ROUNDS}\n{SHARED[kind]}'
        '[federation.settings]\nlr = 0.1\nbatch_size = 8\nepochs = [1, 2]\nlr_min = 0.001\ntopology = "full"\n'
        f"[federation.members]\n{places}"
        f'[peer]\nname = "{name}"\nfolder = "run-{name}"\ndata = "{DATA[kind].format(name)}"\n{OWN.get(kind, "")}'
    )
    return load(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three federations that have finished, each of members with another kind of data."""
    folder = tmp_path_factory.mktemp("alone")
    for kind in DATA:
        (folder / kind).mkdir()
        for name in MEMBERS:
            write_data(folder, kind, name)
    write_json(folder / "csv/columns.json", merged([
        columns_of(f"csv:{folder}/csv/{name}.csv,target=ill,missing=mean", 0) for name in MEMBERS
    ]))  # fmt: skip
    for kind in DATA:
        configs = [write_member(folder, kind, name) for name in MEMBERS]
        run_together([participant(config) for config in configs])
    return folder


@pytest.mark.parametrize("kind", DATA)
def test_one_command_compares_the_same_samples(cli: Cli, folder: Path, kind: str) -> None:
    pytest.importorskip("plotly", reason="a report needs plotly")
    done = cli.succeed("peer", "alone", "--config", "beta.toml", cwd=folder / kind)
    assert re.search(r"^dfedalt\b.*\n(.*\n)*?local\b", done.out, re.MULTILINE), done.out
    assert "not finished" not in done.err
    assert [path.name for path in (folder / kind / "run-beta/clients").iterdir()] == ["client-0000-beta.safetensors"]
    own = own_data(load(folder / kind / "beta.toml"))
    both = [folder / kind / name for name in ("run-beta", "run-beta-alone")]
    configs = [json.loads((path / "config.json").read_text()) for path in both]
    assert configs[0]["fingerprints"] == configs[1]["fingerprints"]
    assert configs[0]["transform"] == configs[1]["transform"]
    assert configs[0].get("columns") == configs[1].get("columns")
    assert [c["seed"] for c in configs] == [0, 0]
    (setup,) = setups(collect(both).records)
    (gains,) = Comparison(setup.methods).gains
    clients = [json.loads((path / "clients.json").read_text()) for path in both]
    (gain,) = gains.each
    kept = round(0.2 * len(own.train[0])) if kind in OWN else 0
    assert (gain.name, gain.samples) == ("beta", len(own.train[0]) - kept)
    apart = 100 * (clients[0]["accuracy"]["after_mix"][0] - clients[1]["accuracy"]["after_mix"][0])
    assert gain.difference == pytest.approx(apart)
    page = Page(both[1] / "report.html")
    assert page.root.one("h1").text.strip() == f"beta of federation {kind}: is dfedalt better than local?"
    assert "s1-gains" in page.charts


def lengthened(folder: Path, kind: str, rounds: int) -> list[PeerConfig]:
    """The members of a federation that has more rounds ahead."""
    for name in MEMBERS:
        toml, run = folder / kind / f"{name}.toml", folder / kind / f"run-{name}"
        toml.write_text(toml.read_text().replace(f"rounds = {ROUNDS}", f"rounds = {rounds}"))
        config = json.loads((run / "config.json").read_text())
        write_json(run / "config.json", {**config, "rounds": rounds})
        for file in ("summary.json", "clients.json"):
            (run / file).unlink()
        shutil.rmtree(run / "clients")
    return [load(folder / kind / f"{name}.toml") for name in MEMBERS]


def rows(folder: Path) -> list[dict[str, float | None]]:
    """What training gives in every round of a run, without its times."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in found]


def test_before_the_end_both_are_compared_after_the_rounds_that_there_are(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    """The rate falls by a cosine over all rounds, which a run alone of fewer rounds would not have."""
    shutil.copytree(folder / "npz", tmp_path / "npz", ignore=shutil.ignore_patterns("*-alone"))
    configs = lengthened(tmp_path, "npz", ROUNDS + 2)
    said = (
        "The federation has not finished: gamma has 3 of 5 rounds with the others, so both are compared after round 3"
    )
    done = cli.succeed("peer", "alone", "--config", "gamma.toml", cwd=tmp_path / "npz")
    assert said in done.err
    assert "helps 0" in done.out or "helps 1" in done.out
    assert said in (tmp_path / "npz/run-gamma-alone/report.html").read_text()
    early = rows(tmp_path / "npz/run-gamma-alone")
    assert len(early) == ROUNDS
    again = cli.succeed("peer", "alone", "--config", "gamma.toml", cwd=tmp_path / "npz")
    assert again.out == done.out
    run_together([participant(config) for config in configs])
    done = cli.succeed("peer", "alone", "--config", "gamma.toml", cwd=tmp_path / "npz")
    assert "not finished" not in done.out + done.err
    cli.succeed("peer", "alone", "--config", "gamma.toml", "--out", "anew", cwd=tmp_path / "npz")
    assert rows(tmp_path / "npz/run-gamma-alone") == rows(tmp_path / "npz/anew")
    assert rows(tmp_path / "npz/anew")[:ROUNDS] == early


def test_what_cannot_be_compared_is_refused(cli: Cli, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "npz", tmp_path / "npz", ignore=shutil.ignore_patterns("*-alone"))
    here, toml = tmp_path / "npz", tmp_path / "npz/alpha.toml"
    text = toml.read_text()
    toml.write_text(text.replace("alpha.npz", "beta.npz"))
    names = ("cannot compare with run-alpha", "fingerprints.data", "peer.toml must say what it said then")
    cli.refuse("peer", "alone", "--config", "alpha.toml", cwd=here, names=names)
    toml.write_text(text.replace('folder = "run-alpha"', 'folder = "not-there"'))
    names = ("alpha has no finished round", "run coterie peer first")
    cli.refuse("peer", "alone", "--config", "alpha.toml", cwd=here, names=names)
    assert not list(here.glob("*-alone"))


def test_a_member_alone_trains_as_its_group_does(folder: Path) -> None:
    """Several numbers of epochs are for groups of members; rules for messages mean nothing without any."""
    found = [alone.local_method(load(folder / "npz" / f"{name}.toml")).settings for name in MEMBERS]
    assert [settings["epochs"] for settings in found] == [1, 1, 2]
    text = (folder / "npz/gamma.toml").read_text().replace("lr_min = 0.001", 'lr_decay = 0.5\nrobust = "clip"')
    (folder / "npz/other.toml").write_text(text)
    settings = alone.local_method(load(folder / "npz/other.toml")).settings
    assert (settings["robust"], settings["lr_decay"], settings["batch_size"]) == (None, 0.5, 8)


def test_what_is_known_of_a_client_is_measured_again_after_a_restart() -> None:
    """A restored state has no values of its last evaluation."""
    e = experiment(net("mlp"), ragged("mlp"), build("dfedalt"))
    now, row = e.run_round(e.start(), 0, evaluate=True)
    assert now.values
    config = describe(e, e.model, "serial", "", "cpu")
    runs = [run_after(e, e, config, state, [row], None) for state in (now, now._replace(values=None))]
    assert runs[0].summary == runs[1].summary
    assert runs[0].client_summary == runs[1].client_summary
