"""However a run ends, its continuation is the run that was never interrupted, bit for bit."""

import itertools
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import coterie as ct
from coterie.algorithms import BUILDERS
from coterie.algorithms.settings import settings_of
from coterie.cli import _hang_up
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors
from coterie.store import RunFolder
from forks import ENVIRONMENT
from helpers_cli import (
    DATA,
    SMALL,
    Cli,
    Finished,
    assert_same_run,
    contents,
    reseal,
    rows,
    saved_rounds,
    summary,
)
from laws import FIRST, STAGES, build, kind_like
from samples import sampled
from toys import experiment, net, ragged

# The small sample: one method for each form of a state, and the one whose state grows. What a state of one form is
# written to and read from is the same code, and a round that needs more than its state fails in
# tests/algorithms/test_laws.py.
FORMS = ("local", "pooled", "fedavg", "scaffold", "ditto", "pfedme", "fedamp", "dfedpgp", "dispfl", "fedhmv2")
KILLED = (*FORMS, "progfed")


def on_a_ring(method: str) -> tuple[str, ...]:
    return (method, "--topology", "ring") if "topology" in settings_of(BUILDERS[method]) else (method,)


# Every method, and what a state can hold besides the models: momentum, absent clients, changing graphs.
VARIANTS: dict[str, tuple[str, ...]] = {
    **{method: on_a_ring(method) for method in BUILDERS},
    "fedavg-lasting-momentum": ("fedavg", "--set", "keep_optimizer_state=true", "--set", "participation=0.5"),
    "fedper-lasting-momentum": ("fedper", "--set", "keep_optimizer_state=true", "--set", "participation=2"),
    "dfedavgm-lasting-momentum": ("dfedavgm", "--topology", "random-pull:2", "--set", "keep_optimizer_state=true"),
    "dfedalt-lasting-moments": (
        *("dfedalt", "--topology", "random:2", "--optimizer", "adamw", "--set", "lr=0.001"),
        *("--set", "personal_optimizer=sgd", "--set", "keep_optimizer_state=true", "--set", "lr_schedule=cosine:3"),
    ),
    "fedavg-server-adam": ("fedavg", "--set", "server_optimizer=adam:lr=0.1", "--set", "participation=2"),
    "dfedalt-changing-graph": ("dfedalt", "--topology", "random:2", "--set", "lr_decay=0.5"),
    "osgp-scattered-and-offline": ("osgp", "--init", "per-client", "--offline", "0.4", "--topology", "random-push:2"),
    "fedavg-measured-rarely": ("fedavg", "--evaluate-every", "2", "--set", "participation=2"),
    "fedamp-around-a-server": ("fedamp", "--set", "keep_optimizer_state=true"),
    "apfl-learning-shares": ("apfl", "--set", "alpha_lr=0.1", "--set", "participation=2"),
    "dfedavg-robust": ("dfedavg", "--topology", "ring", "--set", "robust=median"),
    "dfedavg-serial": ("dfedavg", "--topology", "ring", "--engine", "serial"),
}


# Images for networks that are built in stages, one client after another: few steps are soonest done so.
STAGED_RUN = ("--data", "digits", "--model", "resnet8-bn:width=4", "--clients", "5", "--engine", "serial")
STEPS = ("--set", "steps=2")
BRIEF = (*SMALL, "--set", "epochs=1", "--set", "batch_size=32")  # a step or two for each client in a round


@pytest.mark.hostile
@pytest.mark.parametrize(
    "name",
    sampled([(name,) for name in VARIANTS], [(name,) for name in VARIANTS if name in KILLED or name not in BUILDERS]),
)
def test_killed_twice_equals_never(cli: Cli, tmp_path: Path, name: str) -> None:
    arguments = VARIANTS[name]
    rounds = 6 if arguments[0] == "progfed" else 3  # enough to grow through three stages
    staged = (*STAGED_RUN, "--rounds", str(rounds), *STEPS)
    typed = ("run", *arguments, *(staged if arguments[0] in STAGES else BRIEF))
    changes = cli.succeed(*typed, "--out", "whole", cwd=tmp_path).events
    begun = changes.index("rename whole/config.json") + 1
    last = changes.index(f"rename whole/checkpoint/round-00000{rounds}.json")
    draw = random.Random(" ".join(arguments))
    first = draw.randrange(begun, last)
    assert cli.run(*typed, "--out", "a", cwd=tmp_path, at=first).status == -signal.SIGKILL
    # A resumed run makes at least as many changes as there are left.
    again = cli.run("run", "a", "--resume", cwd=tmp_path, at=draw.randrange(len(changes) - last))
    assert again.status == -signal.SIGKILL
    cli.succeed("run", "a", "--resume", cwd=tmp_path)
    assert_same_run(tmp_path / "a", tmp_path / "whole")


