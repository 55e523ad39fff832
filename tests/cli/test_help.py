"""What a command shows before it is trusted: every default, what it will train, and the answer to habits."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import methods as method_pages
from coterie.algorithms import BUILDERS
from coterie.algorithms.settings import settings_of
from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.cli.show.methods import command_settings
from coterie.cli.show.names import BASELINE, GROUPS, UNEQUAL
from coterie.measure.compare import Comparison, MethodRuns, RunData
from coterie.study.presets import PRESETS
from coterie.training.run import load
from docstrings import about
from helpers_cli import assert_same_run
from in_process import answer
from kinds import method_kind
from published import images


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that cuts no line of a help."""
    monkeypatch.setenv("COLUMNS", "600")
    monkeypatch.setenv("TERMINAL_WIDTH", "600")


def commands() -> dict[str, Any]:
    made: Any = typer.main.get_command(import_module("coterie.cli.app").app)
    return dict(made.commands)


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_every_option_shows_its_default(command: str, wide: None, tmp_path: Path) -> None:
    shown = answer(command, "--help", cwd=tmp_path).out
    for option in commands()[command].params:
        if option.param_type_name == "option" and not option.is_flag:
            line = next(line for line in shown.splitlines() if line.startswith(f"│ {option.opts[0]} "))
            required = option.name == "grid"
            assert ("[default: " in line) is not required, line
    assert "<bool>" not in shown + answer("--help", cwd=tmp_path).out
    assert "{" not in shown
    assert re.search(rf"coterie {command} \[OPTIONS\] METHODS?(\.\.\.)?\s", shown)


def test_the_defaults_that_are_shown_are_those_that_hold() -> None:
    """Of a run for which nothing is typed; what the help shows is compared with what the plan trains."""
    shown = {o.name: o.show_default for o in commands()["run"].params if o.param_type_name == "option"}
    plan = typed_plan(["dfedalt"], RunOptions())
    fed = plan.federation(0)
    held = {
        "data": fed.origin["source"],
        "model": plan.module(fed, 0).origin["name"],  # type: ignore[index]
        "partition": fed.origin["partition"],
        "clients": fed.clients,
        "rounds": plan.rounds,
        "topology": plan.algorithms["dfedalt"].settings["topology"],
    }
    assert {k: str(v) in shown[k] for k, v in held.items()} == dict.fromkeys(held, True)
    usual = {f.name: f.metadata["usual"] for f in RunOptions.__dataclass_fields__.values() if f.metadata.get("usual")}
    assert usual.keys() >= {"data", "engine", "device", "precision", "loss", "select", "init"}
    for name, value in usual.items():
        assert (shown[name], RunOptions().given(name)) == (str(value), value)


@pytest.mark.parametrize("method", ["dfedalt", "fedavg"])
def test_the_settings_of_a_method_have_type_both_defaults_and_meaning(method: str, wide: None, tmp_path: Path) -> None:
    listed, helped = (answer(*words, cwd=tmp_path).out for words in (("list", method), ("run", method, "--help")))
    assert listed.splitlines()[0].startswith(about(BUILDERS[method]).title)
    rows = {line.split()[0]: line for line in listed.splitlines() if line.split()[:1]}
    for key in settings_of(BUILDERS[method]):
        assert rows[key] in helped.splitlines(), key
    assert re.search(r"lr +0\.1 +0\.02 +a number +The learning rate of the main phase\.", rows["lr"])
    assert "--rounds" in helped
    assert command_settings(method)["lr"] == 0.02


def test_the_page_of_a_method_has_both_defaults() -> None:
    page = method_pages.settings("dfedalt", about(BUILDERS["dfedalt"]))
    assert "| setting | in Python | `coterie run dfedalt` | takes | meaning |" in page
    assert "| `topology` | `random-pull:10` | `random:5` |" in page
    assert "commands.md#presets" in page


def test_methods_are_listed_by_what_they_are(wide: None, tmp_path: Path) -> None:
    """The groups are read off programs; the pages of the site, which run a round, come to the same."""
    out = answer("list", cwd=tmp_path).out
    places = [out.index(f"Methods: {group}\n") for group in GROUPS]
    assert places == sorted(places)
    for method in BUILDERS:
        kind = method_kind(method)
        where = out.index(f"\n{method} ")
        assert max(p for p in places if p < where) == places[GROUPS.index(kind.group)], method
    assert re.search(r"\ndfedalt +the head +first the personal part", out)
    shown = {"local": BASELINE, "heterofl": UNEQUAL, **{m: method_kind(m).group for m in ("fedavg", "dispfl", "ditto")}}
    for method, group in shown.items():
        pages = method_pages.kind(method).replace("Personal,", "Personalized,").replace("around", "with")
        assert method_kind(method).group == group == pages, method


def test_presets_are_listed(wide: None, tmp_path: Path) -> None:
    rows = {line.split()[0]: line for line in answer("list", "presets", cwd=tmp_path).out.splitlines() if line.strip()}
    for name, preset in PRESETS.items():
        assert preset.model.partition(",")[0] in rows[name], name
        assert f" {preset.rounds}" in rows[name], name
    assert "small-cnn for images" in rows["npz"]


