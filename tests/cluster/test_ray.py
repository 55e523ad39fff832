"""The same runs on a Ray cluster: results, errors, lost workers and machines, checkpoints, memory."""

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie import algorithms
from coterie.cluster.coordinator import Coordinator
from coterie.cluster.ray_backend import RayBackend, assign_shards, check_store, costs
from coterie.cluster.shard import outline
from coterie.cluster.start import (
    WorkerHandle,
    _connect,
    _own_signals,
    actor_class,
    check_running,
    check_versions,
    start_workers,
)
from coterie.cluster.worker import job_payload
from coterie.core.errors import UserError
from coterie.engines import Serial
from coterie.training.experiment import Experiment
from forks import BESIDE, ENVIRONMENT
from helpers_cli import DATA, Cli
from laws import FIRST, METHODS, build, kind_like
from modules import Recurrent
from samples import sampled
from several_inputs import ByName, InOrder, module
from several_inputs import federation as several
from shards import assert_close, close
from toys import dropping, experiment, net, ragged

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'coterie[ray]'")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Ray's clusters and what ends them are those of Linux")

STORE = 100 * 2**20
FIVE = ct.Cluster(workers=5)
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # nobody but these tests reaches the cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A machine with eight cores, as far as Ray knows."""
    from ray.cluster_utils import Cluster

    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
    soon |= {"prestart_worker_first_driver": False}  # a process for each core, of which few are needed
    head = {"num_cpus": 8, "object_store_memory": STORE, "include_dashboard": False, "_system_config": soon}
    found = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture(scope="module")
def workers(cluster: Any) -> list[WorkerHandle]:
    """Five workers for all runs of this file: to start one takes four seconds."""
    return start_workers(ray, FIVE, 5)


@pytest.fixture(scope="module")
def expendable(workers: list[WorkerHandle]) -> list[WorkerHandle]:
    """Those that a test may lose, once those tests are over that need all five; who takes one pops it."""
    return workers[2:]