def form(state: Any) -> Any:
    """The names of all that a state holds, without those of a model's tensors."""
    if isinstance(state, dict):
        return "tensors"
    return tuple((k, form(v)) for k, v in state._asdict().items()) if hasattr(state, "_asdict") else "tensor"


def test_every_form_of_a_state_is_killed() -> None:
    forms = {}
    for method, row in FIRST.items():
        e = experiment(net(kind_like(row, "mlp")), ragged("mlp"), build(row))
        forms[method] = form(e.start().state)
    assert {forms[method] for method in FORMS} == set(forms.values())
    assert len(set(forms.values())) == len(FORMS)


# Two clients and few parameters: the files matter here, not the numbers in them.
TINY = (*DATA, "--model", "logreg", "--clients", "2", "--rounds", "3", "--set", "steps=1")


@pytest.fixture(scope="module")
def tiny(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A whole tiny run, and the changes it made on the disk."""
    cwd = tmp_path_factory.mktemp("tiny")
    done = cli.succeed("run", "fedper", *TINY, "--out", "a", cwd=cwd)
    return cwd / "a", done.events


def difference(one: Path, other: Path) -> str:
    """How two runs differ, in short; nothing where they do not."""
    try:
        assert_same_run(one, other)
    except (AssertionError, OSError) as error:
        return repr(error)
    return ""


@pytest.mark.hostile
@pytest.mark.parametrize("part", ["beginning", "rounds", "end"])
def test_killed_before_every_single_change(cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]], part: str) -> None:
    """A kill right before each folder, file and name that is made or removed, and the same command with --resume."""
    whole, changes = tiny
    marks = [
        0,
        changes.index("rename a/config.json") + 1,
        changes.index("rename a/checkpoint/round-000003.json") + 1,
        len(changes),
    ]
    i = ["beginning", "rounds", "end"].index(part)
    wrong = []
    for place in range(marks[i], marks[i + 1]):
        cwd = tmp_path / str(place)
        cwd.mkdir()
        killed = cli.run("run", "fedper", *TINY, "--out", "a", cwd=cwd, at=place)
        assert (killed.status, killed.events[-1]) == (-signal.SIGKILL, changes[place])
        resumed = cli.run("run", "fedper", *TINY, "--out", "a", "--resume", cwd=cwd)
        problem = resumed.err.strip().splitlines()[-1] if resumed.status else difference(cwd / "a", whole)
        wrong += [f"killed before {changes[place]}: {problem}"] if problem else []
    assert wrong == []


@pytest.mark.hostile
def test_killed_in_the_middle_of_a_checkpoint(cli: Cli, tmp_path: Path) -> None:
    """The kernel ends the process half-way through the file, when it outgrows the limit."""
    typed = ("run", "fedavg", *SMALL)
    cli.succeed(*typed, "--out", "whole", cwd=tmp_path)
    cli.run(*typed, "--out", "a", cwd=tmp_path, at="write a/metrics.jsonl")
    torn = cli.run("run", "a", "--resume", cwd=tmp_path, limit=20_000, torn=True)
    assert torn.status == -signal.SIGXFSZ
    assert saved_rounds(tmp_path / "a") == []
    cli.run("run", "a", "--resume", cwd=tmp_path, at="rename a/checkpoint/round-000002.json")
    torn = cli.run("run", "a", "--resume", cwd=tmp_path, limit=20_000, torn=True)
    assert torn.status == -signal.SIGXFSZ
    assert saved_rounds(tmp_path / "a") == [1]
    cli.succeed("run", "a", "--resume", cwd=tmp_path)
    assert_same_run(tmp_path / "a", tmp_path / "whole")


@pytest.mark.hostile
@pytest.mark.parametrize("method", ["fedper", "dfedalt"])
def test_killed_at_random_moments(cli: Cli, tmp_path: Path, method: str) -> None:
    typed = ("run", method, *DATA, "--clients", "5", "--rounds", "12")
    cli.succeed(*typed, "--out", "whole", cwd=tmp_path)
    draw = random.Random(method)
    for attempt in range(6):
        under_way = cli.start(*typed, "--out", "a", "--resume", cwd=tmp_path, in_step=attempt % 2 == 0)
        time.sleep(draw.uniform(0, 0.2) * (attempt + 1))
        under_way.send(signal.SIGKILL)
        assert under_way.wait().status in (-signal.SIGKILL, 0)
    cli.succeed(*typed, "--out", "a", "--resume", cwd=tmp_path)
    assert_same_run(tmp_path / "a", tmp_path / "whole")


@pytest.mark.hostile
def test_killed_while_checkpoints_are_written_beside_the_training(
    cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]]
) -> None:
    """Before one change after another, up to the clients' files; which they are depends on the time they take."""
    typed = ("run", "fedper", *TINY, "--out", "a")
    for place in itertools.count(tiny[1].index("write a/metrics.jsonl")):
        cwd = tmp_path / str(place)
        cwd.mkdir()
        killed = cli.run(*typed, cwd=cwd, at=place, in_step=False)
        assert killed.status == -signal.SIGKILL, killed
        resumed = cli.run(*typed, "--resume", cwd=cwd, in_step=False)
        assert resumed.status == 0, resumed.err
        assert_same_run(cwd / "a", tiny[0])
        if killed.events[-1].startswith("mkdir a/clients"):
            break


def test_a_finished_run_is_resumed_without_harm(cli: Cli, tiny: tuple[Path, list[str]], tmp_path: Path) -> None:
    cli.succeed("run", "fedper", *TINY, "--out", "a", cwd=tmp_path)
    before = contents(tmp_path)
    cli.succeed("run", "a", "--resume", cwd=tmp_path)
    assert contents(tmp_path) == before


# Ctrl-C, SIGTERM and, of a terminal that is closed, SIGHUP


def as_printed(cli: Cli, interrupted: Finished, cwd: Path) -> str:
    """Runs the command an interrupted one printed, and returns it."""
    assert interrupted.status == 130, interrupted
    assert "Traceback" not in interrupted.err
    assert not interrupted.sentences  # nothing was wrong with the request
    name, *arguments = shlex.split(interrupted.continuation)
    assert name == "coterie"
    cli.succeed(*arguments, cwd=cwd)
    return interrupted.continuation


PLACES = {
    "before-the-folder": "mkdir a*",
    "before-the-configuration": "rename a/config.json",
    "before-a-round-is-written": "write a/metrics.jsonl",
    "in-a-checkpoint": "write a/checkpoint/.round-000002.json.tmp",
    "among-the-clients": "rename a/clients/client-0001.safetensors",
    "before-the-summary": "rename a/summary.json",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_printed_command_finishes_the_run(
    cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]], place: str, number: signal.Signals
) -> None:
    stopped = cli.run("run", "fedper", *TINY, "--out", "a", cwd=tmp_path, at=place, send=number)
    as_printed(cli, stopped, tmp_path)
    assert_same_run(tmp_path / "a", tiny[0])


