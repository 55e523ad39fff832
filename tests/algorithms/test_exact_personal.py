"""Noise on the shared part alone: FedAvg-P's and Scaffold-P's personal gradients over all samples."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms.fedavg_p import P_PAPER
from coterie.core.errors import UserError
from coterie.data.batches import Batches
from coterie.engines import Serial, Vectorized
from coterie.training.experiment import Experiment
from coterie.training.schedule import forecast
from toys import experiment, net, play, ragged

SIZES, BATCH, K, ROUNDS = (5, 9, 4), 3, 4, 3
RATES: dict[str, Any] = {"lr": 0.05, "personal_lr": 0.08, "outer_lr": 1.5, "personal_outer_lr": 1.2}
SETTINGS: dict[str, Any] = {"personal": "v", "batch_size": BATCH, "steps": K, "exact_personal": True, **RATES}


class Split(nn.Module):
    """(a.u + b.v - y)^2 / 2 of samples (a, b, y)."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = (nn.Parameter(torch.full((2,), x, dtype=torch.float64)) for x in (0.3, -0.2))

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :2] @ self.u + x[:, 2:4] @ self.v - x[:, 4]) ** 2 / 2


def problem() -> tuple[ct.data.Federation, list[NDArray[np.float64]]]:
    rng = np.random.default_rng(4)
    data = [rng.standard_normal((n, 5)) for n in SIZES]
    pairs = [(torch.from_numpy(d), torch.zeros(len(d), dtype=torch.float64)) for d in data]
    return ct.data.from_tensors(train=pairs, test=pairs), data


def gradients(d: NDArray[np.float64], u: Any, v: Any) -> tuple[Any, Any]:
    """Of both parts, the mean over some samples, by hand."""
    error = d[:, :2] @ u + d[:, 2:4] @ v - d[:, 4]
    return d[:, :2].T @ error / len(d), d[:, 2:4].T @ error / len(d)


def orders(e: Experiment, t: int, stream: int, batch_size: int | None) -> list[list[Any]]:
    """Which of a client's own samples each step sees, client by client: all that is read from the package."""
    r = e.round(t)
    batches: Batches = r.batches(stream, P_PAPER.amount._replace(steps=K), batch_size)
    streams = [batches.one(i) for i in range(len(SIZES))]
    starts = np.concatenate([[0], np.cumsum(SIZES)])
    return [[s.index[k, : s.widths[k]].numpy() - starts[i] for k in range(K)] for i, s in enumerate(streams)]


@pytest.mark.parametrize("method", ["fedavg-p", "scaffold-p"])
@pytest.mark.parametrize("engine", [Serial(), Vectorized(3)], ids=["serial", "vectorized"])
def test_against_a_second_implementation(method: str, engine: Any) -> None:
    fed, data = problem()
    e = experiment(Split(), fed, ct.algorithms.build(method, participation=1.0, **SETTINGS), engine)
    state = play(e, ROUNDS).state
    u, v = np.full(2, 0.3), [np.full(2, -0.2) for _ in SIZES]
    c_i = [np.zeros(2) for _ in SIZES]
    if method == "scaffold-p":  # noisy gradients of u at the start
        first = orders(e, 0, 2, BATCH)
        c_i = [np.mean([gradients(d[o], u, v[0])[0] for o in mine], 0) for d, mine in zip(data, first, strict=True)]
    c = np.mean(c_i, 0)
    for t in range(ROUNDS):
        ends = []
        for i, mine in enumerate(orders(e, t, 0, None)):
            x, y = u, v[i]
            for order in mine:
                noisy, exact = gradients(data[i][order[:BATCH]], x, y)[0], gradients(data[i], x, y)[1]
                correction = c - c_i[i] if method == "scaffold-p" else 0.0
                x, y = x - RATES["lr"] * (noisy + correction), y - RATES["personal_lr"] * exact
            ends.append(x)
            v[i] = v[i] + RATES["personal_outer_lr"] * (y - v[i])
        if method == "scaffold-p":
            c_i = [old - c + (u - x) / (K * RATES["lr"]) for old, x in zip(c_i, ends, strict=True)]
            c = np.mean(c_i, 0)
        u = u + RATES["outer_lr"] * (np.mean(ends, 0) - u)
    np.testing.assert_allclose(state.u["u"].numpy(), u, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state.v["v"].numpy(), np.stack(v), rtol=0, atol=1e-12)


def test_the_shared_samples_are_drawn_evenly() -> None:
    """Each of a client's samples is among the first of a shuffled batch equally often."""
    fed, _ = problem()
    e = experiment(Split(), fed, ct.algorithms.fedavg_p(participation=1.0, **SETTINGS))
    chosen = np.concatenate([o[:BATCH] for t in range(150) for o in orders(e, t, 0, None)[1]])
    counts = np.bincount(chosen, minlength=SIZES[1])
    assert counts.sum() == 150 * K * BATCH
    assert abs(counts - counts.mean()).max() < 60  # of 200; 5 standard deviations are 58


def test_both_gradients_are_counted() -> None:
    """All samples of a client in every step, and once more those of the batch; as it is run and as it is foreseen."""
    fed, _ = problem()
    e = experiment(Split(), fed, ct.algorithms.fedavg_p(participation=1.0, **SETTINGS))
    ((_, passes),) = e.program.train(e.start().state, e.round(0)).passes
    assert passes == K * sum(n + min(n, BATCH) for n in SIZES)
    assert forecast(e).flops == e.settings.rounds * passes * e.flops_per_sample(e.model)


def test_it_differs_from_noise_on_both_and_from_none() -> None:
    fed, _ = problem()
    ends = [
        play(experiment(Split(), fed, ct.algorithms.fedavg_p(participation=1.0, **{**SETTINGS, **other})), 2).state
        for other in ({}, {"exact_personal": False}, {"exact_personal": False, "batch_size": None})
    ]
    assert len({float(s.v["v"][0, 0]) for s in ends}) == 3


@pytest.mark.parametrize("method", ["fedavg_p", "scaffold_p"])
def test_where_it_says_nothing_it_is_refused(method: str) -> None:
    build = getattr(ct.algorithms, method)
    with pytest.raises(UserError, match="changes nothing without batches"):
        build(exact_personal=True)
    with pytest.raises(UserError, match="give steps, not epochs"):
        build(exact_personal=True, batch_size=4, epochs=1)
    for personal in ("none", "*"):
        algorithm = build(exact_personal=True, batch_size=4, personal=personal)
        with pytest.raises(UserError, match="leaves one of them empty"):
            experiment(net("mlp"), ragged("mlp"), algorithm)