@pytest.fixture
def lent(workers: list[WorkerHandle], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``fit`` has the workers of this file, and they survive that it ends them, which it must as often as it starts."""
    started, ended = [], []

    def start(ray: Any, cluster: ct.Cluster, count: int) -> list[WorkerHandle]:
        started.append(workers[:count])
        return started[-1]

    monkeypatch.setattr("coterie.cluster.start.start_workers", start)
    monkeypatch.setattr(Coordinator, "shut_down", lambda self: ended.append(self.workers))
    yield
    assert ended == started != []


def backend_on(e: Experiment, chosen: list[WorkerHandle], engine: str = "auto") -> RayBackend:
    """An experiment on workers that were started before."""
    shard_of, stacked = assign_shards(costs(e), len(chosen)), outline(e).stacked
    coordinator = Coordinator(ray, FIVE, list(chosen), shard_of, stacked, say=lambda text: None)
    coordinator.prepare(*job_payload(e, "cpu"), engine)
    return RayBackend(e, coordinator)


def of(row: str) -> Experiment:
    kind = kind_like(row, "batchnorm")
    return experiment(net(kind), ragged(kind), build(row), Serial(), rounds=8)


def run(backend: Any, rounds: int = 2) -> tuple[Any, dict[str, Any]]:
    """(where it ends, its last row); the last round is measured."""
    now, row = backend.start(), {}
    for t in range(rounds):
        now, row = backend.run_round(now, t, evaluate=t + 1 == rounds)
    return now, row


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[Any, dict[str, Any]]]:
    """What every method comes to on the serial engine."""
    return {}


FEW = [*(FIRST[name] for name in ("fedavg", "scaffold", "dfedalt", "dfedpgp", "heterofl", "dispfl")), "fedavg, robust"]


@pytest.mark.parametrize(
    ("count", "cases"),
    [
        *(pytest.param(count, cases, id=str(count)) for count, cases in ((1, FEW), (2, FIRST.values()), (5, FEW))),
        *(pytest.param(count, METHODS, id=f"{count}, all", marks=pytest.mark.exhaustive) for count in (1, 2, 5)),
    ],
)
def test_every_method_comes_to_the_same(
    count: int, cases: Iterable[str], workers: list[WorkerHandle], alone: dict[str, Any]
) -> None:
    """Workers take the clients of a few cases side by side, those of the others in turn, which is sooner tried."""
    for row in cases:
        e = of(row)
        if row not in alone:
            now, measured = run(e)
            alone[row] = e.saved(now), measured
        state, measured = alone[row]
        backend = backend_on(e, workers[:count], "auto" if cases is METHODS or row in FEW else "serial")
        now, there = run(backend)
        assert_close(now.state.gathered(), state)
        wrong = {k: (there[k], v) for k, v in measured.items() if not k.endswith("seconds") and not close(there[k], v)}
        assert not wrong, (row, wrong)


def test_workers_drop_the_same(workers: list[WorkerHandle]) -> None:
    e = experiment(dropping("batch first"), ragged("tokens"), build("dfedalt"), Serial())
    assert_close(run(backend_on(e, workers[:2], "vectorized"))[0].state.gathered(), e.saved(run(e)[0]))


def test_workers_train_what_cannot_be_lifted(workers: list[WorkerHandle]) -> None:
    """They choose the serial engine, and leave out what normalization by the batch cannot train on."""
    layers = nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), Recurrent(nn.GRU)
    e = experiment(nn.Sequential(*layers).double(), ragged("mlp", sizes=(9, 4, 1, 5)), build("dfedalt"), Serial())
    backend = backend_on(e, workers[:2])
    assert backend.coordinator.engine == "serial"
    assert_close(run(backend)[0].state.gathered(), e.saved(run(e)[0]))


def test_workers_take_several_inputs(lent: None) -> None:
    """By name and in order."""
    for form in (ByName, InOrder):
        given = {"rounds": 2, "progress": False, "metric": ["accuracy"]}
        method = ct.algorithms.dfedalt(topology="ring", epochs=1, batch_size=3)
        one = ct.fit(module(form), several(form), method, engine="serial", **given)
        other = ct.fit(module(form), several(form), method, engine="ray", cluster=ct.Cluster(workers=2), **given)
        assert_close(other.final, one.final)


@pytest.mark.parametrize("method", ["fedavg", "dfedavg"])
def test_workers_have_constants_beside_the_states(method: str, lent: None, tmp_path: Path) -> None:
    """What is frozen comes with the job, and is in no state, message or checkpoint of a shard."""

    def frozen() -> nn.Module:
        layers: nn.Module = net("mlp")
        next(layers.parameters()).requires_grad_(False)
        return layers

    graph = {"topology": "ring"} if method == "dfedavg" else {"participation": 1.0}
    alg = algorithms.build(method, epochs=1, batch_size=4, **graph)
    how: dict[str, Any] = {"rounds": 2, "progress": False, "device": "cpu"}
    here = ct.fit(frozen(), ragged("mlp"), alg, engine="serial", **how)
    there = ct.fit(frozen(), ragged("mlp"), alg, engine="ray:serial", cluster=FIVE, out=tmp_path / "a", **how)
    name = next(k for k, p in frozen().named_parameters() if not p.requires_grad)
    assert [r["parameters_sent"] for r in there.history] == [r["parameters_sent"] for r in here.history]
    assert not [key for key in there.final if key.endswith(name)]
    for one, other in zip(here.clients, there.clients, strict=True):
        assert name not in other.shared | other.personal
        assert_close(other.module().state_dict(), one.module().state_dict())


def test_workers_learn_numbers(lent: None) -> None:
    """Targets of several numbers, in clients of unequal size, measured by what all workers keep of their samples."""
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    pairs = [(part, part[:, :2].cumsum(1)) for part in x.split((9, 4, 11))]
    fed, model = ct.data.from_tensors(train=pairs, test=pairs), nn.Linear(3, 2)
    method = ct.algorithms.dfedavg(topology="ring", epochs=2, batch_size=4)
    largest = ct.measure.metric(lambda o, y: (o - y).abs().max(), "largest", higher_is_better=False)
    given = {"rounds": 2, "loss": nn.functional.mse_loss, "metric": ["mse", "r2", largest], "progress": False}
    one = ct.fit(model, fed, method, engine="serial", **given)
    other = ct.fit(model, fed, method, engine="ray", cluster=ct.Cluster(workers=2), **given)
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        assert_close(mine.shared | mine.personal, theirs.shared | theirs.personal)
    measured = [k for k in one.history[-1] if k.startswith(("personal_", "global_"))]
    assert {"global_r2", "global_r2_local", "personal_largest_after_train_worst"} <= set(measured)
    for k in measured:
        assert other.history[-1][k] == pytest.approx(one.history[-1][k], rel=1e-5), k  # type: ignore[literal-required]


ROUNDS = 12


def busy() -> Experiment:
    """Rounds that take some time, with exchanges between peers."""
    return experiment(
        net("mlp"), ragged("mlp"), algorithms.dfedavgm(topology="ring", epochs=20, batch_size=4), Serial()
    )


def pids(chosen: list[WorkerHandle]) -> list[int]:
    return [ray.get(w.actor.__ray_call__.remote(lambda self: os.getpid())) for w in chosen]


def later(seconds: float, harm: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, harm)
    timer.start()
    return timer


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    """To the last bit."""
    assert left.keys() == right.keys()
    for k, v in right.items():
        torch.testing.assert_close(left[k], v, rtol=0, atol=0, equal_nan=True, msg=lambda m, k=k: f"{k}: {m}")


@pytest.fixture(scope="module")
def undisturbed(workers: list[WorkerHandle]) -> tuple[dict[str, torch.Tensor], float]:
    """(where three workers come to when nobody is lost, the seconds that takes)."""
    began = time.monotonic()
    now, _ = run(backend_on(busy(), workers[:3]), ROUNDS)
    return now.state.gathered(), time.monotonic() - began


def disturbed(backend: Any, draw: random.Random, seconds: float, harm: Callable[[], object]) -> Any:
    """Where a run ends; ``harm`` comes at a random moment of a random round, early enough to meet a run under way."""
    now, struck = backend.start(), draw.randrange(ROUNDS // 2)
    for t in range(ROUNDS):
        if t == struck:
            timer = later(draw.uniform(0, seconds / ROUNDS), harm)
        now, _ = backend.run_round(now, t, evaluate=t + 1 == ROUNDS)
    timer.join()
    return now


def test_a_worker_that_is_stopped_is_told_of(workers: list[WorkerHandle], monkeypatch: pytest.MonkeyPatch) -> None:
    """All wait for it, and nobody would know why; as soon as it goes on, so do they."""
    monkeypatch.setattr("coterie.cluster.coordinator.PATIENCE", 0.5)
    monkeypatch.setattr("coterie.cluster.coordinator.TIMEOUT", 3.0)
    said: list[str] = []
    backend = backend_on(busy(), workers[:2])
    backend.coordinator.say = said.append
    now = backend.start()
    os.kill(workers[1].process, signal.SIGSTOP)
    timer = later(3.0, lambda: os.kill(workers[1].process, signal.SIGCONT))
    backend.run_round(now, 0, evaluate=False)
    timer.join()
    assert said == [
        f"the worker of process {workers[1].process} has not answered for 0.5 s, and all wait for it: let it go on if "
        "it was stopped, or kill it, and the others take over its clients"
    ]


def test_signals_do_what_they_did_before_ray() -> None:
    """Ray has a way of its own out of SIGTERM, which saves nothing."""
    before = signal.getsignal(signal.SIGTERM)
    with _own_signals():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_part_of_ray_that_has_ended_is_told_of(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_running()
    node = types.SimpleNamespace(dead_processes=lambda: [("raylet", None)])
    monkeypatch.setattr(sys.modules["ray._private.worker"], "_global_node", node)
    with pytest.raises(UserError, match=r"raylet has ended.*--resume"):
        check_running()


@pytest.mark.hostile
@pytest.mark.parametrize("seed", sampled([(seed,) for seed in range(20)], [(0,)]))
def test_a_lost_worker_loses_no_client(
    seed: int,
    workers: list[WorkerHandle],
    expendable: list[WorkerHandle],
    undisturbed: tuple[dict[str, torch.Tensor], float],
) -> None:
    """At a random moment; those that are left end where all would have ended, to the last bit."""
    draw = random.Random(seed)
    state, seconds = undisturbed
    victim = expendable.pop() if expendable else start_workers(ray, FIVE, 1)[0]
    chosen = [*workers[:2], victim]
    draw.shuffle(chosen)
    pid = pids([victim])[0]
    said: list[str] = []
    backend = backend_on(busy(), chosen)
    backend.coordinator.say = said.append
    now = disturbed(backend, draw, seconds, lambda: os.kill(pid, signal.SIGKILL))
    assert_equal(now.state.gathered(), state)
    assert "a worker was lost" in said[0]
    assert len(backend.coordinator.workers) == 2
    print(f"lost after {said[0].split()[-1]} of {ROUNDS} rounds")


@pytest.mark.hostile
@pytest.mark.parametrize("seed", sampled([(seed,) for seed in range(5)], [(0,)]))
def test_a_lost_machine_loses_no_client(
    seed: int, cluster: Any, workers: list[WorkerHandle], undisturbed: tuple[dict[str, torch.Tensor], float]
) -> None:
    """Two of three workers and their object store at once, at a random moment."""
    state, seconds = undisturbed
    draw = random.Random(f"machine {seed}")
    node = cluster.add_node(num_cpus=2, object_store_memory=STORE, resources={"second": 2})
    there = [actor_class(ray, FIVE).options(resources={"second": 1}).remote(sys.path) for _ in range(2)]
    chosen = [workers[0], *check_versions(ray, there)]
    assert [w.node == workers[0].node for w in chosen] == [True, False, False]
    backend = backend_on(busy(), chosen)
    now = disturbed(backend, draw, seconds, lambda: cluster.remove_node(node, allow_graceful=False))
    assert_equal(now.state.gathered(), state)
    assert backend.coordinator.workers == [workers[0]]


def test_a_state_beyond_what_ray_keeps_at_the_driver_outlives_its_machine(
    cluster: Any, workers: list[WorkerHandle]
) -> None:
    """Ray keeps small states at the driver; a large one is gone with its machine, unless another has a copy."""
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE, resources={"third": 1})
    there = actor_class(ray, FIVE).options(resources={"third": 1}).remote(sys.path)
    wide = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 2000, dtype=torch.float64), nn.Linear(2000, 3, dtype=torch.float64)
    )
    algorithm = algorithms.dfedavg(topology="ring", epochs=1, batch_size=4)
    e = experiment(wide, ragged("mlp"), algorithm, Serial())
    backend = backend_on(e, [workers[0], *check_versions(ray, [there])])
    now, _ = backend.run_round(backend.start(), 0, evaluate=False)
    cluster.remove_node(node, allow_graceful=False)
    now, _ = backend.run_round(now, 1, evaluate=False)
    alone = e.start()
    for t in range(2):
        alone, _ = e.run_round(alone, t, evaluate=False)
    assert_close(now.state.gathered(), e.saved(alone))


class Hungry(torch.nn.Sequential):
    """Asks for more memory than there is, once, when the file is there."""

    def __init__(self, flag: Path, *layers: torch.nn.Module) -> None:
        super().__init__(*layers)
        self.flag = flag

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.flag.unlink()
        except FileNotFoundError:
            answer: torch.Tensor = super().forward(x)
            return answer
        return torch.empty(2**45)


def test_a_worker_without_memory_loses_no_client(
    tmp_path: Path, workers: list[WorkerHandle], expendable: list[WorkerHandle]
) -> None:
    """It is ended, and its clients go to the others."""
    flag = tmp_path / "hungry"
    fed = ragged("mlp")
    algorithm = algorithms.dfedavg(topology="ring", epochs=1, batch_size=4)
    e = experiment(Hungry(flag, *net("mlp")), fed, algorithm, Serial())
    state = run(backend_on(e, workers[:2]))[0].state.gathered()
    some = [expendable.pop() for _ in range(2)] if len(expendable) > 1 else start_workers(ray, FIVE, 2)
    backend = backend_on(e, some)
    now = backend.start()
    now, _ = backend.run_round(now, 0, evaluate=False)
    flag.touch()
    now, _ = backend.run_round(now, 1, evaluate=True)
    assert not flag.exists()
    assert len(backend.coordinator.workers) == 1
    assert_equal(now.state.gathered(), state)
    backend.coordinator.shut_down()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get([w.actor.about.remote() for w in some])


CHANGES = {
    "fewer, then more": ("ray", 1, "auto", 2),  # it goes on as it began
    "then none": ("ray", 2, "serial", None),
    "none, then some": ("serial", None, "ray", 2),
}


MINE = """
from dataclasses import dataclass
from typing import Unpack
from coterie.method import Correction, Options, Peers, Phase, Problem, Program, Training, decentralized, method

@dataclass(frozen=True)
class Half(Correction):
    def direction(self, grad, aux):
        def halved(x, held, batch):
            g, seen = grad(x, held, batch)
            return {k: v / 2 for k, v in g.items()}, seen
        return halved

@method()
def gossip(p: Problem, t: Training, *, topology: str = "ring", **options: Unpack[Options]) -> Program[Peers]:
    return decentralized(p, [Phase(p.parameters, t.amount, t.lr, (Half(),))], t, topology, p.names)
"""


class TestRuns:
    """The loop around it: run folders, errors, the command line."""

    FED = ct.data.federate("synthetic:size=300,classes=4", clients=6, partition="dirichlet:0.5", seed=1)
    ALG = ct.algorithms.dfedalt(topology="ring", epochs=1, batch_size=16)

    def fit(self, rounds: int, out: Path, engine: str, resume: bool = False, workers: int | None = None) -> ct.Run:
        module = ct.models.build("mlp", self.FED, seed=0)
        where = {"engine": engine, "cluster": ct.Cluster(workers) if workers else None}
        return ct.fit(module, self.FED, self.ALG, rounds=rounds, out=out, resume=resume, progress=False, **where)

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_goes_on_elsewhere(
        self, lent: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, Any, str, Any]
    ) -> None:
        """Begun on some workers, continued on others, or without Ray, or only then with it."""
        whole = self.fit(4, tmp_path / "whole", "serial")

        class Interrupted(BaseException):
            pass

        def update(self: Any, row: Any) -> None:
            if row["round"] == 2:
                raise Interrupted

        first, before, then, after = change
        with monkeypatch.context() as patch:
            patch.setattr("coterie.track.progress.Progress.update", update)
            with pytest.raises(Interrupted):
                self.fit(4, tmp_path / "a", first, workers=before)
        assert len(list((tmp_path / "a/checkpoint").glob("round-000002*"))) == 1 + (before or 1)
        again = self.fit(4, tmp_path / "a", then, resume=True, workers=after)
        assert again.config["engine"].startswith("ray" if after else "serial")
        assert_close(again.final, whole.final)
        assert len(again.history) == 4
        for one, other in zip(again.clients, whole.clients, strict=True):
            assert_close(one.shared | one.personal, other.shared | other.personal)
        assert [p.name for p in sorted((tmp_path / "a/clients").iterdir())] == [
            p.name for p in sorted((tmp_path / "whole/clients").iterdir())
        ]

    def test_an_error_of_the_users_module(self, lent: None) -> None:
        """The same exception, with the user's own lines and the client."""

        class Touchy(torch.nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if self.training and (x == 7).any():
                    raise ZeroDivisionError("I do not like it")
                return super().forward(x)

        x = torch.zeros(12, 3)
        x[9] = 7
        y = torch.arange(12) % 2
        pairs = [(x[k : k + 3], y[k : k + 3]) for k in range(0, 12, 3)]
        fed = ct.data.from_tensors(train=pairs, test=pairs, classes=2)
        algorithm = ct.algorithms.dfedavg(topology="ring", epochs=1)
        for engine in ("serial", "ray:serial"):
            more = {"cluster": ct.Cluster(workers=2)} if engine != "serial" else {}
            with pytest.raises(ZeroDivisionError, match="I do not like it") as caught:
                ct.fit(Touchy(3, 2), fed, algorithm, rounds=1, engine=engine, progress=False, **more)
            notes = "\n".join(caught.value.__notes__)
            assert "client 3" in notes
        assert "in forward" in notes
        assert "test_ray.py" in notes

    def test_a_module_the_workers_do_not_have(self, lent: None) -> None:
        gone = types.ModuleType("gone")
        exec("import torch\nclass Net(torch.nn.Linear): pass", vars(gone))
        sys.modules["gone"] = gone
        try:
            with pytest.raises(UserError, match="the workers have no module 'gone'"):
                ct.fit(
                    gone.Net(20, 4), self.FED, self.ALG, rounds=1, engine="ray", cluster=ct.Cluster(1), progress=False
                )
        finally:
            del sys.modules["gone"]

    @pytest.mark.skipif(
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="children would not hear Ctrl-C either"
    )
    def test_typed_interrupted_and_resumed(self, cluster: Any, cli: Cli, tmp_path: Path) -> None:
        """Ctrl-C in the middle, then the printed command, on another engine; the end is that of one machine.

        The method is one of the user's own file, which the workers have to find, too.
        """
        (tmp_path / "mine_of_ray.py").write_text(MINE)
        own = "mine_of_ray:gossip"
        typed = ["run", own, *DATA, "--clients", "5", "--topology", "ring", "--rounds", "100", "--set", "steps=1"]
        where = ["--engine", "ray", "--ray-address", cluster.address, "--workers", "1"]
        command = [BESIDE / "coterie", *typed, *where, "--out", "a"]
        with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as begun:
            assert begun.stderr is not None
            said = list(itertools.takewhile(lambda line: "round 1/100" not in line, begun.stderr))
            begun.send_signal(signal.SIGINT)
            said += begun.stderr.readlines()
        assert begun.wait() == 130, said
        assert any(f"coterie run a --resume --trust {own}" in line for line in said), said
        assert not any("Traceback" in line for line in said), said
        cli.succeed("run", "a", "--resume", "--trust", own, "--engine", "serial", cwd=tmp_path)
        cli.succeed(*typed, "--engine", "serial", "--out", "whole", cwd=tmp_path)
        assert_close(ct.load(tmp_path / "a").final, ct.load(tmp_path / "whole").final)


def test_every_client_of_every_round_is_kept(lent: None) -> None:
    """Two workers keep of single clients what one process keeps."""
    fed, alg = TestRuns.FED, TestRuns.ALG
    kept, training = [], []
    for where in ({"engine": "serial"}, {"engine": "ray:serial", "cluster": ct.Cluster(workers=2)}):
        net = ct.models.build("mlp", fed)
        run = ct.fit(net, fed, alg, rounds=2, progress=False, record=["clients", "own-train"], **where)  # type: ignore[arg-type]
        kept.append(run.client_history())
        training.append([run.history[-1][f"personal_accuracy_train_{p}"] for p in ("after_mix", "after_train")])
    assert kept[0].shape == (2, fed.clients)
    np.testing.assert_allclose(kept[1], kept[0], atol=1e-5)
    np.testing.assert_allclose(training[1], training[0], atol=1e-5)


def test_what_is_wrong_is_one_sentence(lent: None) -> None:
    fed, alg = TestRuns.FED, TestRuns.ALG

    def refused(match: str, **more: Any) -> None:
        with pytest.raises(UserError, match=match) as caught:
            ct.fit(ct.models.build("mlp", fed), fed, alg, rounds=1, progress=False, **more)
        assert "\n" not in str(caught.value)

    refused("3 workers need 3 GPUs, the cluster has 0", engine="ray", cluster=ct.Cluster(workers=3, gpus_per_worker=1))
    refused("--workers is for a Ray cluster", cluster=ct.Cluster(workers=2))
    refused("unknown engine 'fast'", engine="ray:fast", cluster=ct.Cluster(workers=1))
    refused(
        "--record gradients is not measured on a cluster", engine="ray", cluster=ct.Cluster(1), record=["gradients"]
    )


def test_nobody_at_the_address() -> None:
    """Without waiting for Ray, which would try for minutes."""
    for address, said in (("127.0.0.1:9", "no Ray cluster at 127.0.0.1:9"), ("nonsense", "is no address")):
        with pytest.raises(UserError, match=said):
            _connect(ray, ct.Cluster(address=address))


def test_other_versions_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.9\n    Python: 3.12\nThis process"
        )

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UserError, match=r"runs other versions .*Ray: 2.9; Python: 3.12.*: install the same$"):
        _connect(ray, ct.Cluster(address="auto"))


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("count", [2, 5, 8])
def test_shards_have_equally_much_to_do(alpha: float, count: int) -> None:
    """Unequal sizes and capacities together: the slowest shard within a fifth of the mean."""
    fed = ct.data.federate("synthetic:size=4000", clients=100, partition=f"dirichlet-by-class:{alpha}", seed=0)
    algorithm = algorithms.heterofl(capacities="1-0.5-0.25", participation=1.0)
    e = experiment(ct.models.build("mlp", fed), fed, algorithm)
    cost = costs(e)
    assert len(set(cost / e.train.sizes)) == 3
    load = np.bincount(assign_shards(cost, count), weights=cost)
    assert load.max() <= 1.2 * load.mean()