MOMENTS = {
    "as-a-checkpoint-begins": "write a/checkpoint/.round-000001.safetensors.tmp",
    "as-older-ones-are-removed": "remove a/checkpoint/*",
    "in-a-checkpoint": "rename a/checkpoint/round-000001.safetensors",
    "as-the-last-round-is-saved": "write a/checkpoint/.round-000003.safetensors.tmp",
    "before-the-last-round-counts": "rename a/checkpoint/round-000003.json",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
@pytest.mark.parametrize("place", MOMENTS.values(), ids=MOMENTS)
def test_an_interrupted_run_has_saved_every_finished_round(
    cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]], place: str, number: signal.Signals
) -> None:
    """Also those whose checkpoints were passed over, and the one that is being written."""
    typed = ("run", "fedper", *TINY, "--out", "a")
    stopped = cli.run(*typed, cwd=tmp_path, at=place, send=number, in_step=False)
    finished = len(rows(tmp_path / "a"))
    assert saved_rounds(tmp_path / "a")[-1] in (finished - 1, finished)  # a row is written before its round counts
    assert not [name for name in contents(tmp_path) if "tmp" in name]
    as_printed(cli, stopped, tmp_path)
    assert_same_run(tmp_path / "a", tiny[0])


def test_a_closed_terminal_is_an_interruption(cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]]) -> None:
    place = "write a/checkpoint/.round-000002.json.tmp"
    stopped = cli.run("run", "fedper", *TINY, "--out", "a", cwd=tmp_path, at=place, send=signal.SIGHUP)
    as_printed(cli, stopped, tmp_path)
    assert_same_run(tmp_path / "a", tiny[0])