def test_a_run_says_what_it_trains_before_it_begins(tmp_path: Path) -> None:
    words = ("--rounds", "1", "--clients", "4", "--out", "o")
    said = answer("run", "dfedalt", *words, cwd=tmp_path).err.splitlines()
    plan = "on digits: 4 clients, dirichlet:0.1, 1 round, small-cnn with 13,706 parameters, engine auto"
    assert said[0] == f"dfedalt {plan}"
    assert said[1].startswith("  lr=0.02, personal_lr=0.02")
    assert said[2] == "model: 13,706 numbers, 13,706 train; 13,056 shared, 650 personal, 0 constant"
    assert said[3] == "engine: vectorized:4 on cpu (4 clients at once fit the memory)"
    assert said[4].startswith("dfedalt: round 1/1")
    compared = answer("compare", "local", "fedavg", *words[:4], "--out", "c", cwd=tmp_path).err.splitlines()
    assert compared[0] == f"2 methods {plan}"
    assert compared[2].endswith("model: 13,706 numbers, 13,706 train; 13,706 shared, 0 personal, 0 constant")


@pytest.mark.parametrize(("shape", "model"), [((32, 32, 3), "small-cnn"), ((3, 3), "mlp"), ((12,), "mlp")])
def test_images_of_ones_own_get_a_convolutional_model(shape: tuple[int, ...], model: str, tmp_path: Path) -> None:
    x = images(24, *shape[:2], *shape[2:]) if len(shape) > 1 else np.random.default_rng(0).normal(size=(24, *shape))
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(24) % 2)
    plan = typed_plan(["fedavg"], RunOptions(data=f"npz:{tmp_path / 'own.npz'}", clients=2))
    fed = plan.federation(0)
    assert plan.module(fed, 0).origin["name"] == model  # type: ignore[index]
    assert f"{model} with " in plan.remark(fed)


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        (("--lr", "0.1"), "--set lr=0.1"),
        (("--batch-size=8",), "--set batch_size=8"),
        (("--weight-decay", "--quiet"), "--set weight_decay=VALUE"),
        (("--mu", "1"), "--set mu=1"),
    ],
)
def test_a_setting_that_is_typed_as_an_option_is_answered(typed: tuple[str, ...], instead: str, tmp_path: Path) -> None:
    for words in (("run", "fedprox"), ("compare", "local", "fedprox"), ("recipe", "run", "dfedalt-t1")):
        done = answer(*words, *typed, cwd=tmp_path)
        assert (done.status, done.out) == (2, "")
        assert done.err.count("\n") == 1
        assert done.err.endswith(f"so type {instead}\n")


def test_names_ignore_case(tmp_path: Path) -> None:
    """Capitals and underscores change nothing: the same command is trained, and its files are the same."""
    usual = "--data synthetic:size=400,classes=4 --model mlp --partition dirichlet:1 --topology ring --metric macro-f1"
    typed = "--data Synthetic:size=400,classes=4 --model MLP --partition Dirichlet:1 --topology Ring --metric Macro_F1"
    rest = ("--clients", "4", "--rounds", "1", "--engine", "Serial", "--precision", "FP32", "--select", "Last")
    plain = answer("run", "dfedalt", *usual.split(), *rest, "--out", "a", cwd=tmp_path)
    loud = answer("run", "DFedAlt", *typed.split(), *rest, "--set", "DFEDALT.lr=0.02", "--out", "b", cwd=tmp_path)
    assert (plain.status, loud.status) == (0, 0), loud.err
    assert [line for line in loud.err.splitlines() if "took" not in line and "report" not in line] == [
        line for line in plain.err.splitlines() if "took" not in line and "report" not in line
    ]
    assert_same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("data", ["CIFAR10", "Fashion_MNIST"])
def test_published_data_are_found_whatever_their_case(data: str, tmp_path: Path) -> None:
    name = data.lower().replace("_", "-")
    for words in (("run", "fedavg", "--data", data), ("data", "show", data)):
        done = answer(*words, "--data-dir", ".", cwd=tmp_path)
        assert (done.status, f"coterie data fetch {name}" in done.err) == (2, True), done.err


def test_the_legend_is_short_and_every_column_is_explained(tmp_path: Path) -> None:
    """The table has two lines of legend; what each of its columns is, `coterie list columns` says in the same words."""
    command = "compare local dfedalt --data synthetic:size=400,classes=4 --clients 6 --rounds 1 --quiet --out c"
    shown = answer(*command.split(), cwd=tmp_path).out
    legend = [
        line for line in shown.splitlines() if "coterie list columns" in line or line.startswith("All accuracies")
    ]
    assert len(legend) == 2
    assert "each client's own model on its own test samples, mean over all 6 clients" in legend[0]
    assert "±: standard deviation over the clients" in legend[0]
    assert "the best of a column" in legend[0]
    runs = [
        RunData(r.config, r.history, r.summary, r.client_summary) for r in map(load, sorted(tmp_path.glob("c/*-seed0")))
    ]
    comparison = Comparison([MethodRuns(run.config["method"], [run]) for run in runs])
    listed = " ".join(answer("list", "columns", cwd=tmp_path).out.split())
    for column in comparison.columns:
        assert f"{column.title} {column.means}" in listed
        assert column.means not in shown or len(column.means) < 30
