"""The names people type, in Python and on the command line."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn

import coterie as ct
from coterie.algorithms.settings import settings_of
from coterie.cli.common.options import Output, RunOptions, TrainingOptions
from coterie.core.errors import UserError
from entry_point import coterie

SMALL = ["--data", "synthetic:size=240,classes=3", "--clients", "4", "--rounds", "2"]


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    fed = ct.data.federate("digits", clients=6, partition="dirichlet:0.1", seed=0)
    alg = ct.algorithms.dfedalt(topology="random:3", lr=0.02, personal_lr=0.02, batch_size=16, epochs=2)
    run = ct.fit(ct.models.build("small-cnn", fed), fed, alg, rounds=3, seed=0, progress=False)
    assert [row["round"] for row in run.history] == [1, 2, 3]
    client = run.clients[3]
    assert set(client.personal) == {"9.weight", "9.bias"}
    assert set(client.shared) == set(run.clients[0].module().state_dict()) - set(client.personal)
    module = client.module()
    mine = fed.test[3]
    accuracy = float((module(fed.test_x[mine]).argmax(1) == fed.test_y[mine]).double().mean())
    assert 0 <= accuracy <= 1
    run.save(tmp_path / "a")
    again = ct.load(tmp_path / "a")
    assert again.summary == run.summary
    assert torch.equal(again.clients[3].module()(fed.test_x), module(fed.test_x))


def test_from_tensors_and_any_module() -> None:
    pairs = [(torch.randn(10, 5), torch.arange(10) % 2) for _ in range(3)]
    fed = ct.data.from_tensors(train=pairs, test=pairs, classes=2)
    run = ct.fit(
        lambda: nn.Linear(5, 2), fed, ct.algorithms.fedper(participation=1.0, epochs=1), rounds=1, progress=False
    )
    assert run.config["model"] == {"module": "Linear"}
    assert run.clients[0].personal.keys() == {"weight", "bias"}
    assert run.clients[0].shared == {}


UNFIT = {
    "built for fewer classes": (lambda fed: ct.models.build("mlp", fed, classes=3), "has 3 outputs.*4 classes"),
    "your own with fewer classes": (lambda fed: nn.Linear(20, 3), "has 3 outputs.*have 4 classes.*build it for 4"),
    "built for other samples": (lambda fed: ct.models.build("mlp", classes=4, input_shape=(7,)), r"\(7,\).*\(20,\)"),
    "your own for other samples": (lambda fed: nn.Linear(7, 4), r"fails.*have \(20,\)"),
    "a number and no scores": (lambda fed: nn.Sequential(nn.Linear(20, 1), nn.Flatten(0)), r"\(2,\).*\[samples, 4\]"),
}


@pytest.mark.parametrize("engine", ["auto", "serial", "vectorized"])
@pytest.mark.parametrize("unfit", UNFIT)
def test_a_model_that_does_not_fit_the_data_is_refused_in_one_sentence(unfit: str, engine: str) -> None:
    fed = ct.data.federate("synthetic:size=80,classes=4", clients=2, partition="iid")
    build, told = UNFIT[unfit]
    with pytest.raises(UserError, match=told):
        ct.fit(build(fed), fed, ct.algorithms.fedavg(), rounds=1, engine=engine, progress=False)


def test_a_model_with_a_loss_of_its_own_may_have_any_outputs() -> None:
    fed = ct.data.federate("synthetic:size=80,classes=4", clients=2, partition="iid")

    def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.squeeze(1) - targets).pow(2).mean()

    run = ct.fit(nn.Linear(20, 1), fed, ct.algorithms.fedavg(lr=0.01), rounds=1, loss=squares, progress=False)
    assert len(run.history) == 1


def test_a_callable_model_depends_on_the_seed_alone() -> None:
    fed = ct.data.federate("synthetic", clients=3, partition="iid")
    alg = ct.algorithms.local(steps=0)
    starts = []
    for seed in (0, 0, 1):
        torch.rand(3)
        run = ct.fit(lambda: nn.Linear(20, 10), fed, alg, rounds=1, seed=seed, progress=False)
        starts.append(run.clients[0].personal["weight"])
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("logreg", (784,), 7_850),
        ("cnn", (1, 28, 28), 582_026),
        ("cnn:padding=2", (1, 28, 28), 1_663_370),
        ("cnn", (3, 32, 32), 878_538),
        ("small-cnn", (1, 8, 8), 13_706),
    ],
)
def test_models_have_the_published_sizes(name: str, shape: tuple[int, ...], parameters: int) -> None:
    module = ct.models.build(name, classes=10, input_shape=shape)
    assert sum(p.numel() for p in module.parameters()) == parameters
    assert module(torch.zeros(2, *shape)).shape == (2, 10)


def test_models_repeat_with_their_seed() -> None:
    a, b, c = (ct.models.build("mlp", classes=3, input_shape=(4,), seed=s) for s in (0, 0, 1))
    assert torch.equal(a[1].weight, b[1].weight)
    assert not torch.equal(a[1].weight, c[1].weight)


@pytest.mark.parametrize("name", ct.algorithms.BUILDERS)
def test_settings_are_complete(name: str) -> None:
    """Building a method again from its settings gives the same settings, and every keyword is among them."""
    first = ct.algorithms.build(name)
    assert ct.algorithms.build(name, **first.settings).settings == first.settings
    assert set(first.settings) == set(settings_of(ct.algorithms.builder(name)))
    json.dumps(dict(first.settings))


def test_a_topology_may_be_a_value_or_a_function() -> None:
    fed = ct.data.federate("synthetic", clients=4, partition="iid")
    ends = []
    for graph in ("ring", ct.topology.ring(4), lambda t: ct.topology.ring(4)(t)):
        alg = ct.algorithms.dfedavg(topology=graph, epochs=1)
        ends.append(ct.fit(ct.models.build("logreg", fed), fed, alg, rounds=2, progress=False).clients[0].shared)
    assert all(torch.equal(ends[0][k], e[k]) for e in ends[1:] for k in e)


class TestCommandLine:
    """The commands, as typed."""

    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_run(self, capsys: Any, monkeypatch: Any) -> None:
        status, out, err = coterie(capsys, monkeypatch, "run", "dfedalt", *SMALL, "--topology", "ring", "--out", "a")
        assert status == 0
        assert "after aggregation" in out
        assert "worst client" in out
        assert "results: a" in out
        assert "lr=0.02" in err  # the preset is said
        files = {str(p.relative_to("a")) for p in Path("a").rglob("*") if p.is_file()}
        assert {"config.json", "metrics.jsonl", "summary.json", "clients/client-0003.safetensors"} <= files
        assert "checkpoint/round-000002.safetensors" in files
        rows = [json.loads(line) for line in Path("a/metrics.jsonl").read_text().splitlines()]
        wanted = "round personal_accuracy_after_mix personal_accuracy_after_train global_accuracy train_loss"
        wanted += " consensus_distance bytes_sent parameters_sent flops seconds"
        assert set(wanted.split()) <= set(rows[0])
        summary = json.loads(Path("a/summary.json").read_text())
        told = {"final", "best", "last_tenth", "worst", "std", "weighted"}
        assert set(summary["personal_accuracy"]["after_train"]) == told

    def test_set_reaches_the_method(self, capsys: Any, monkeypatch: Any) -> None:
        words = ["run", "dfedalt", *SMALL, "--topology", "full", "--out", "a"]
        words += ["--set", "lr=0.5", "--set", "clip=none", "--set", "personal=5.*"]
        assert coterie(capsys, monkeypatch, *words)[0] == 0
        settings = json.loads(Path("a/config.json").read_text())["settings"]
        assert (settings["lr"], settings["clip"], settings["personal"]) == (0.5, None, "5.*")
        assert settings["topology"] == "full"

    def test_compare(self, capsys: Any, monkeypatch: Any) -> None:
        words = [
            "compare",
            "local",
            "fedavg",
            "dfedavg",
            *SMALL,
            "--seeds",
            "2",
            "--set",
            "fedavg.lr=0.1",
            "--out",
            "c",
        ]
        status, out, _ = coterie(capsys, monkeypatch, *words)
        assert status == 0
        assert all(name in out for name in ("local", "fedavg", "dfedavg", "2 seeds", "results: c"))
        lr = {
            m: json.loads(Path(f"c/{m}-seed1/config.json").read_text())["settings"]["lr"] for m in ("local", "fedavg")
        }
        assert lr == {"local": 0.02, "fedavg": 0.1}
        assert len(json.loads(Path("c/compare.json").read_text())) == 3

    @pytest.mark.parametrize(
        ("clients", "graph"), [("1", "none"), ("2", "random:1"), ("5", "random:4"), ("7", "random:4")]
    )
    def test_the_preset_fits_few_clients_and_says_so(
        self, capsys: Any, monkeypatch: Any, clients: str, graph: str
    ) -> None:
        words = [
            "compare",
            "dfedavg",
            "local",
            "--data",
            "synthetic",
            "--clients",
            clients,
            "--rounds",
            "1",
            "--out",
            "f",
        ]
        status, _, err = coterie(capsys, monkeypatch, *words)
        assert status == 0
        assert f"topology={graph}" in err
        assert json.loads(Path("f/dfedavg-seed0/config.json").read_text())["settings"]["topology"] == graph

    def test_folders_are_numbered(self, capsys: Any, monkeypatch: Any) -> None:
        for number in (1, 2):
            assert f"results: runs/local-synthetic-{number}" in coterie(capsys, monkeypatch, "run", "local", *SMALL)[1]

    def test_list_names_everything(self, capsys: Any, monkeypatch: Any) -> None:
        status, out, _ = coterie(capsys, monkeypatch, "list")
        assert status == 0
        names = [*ct.algorithms.BUILDERS, *ct.data.SOURCES, *ct.topology.BUILDERS, *ct.models.BUILDERS]
        assert all(name in out for name in names)

    def test_topology(self, capsys: Any, monkeypatch: Any) -> None:
        status, out, _ = coterie(capsys, monkeypatch, "topology", "ring", "--clients", "16")
        assert status == 0
        assert "0.050747" in out
        assert "74,499,328" in out  # 32 messages x 582,026 parameters x 4 bytes
        assert coterie(capsys, monkeypatch, "topology", "grid", "--clients", "9", "--png", "g.png")[0] == 0
        assert Path("g.png").read_bytes().startswith(b"\x89PNG")

    def test_version_and_help(self, capsys: Any, monkeypatch: Any) -> None:
        assert coterie(capsys, monkeypatch, "--version")[1] == f"coterie {ct.__version__}\n"
        out = coterie(capsys, monkeypatch, "--help")[1]
        assert all(word in out for word in ("run", "compare", "list", "topology", "capacity"))


def test_commands_that_train_share_their_options() -> None:
    """The same name, default and help in each; an option that all have is one of the shared ones."""
    groups: Any = typer.main.get_command(import_module("coterie.cli.app").app)
    train = (groups.commands["run"], groups.commands["compare"], groups.commands["recipe"].commands["run"])
    run, compare, recipe = (
        {p.name: (p.opts, p.default, p.help) for p in command.params if p.opts[0][0] == "-"} for command in train
    )
    shared = {f.name for kind in (TrainingOptions, Output) for f in fields(kind)} | {"dry_run"}
    assert shared == run.keys() & compare.keys() & recipe.keys() - {"help"}
    assert {f.name for f in fields(RunOptions)} | shared | {"format"} == run.keys() & compare.keys() - {"help"}
    assert {k: run[k] for k in run.keys() & compare.keys()} == {k: compare[k] for k in run.keys() & compare.keys()}
    assert {k: run[k] for k in shared} == {k: recipe[k] for k in shared}


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, coterie.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_a_pipe_cannot_show_is_replaced() -> None:
    """A pipe may have fewer characters than the title has, as on Windows."""
    command = [sys.executable, "-m", "coterie", "topology", "ring", "--clients", "4"]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"?" in done.stdout
    assert b"spectral gap" in done.stdout


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_first_round_does_not_wait_for_the_compiler(engine: str) -> None:
    code = f"""
import sys, coterie as ct
fed = ct.data.federate("synthetic", clients=3, partition="dirichlet:0.3", seed=0)
ct.fit(ct.models.build("mlp", fed), fed, ct.algorithms.fedavg(epochs=1), rounds=1, engine="{engine}", progress=False)
sys.exit("torch._dynamo" in sys.modules or "sympy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