def test_words_for_a_closed_terminal_go_nowhere() -> None:
    """Each would be an error in the middle of saving; an open terminal still gets them."""
    (mine, other), (seen, open_one) = os.openpty(), os.openpty()
    os.close(mine)
    with pytest.raises(KeyboardInterrupt):
        _hang_up([other, open_one], signal.SIGHUP, None)
    assert os.write(other, b"interrupted") == 11
    os.write(open_one, b"interrupted\n")
    assert os.read(seen, 11) == b"interrupted"
    for number in (other, seen, open_one):
        os.close(number)


@pytest.mark.parametrize("out", ["a", "my runs/a", "fedper", "~a", "-a"])
def test_the_printed_command_names_the_folder(cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]], out: str) -> None:
    """Whatever the folder is called: with spaces, like a method, like an option."""
    at = "write */metrics.jsonl"
    stopped = cli.run("run", "fedper", *TINY, f"--out={out}", cwd=tmp_path, at=at, send=signal.SIGINT)
    command = as_printed(cli, stopped, tmp_path)
    if out == "a":
        assert command == "coterie run a --resume"
    assert_same_run(tmp_path / out, tiny[0])


def test_a_run_that_named_no_folder(cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]]) -> None:
    at = "rename */round-000002.json"
    stopped = cli.run("run", "fedper", *TINY, cwd=tmp_path, at=at, send=signal.SIGINT)
    assert as_printed(cli, stopped, tmp_path) == "coterie run runs/fedper-synthetic-1 --resume"
    assert_same_run(tmp_path / "runs" / "fedper-synthetic-1", tiny[0])


def test_a_continuation_can_be_interrupted_too(cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]]) -> None:
    command: tuple[str, ...] = ("run", "fedper", *TINY, "--out", "a")
    for round in (1, 2, 3):
        at = f"rename a/checkpoint/round-00000{round}.json"
        stopped = cli.run(*command, cwd=tmp_path, at=at, send=signal.SIGTERM)
        command = tuple(shlex.split(stopped.continuation)[1:])
    as_printed(cli, stopped, tmp_path)
    assert_same_run(tmp_path / "a", tiny[0])


COMPARED = ("compare", "local", "dfedavg", *TINY, "--topology", "full", "--seeds", "2")