def test_samples_lie_once_on_a_machine(workers: list[WorkerHandle]) -> None:
    """Every worker looks into the object store, and none has a copy."""
    fed = ct.data.federate("synthetic:size=4000", clients=10, partition="iid", seed=0)
    backend_on(experiment(ct.models.build("logreg", fed), fed, algorithms.local()), workers[:2])

    def where(self: Any) -> str:
        at = self.experiment.federation.x.data_ptr()
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= at < last:
                return line
        return ""

    found = ray.get([w.actor.__ray_call__.remote(where) for w in workers[:2]])
    assert all("/dev/shm/plasma" in line for line in found), found


def stored() -> float:
    """MiB in the object store, as the machine reports it about once a second."""
    time.sleep(1.5)
    there, free = ray.cluster_resources(), ray.available_resources()
    return float(there["object_store_memory"] - free["object_store_memory"]) / 2**20


def resident(pid: int) -> float:
    """MiB of a process that are its own."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]


@pytest.mark.parametrize("rounds", sampled([(40,), (200,)], [(40,)]))
def test_memory_stays_flat(rounds: int, workers: list[WorkerHandle]) -> None:
    """States of 8 MB a round are freed: after the first rounds neither the object store nor a worker grows."""
    fed = ct.data.federate("synthetic:size=300", clients=10, partition="iid", seed=0)
    module = ct.models.build("mlp:width=400", fed)
    algorithm = algorithms.dfedavg(topology="ring", steps=1, batch_size=16)
    backend = backend_on(experiment(module, fed, algorithm, Serial(), rounds=rounds), workers[:2])
    processes = [os.getpid(), *pids(workers[:2])]
    now = backend.start()
    seen = []
    for t in range(rounds):
        now, _ = backend.run_round(now, t, evaluate=False)
        if t in (rounds // 4 - 1, rounds // 2 - 1, rounds - 1):
            seen.append((stored(), *map(resident, processes)))
    print(f"object store, this process and workers in MiB after 1/4, 1/2 and all of {rounds} rounds:", seen)
    assert max(row[0] for row in seen) < 40
    assert seen[0][0] > 5
    for early, late in zip(seen[0], seen[-1], strict=True):
        assert late < early + 20, seen


def test_a_state_beyond_the_store_is_spilled(workers: list[WorkerHandle]) -> None:
    """Twice as large as the object store: slower, with a warning, and right."""
    fed = ct.data.federate("synthetic:size=300", clients=10, partition="iid", seed=0)
    module = ct.models.build("mlp:width=1700", fed)
    algorithm = algorithms.dfedavg(topology="none", steps=1, batch_size=4)
    e = experiment(module, fed, algorithm, Serial(), rounds=3)
    size = outline(e).bytes * fed.clients
    said: list[str] = []
    check_store(ray, size, said.append)
    assert "is spilled to its disk" in said[0]
    assert size > STORE
    backend = backend_on(e, workers[:2], "serial")
    now, then = backend.start(), e.start()
    for t in range(2):
        now, _ = backend.run_round(now, t, evaluate=False)
        then, _ = e.run_round(then, t, evaluate=False)
    assert_close(now.state.gathered(), e.saved(then))
