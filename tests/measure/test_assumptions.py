"""What theorems assume, estimated in a run of any size: against closed forms on the quadratic, on every engine."""

from typing import Any

import pytest
import torch

import coterie as ct
from coterie.data.batches import Samples
from coterie.engines import Serial, Vectorized
from coterie.measure.assumptions import estimate
from coterie.measure.sharpness import top_eigenvalue
from coterie.models.model import Model, cross_entropy
from coterie.papers.theory.partial import partial_gradients, smoothness
from coterie.papers.theory.quadratic import quadratic
from coterie.papers.theory.server import norms
from coterie.papers.theory.trajectory import run_trajectory
from coterie.training.experiment import Experiment
from helpers_cli import SMALL, Cli
from toys import net, ragged

PLAIN: dict[str, Any] = {
    "personal": "v",
    "lr": 0.05,
    "steps": 3,
    "batch_size": 1,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "lr_decay": 1.0,
}


@pytest.mark.parametrize("engine", [Serial(), Vectorized(4)])
def test_deltas_are_taken_where_the_papers_take_them(engine: Any) -> None:
    problem = quadratic(clients=4, seed=3)
    alg = ct.algorithms.dfedpgp(topology="random-push:2", personal_steps=2, personal_lr=0.05, **PLAIN)
    e = Experiment.of(problem.model, problem.federation, alg, engine, 0, 3, record=["deltas", "mass"])
    e.check()
    expected = partial_gradients(problem, run_trajectory(problem, alg, 3, seed=0))
    graph = ct.topology.build("random-push:2", 4, 0)
    now, mu = e.start(), torch.ones(4, dtype=torch.float64)
    for t in range(3):
        now, row = e.run_round(now, t, evaluate=True)
        assert row["delta_u"] == pytest.approx(float(expected.delta_u[t]))
        assert row["delta_v"] == pytest.approx(float(expected.delta_v[t]))
        mu = graph(t) @ mu
        assert (row["mass_least"], row["mass_greatest"]) == pytest.approx((float(mu.min()), float(mu.max())))
    assert float(mu.max()) > 1.01  # or nothing was seen


def test_around_a_server_the_deltas_have_the_old_shared_and_the_new_personal_part() -> None:
    problem = quadratic(clients=3, seed=1)
    alg = ct.algorithms.fedavg_p(participation=1.0, personal_lr=0.05, **PLAIN)
    e = Experiment.of(problem.model, problem.federation, alg, Serial(), 0, 2, record=["deltas"])
    _, row = e.run_round(e.start(), 0, evaluate=True)
    p = run_trajectory(problem, alg, 2, seed=0)
    assert row["delta_u"] == pytest.approx(float(partial_gradients(problem, p).delta_u[0]))
    assert row["delta_u"] != pytest.approx(float(norms(problem, p).shared[0]))


def test_push_sums_mass_is_seen_behind_quantized_messages() -> None:
    problem = quadratic(clients=4)
    alg = ct.algorithms.osgp(
        topology="random-push:2", **{k: v for k, v in PLAIN.items() if k != "personal"}, quantize=8
    )
    e = Experiment.of(problem.model, problem.federation, alg, Serial(), 0, 1, record=["mass"])
    e.check()
    _, row = e.run_round(e.start(), 0, evaluate=True)
    assert row["mass_least"] < 1 < row["mass_greatest"]


@pytest.mark.parametrize("engine", [Serial(), Vectorized(4)])
def test_constants_of_the_quadratic(engine: Any) -> None:
    problem = quadratic(clients=3, seed=2, dim=3, noise=0.6, spread=0.8, coupling=0.3)
    g = torch.Generator().manual_seed(0)
    w = torch.randn(3, 6, generator=g, dtype=torch.float64)
    models = {"u": w[:, :3], "v": w[:, 3:]}
    fed = problem.federation
    found = estimate(engine, problem.model, models, Samples(fed.x, fed.y, fed.train), frozenset({"u"}))
    gradients = problem.gradients(w)[:, :3]
    apart = gradients.square().sum(1).mean() - gradients.mean(0).square().sum()
    assert found.objective == pytest.approx(problem.value(w))
    assert found.smoothness == pytest.approx(float(torch.linalg.eigvalsh(problem.hessian())[-1]), rel=1e-3)
    assert found.smoothness >= smoothness(problem).largest - 1e-3
    assert found.dissimilarity == pytest.approx(float(apart))
    assert found.noise_shared == pytest.approx(0.36, rel=0.3)  # 32 of 64 samples of each of three clients
    assert found.noise_personal == pytest.approx(0.36, rel=0.3)


def test_clients_that_are_alike_have_no_dissimilarity() -> None:
    """The mean of equal gradients is each of them; rounding does not make the difference negative."""
    problem = quadratic(clients=3, seed=2, dim=3, noise=0.0, spread=0.0, coupling=0.3)
    models = {"u": torch.full((3, 3), 0.1, dtype=torch.float64), "v": torch.full((3, 3), 0.7, dtype=torch.float64)}
    fed = problem.federation
    found = estimate(Serial(), problem.model, models, Samples(fed.x, fed.y, fed.train), frozenset({"u"}))
    assert found.dissimilarity == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", ["mlp", "groupnorm"])
def test_engines_agree_on_the_constants_of_a_network_with_unequal_clients(kind: str) -> None:
    fed, rows = ragged(kind), []
    for engine in (Serial(), Vectorized(4)):
        e = Experiment.of(
            Model(net(kind), cross_entropy),
            fed,
            ct.algorithms.fedper(epochs=1, participation=1.0),
            engine,
            0,
            1,
            record=["constants"],
        )
        now, row = e.run_round(e.start(), 0, evaluate=True)
        rows.append({k: row[k] for k in ("objective", "smoothness", "dissimilarity", "noise_shared", "noise_personal")})
    assert rows[0] == pytest.approx(rows[1], rel=1e-6)
    assert min(rows[0].values()) > 0
    exact = top_eigenvalue(Serial(), e.model, e.program.models(now.state), e.train, iterations=20).abs()
    assert rows[0]["smoothness"] == pytest.approx(float(exact.max()), rel=1e-3)


def test_mass_is_refused_where_there_is_none(cli: Cli, tmp_path: Any) -> None:
    cli.refuse("run", "dfedalt", *SMALL, "--record", "mass", cwd=tmp_path, names=("push-sum", "dfedpgp"))
    cli.refuse("run", "dfedalt", *SMALL, "--record", "delta", cwd=tmp_path, names=("did you mean deltas",))