@pytest.fixture(scope="module")
def compared(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cwd = tmp_path_factory.mktemp("compared")
    cli.succeed(*COMPARED, "--out", "c", cwd=cwd)
    return cwd / "c"


def assert_same_comparison(one: Path, other: Path) -> None:
    assert list(contents(one)) == list(contents(other))
    runs = sorted(path.parent for path in one.glob("*/config.json"))
    assert len(runs) == 4
    for run in runs:
        assert_same_run(run, other / run.name)
    left, right = (untimed(json.loads((c / "compare.json").read_text())) for c in (one, other))
    assert left == right


def untimed(value: Any) -> Any:
    """JSON without any seconds."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if not k.endswith("seconds")}
    return [untimed(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
@pytest.mark.parametrize(
    "place",
    [
        "mkdir */local-seed0*",
        "rename */local-seed1/checkpoint/round-000002.json",
        "rename */dfedavg-seed0/config.json",
        "rename */dfedavg-seed1/summary.json",
        "rename */compare.json",
    ],
)
def test_the_printed_command_finishes_the_comparison(
    cli: Cli, tmp_path: Path, compared: Path, place: str, number: signal.Signals
) -> None:
    # Once with a folder of our own, once with the one that is chosen for us.
    out = ("--out", "c") if number == signal.SIGINT else ()
    stopped = cli.run(*COMPARED, *out, cwd=tmp_path, at=place, send=number)
    as_printed(cli, stopped, tmp_path)
    folder = tmp_path / "c" if out else tmp_path / "runs" / "compare-synthetic-1"
    assert_same_comparison(folder, compared)


@pytest.mark.skipif(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="children would not hear Ctrl-C either")
def test_the_installed_script_and_a_shell(cli: Cli, tmp_path: Path) -> None:
    """Ctrl-C as a terminal sends it, and the printed line as a person pastes it."""
    typed = ["run", "local", *DATA, "--model", "logreg", "--clients", "2", "--rounds", "150", "--set", "steps=1"]
    cli.succeed(*typed, "--out", "whole run", cwd=tmp_path)
    metrics = tmp_path / "a run" / "metrics.jsonl"
    with subprocess.Popen(
        ["coterie", *typed, "--data-dir", "a disk", "--out", "a run"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as under_way:
        while under_way.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        under_way.send_signal(signal.SIGINT)
        said = under_way.communicate()[1]
    stopped = Finished(under_way.returncode, "", said, [])
    assert stopped.status == 130, said
    assert stopped.continuation == "coterie run 'a run' --resume --data-dir 'a disk'"
    subprocess.run(stopped.continuation, shell=True, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True)
    assert_same_run(tmp_path / "a run", tmp_path / "whole run")


# Once more, from what was saved


@pytest.mark.parametrize("engine", ["auto", "serial", "vectorized:2"])
@pytest.mark.parametrize("method", ["fedper", "dfedalt"])
def test_a_saved_configuration_repeats_its_run(cli: Cli, tmp_path: Path, method: str, engine: str) -> None:
    more = ("--set", "participation=0.5") if method == "fedper" else ("--topology", "random:2")
    cli.succeed("run", method, *BRIEF, *more, "--engine", engine, "--seed", "3", "--out", "a", cwd=tmp_path)
    cli.succeed("run", "a/config.json", "--out", "b", cwd=tmp_path)
    cli.succeed("run", "b", "--out", "c", cwd=tmp_path)
    for copy in ("b", "c"):
        assert_same_run(tmp_path / copy, tmp_path / "a")


def test_a_configuration_alone_is_enough(cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]]) -> None:
    (tmp_path / "mine.json").write_bytes((tiny[0] / "config.json").read_bytes())
    cli.succeed("run", "mine.json", cwd=tmp_path)
    assert_same_run(tmp_path / "runs" / "fedper-again-1", tiny[0])


# From Python


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the processes of the command line have it, so that sums are taken in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FEDERATION = ct.data.federate("synthetic:size=400,classes=4", clients=4, partition="dirichlet:0.3", seed=1)


def fit(**options: Any) -> ct.Run:
    """A small run in this process."""
    module = ct.models.build("mlp", FEDERATION, seed=1)
    algorithm = ct.algorithms.fedper(lr=0.05, batch_size=16, epochs=1, participation=0.5, keep_optimizer_state=True)
    return ct.fit(module, FEDERATION, algorithm, rounds=3, seed=1, progress=False, **options)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.endswith("seconds")}


def assert_equal(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    assert [k for k in one if not torch.equal(one[k], other[k])] == []


def assert_equal_runs(one: ct.Run, other: ct.Run) -> None:
    """All that was computed, to the last bit."""
    assert list(map(plain, one.history)) == list(map(plain, other.history))
    assert plain(one.summary) == plain(other.summary)
    assert_equal(one.final, other.final)
    assert len(one.clients) == len(other.clients) == FEDERATION.clients
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        assert_equal(mine.shared, theirs.shared)
        assert_equal(mine.personal, theirs.personal)


def interrupted_fit(monkeypatch: pytest.MonkeyPatch, round: int, out: Path) -> None:
    """Begin a run that is interrupted before that round is written."""
    append = RunFolder.append

    def stop(folder: RunFolder, row: dict[str, Any]) -> None:
        if row["round"] == round:
            raise KeyboardInterrupt
        append(folder, row)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            fit(out=out)


@pytest.mark.parametrize("interrupted", [1, 2, 3])
def test_fit_resumes(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, interrupted: int
) -> None:
    whole = fit()
    interrupted_fit(monkeypatch, interrupted, tmp_path / "a")
    assert saved_rounds(tmp_path / "a")[-1:] == [interrupted - 1][: interrupted - 1]  # all that was finished
    with pytest.raises(UserError, match="not finished"):
        ct.load(tmp_path / "a")
    assert_equal_runs(fit(out=tmp_path / "a", resume=True), whole)
    assert_equal_runs(ct.load(tmp_path / "a"), whole)
    # The command line repeats what Python began.
    cli.succeed("run", "a", "--out", "b", cwd=tmp_path)
    assert_same_run(tmp_path / "b", tmp_path / "a")


@pytest.mark.parametrize("change", ["machine", "torch", "nothing"])
def test_a_run_that_goes_on_elsewhere_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    """Sums are added in another order there, so the promise of equal bits does not hold."""
    config = tmp_path / "a" / "config.json"
    interrupted_fit(monkeypatch, 2, tmp_path / "a")
    begun = json.loads(config.read_text())
    if change == "machine":
        begun["machine"] = "Abacus, 7 threads"
    elif change == "torch":
        begun["versions"]["torch"] = "0.1"
    config.write_text(json.dumps(begun))
    capsys.readouterr()
    assert len(fit(out=tmp_path / "a", resume=True).history) == 3
    said = capsys.readouterr().err
    assert ("not to the last bit" in said) == (change != "nothing")
    assert ("begun on Abacus, 7 threads and resumed on" in said) == (change == "machine")
    assert ("with torch 0.1" in said) == (change == "torch")


def test_a_run_that_began_on_a_cluster_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on as it began, unless another engine is asked for."""
    config = tmp_path / "a" / "config.json"
    interrupted_fit(monkeypatch, 2, tmp_path / "a")
    config.write_text(json.dumps({**json.loads(config.read_text()), "engine": "ray:serial"}))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="the engine ray needs Ray"):
        fit(out=tmp_path / "a", resume=True)
    assert len(fit(out=tmp_path / "a", resume=True, engine="serial").history) == 3


def test_fit_resumes_what_was_never_begun(tmp_path: Path) -> None:
    assert_equal_runs(fit(out=tmp_path / "a", resume=True), fit())


def test_a_loaded_run_is_the_run_in_memory(tmp_path: Path) -> None:
    run = fit(out=tmp_path / "a")
    loaded = ct.load(tmp_path / "a")
    assert_equal_runs(loaded, run)
    # With the seconds this time: both tell of one run.
    assert (loaded.history, loaded.summary) == (run.history, run.summary)
    assert loaded.config == run.config
    for mine, theirs in zip(loaded.clients, run.clients, strict=True):
        ours, module = mine.module(), theirs.module()
        assert not ours.training
        assert torch.equal(ours(FEDERATION.test_x), module(FEDERATION.test_x))


def test_clients_differ_and_own_their_modules(tmp_path: Path) -> None:
    """Else the test above would hold for one model served to everybody."""
    fit(out=tmp_path / "a")
    loaded = ct.load(tmp_path / "a")
    answers = [client.module()(FEDERATION.test_x) for client in loaded.clients]
    assert not torch.equal(answers[0], answers[1])
    with torch.no_grad():
        for p in loaded.clients[0].module().parameters():
            p.zero_()
    assert torch.equal(loaded.clients[0].module()(FEDERATION.test_x), answers[0])


def test_save_then_load(tmp_path: Path) -> None:
    run = fit()
    path = run.save(tmp_path / "deep" / "down" / "a")
    assert path == tmp_path / "deep" / "down" / "a"
    loaded = ct.load(str(path))
    assert_equal_runs(loaded, run)
    assert (loaded.history, loaded.summary, loaded.config) == (run.history, run.summary, run.config)
    # And what was written is what fit writes by itself.
    fit(out=tmp_path / "b")
    written, others = contents(path), contents(tmp_path / "b")
    assert written.keys() == others.keys()
    assert [k for k in written if k.startswith("c") and written[k] != others[k]] == []
    assert (rows(path), summary(path)) == (rows(tmp_path / "b"), summary(tmp_path / "b"))


def test_save_overwrites_nothing(tmp_path: Path) -> None:
    run = fit()
    run.save(tmp_path / "a")
    before = contents(tmp_path)
    with pytest.raises(UserError, match="already exists"):
        run.save(tmp_path / "a")
    assert contents(tmp_path) == before


def test_a_saved_run_can_be_loaded_and_saved_again(cli: Cli, tmp_path: Path, tiny: tuple[Path, list[str]]) -> None:
    ct.load(tiny[0]).save(tmp_path / "a")
    assert (tmp_path / "a" / "summary.json").read_bytes() == (tiny[0] / "summary.json").read_bytes()
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tiny[0] / "metrics.jsonl").read_bytes()
    before = contents(tmp_path)
    cli.succeed("run", "a", "--resume", cwd=tmp_path)
    assert contents(tmp_path) == before


def test_a_module_of_ones_own(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 4))
    algorithm = ct.algorithms.fedper(lr=0.05, batch_size=16, participation=1.0)
    run = ct.fit(module, FEDERATION, algorithm, rounds=1, progress=False, out=tmp_path / "a")
    with pytest.raises(UserError, match="model="):
        ct.load(tmp_path / "a").clients[0].module()
    known = ct.load(tmp_path / "a", model=module)
    for mine, theirs in zip(known.clients, run.clients, strict=True):
        assert torch.equal(mine.module()(FEDERATION.test_x), theirs.module()(FEDERATION.test_x))


@pytest.mark.parametrize("missing", ["", "empty", "summary.json"])
def test_load_of_what_is_no_finished_run(tmp_path: Path, missing: str) -> None:
    if missing == "empty":
        (tmp_path / "a").mkdir()
    elif missing:
        fit(out=tmp_path / "a")
        (tmp_path / "a" / missing).unlink()
    with pytest.raises(UserError, match="--resume" if missing == "summary.json" else "run folder"):
        ct.load(tmp_path / "a")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("damaged", "how"),
    [
        ("metrics.jsonl", "cut"),
        ("metrics.jsonl", "gone"),
        ("summary.json", "cut"),
        ("clients/client-0001.safetensors", "cut"),
        ("clients/client-0001.safetensors", "gone"),
    ],
)
def test_load_of_a_damaged_run(tmp_path: Path, damaged: str, how: str) -> None:
    fit(out=tmp_path / "a")
    path = tmp_path / "a" / damaged
    if how == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    with pytest.raises(UserError, match=path.name):
        list(ct.load(tmp_path / "a").clients)


def test_a_client_s_file_fits_its_model_or_is_refused(tmp_path: Path) -> None:
    """A single number would be stretched over a whole layer by copying."""
    fit(out=tmp_path / "a")
    path = tmp_path / "a" / "clients/client-0001.safetensors"
    tensors = load_file(path)
    name = next(k for k in tensors if k.endswith("bias"))
    save_file({**tensors, name: tensors[name][:1].clone()}, path)
    reseal(tmp_path / "a")
    with pytest.raises(UserError, match=rf"client-0001.*{name.partition('/')[2]} is \[1\] and should be \[\d+\]"):
        list(ct.load(tmp_path / "a").clients)


@pytest.mark.hostile
@pytest.mark.parametrize(
    "at", ["remove a/clients.json", "rename a/config.json", "rename a/checkpoint/round-000003.json"]
)
def test_a_run_that_gets_more_rounds_survives_a_kill(cli: Cli, tmp_path: Path, at: str) -> None:
    """Killed while it becomes an unfinished run again, or in the rounds that are added: it goes on to the same end."""
    small = ("run", "dfedavg", *DATA, "--clients", "4", "--quiet", "--rounds")
    cli.succeed(*small, "4", "--out", "whole", cwd=tmp_path)
    cli.succeed(*small, "2", "--out", "a", cwd=tmp_path)
    assert cli.run("run", "a", "--resume", "--rounds", "4", "--quiet", cwd=tmp_path, at=at).status < 0
    more = ("--rounds", "4") if json.loads((tmp_path / "a/config.json").read_text())["rounds"] == 2 else ()
    cli.succeed("run", "a", "--resume", *more, "--quiet", cwd=tmp_path)
    assert_same_run(tmp_path / "a", tmp_path / "whole")
