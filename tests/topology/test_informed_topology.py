"""A topology that follows from what the clients have trained: their losses, or the models that they send."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie import topology
from coterie.engines import Serial, Vectorized
from law import a, b, c, d, descend
from quadratic import close, plain, shared_only
from toys import PLAIN, experiment, golden, play, scattered

SEEN: list[dict[str, Tensor]] = []
ENGINES = pytest.mark.parametrize("engine", [Serial(), Vectorized(3)], ids=["serial", "vectorized"])


def best(t: int, losses: Tensor) -> Tensor:
    """Every client takes half of the model with the smallest loss."""
    SEEN.append({"losses": losses})
    chosen = int(losses.nan_to_num(torch.inf).argmin())
    return (torch.eye(len(losses), dtype=torch.float64) + torch.eye(len(losses), dtype=torch.float64)[[chosen]]) / 2


def nearest(t: int, models: Tensor) -> Tensor:
    """Every client takes half of the model that is nearest to its own."""
    distances = torch.cdist(models, models) + torch.diag(torch.full((len(models),), torch.inf, dtype=torch.float64))
    unit = torch.eye(len(models), dtype=torch.float64)
    return (unit + unit[distances.argmin(1)]) / 2


def run(graph: Any, engine: Any, rounds: int = 1, **settings: Any) -> Any:
    e = experiment(shared_only(), golden(), plain("dfedavg", topology=graph, steps=1, **settings), engine)
    return e, play(e, rounds, scattered(e))


@ENGINES
def test_losses_choose_the_graph_in_closed_form(engine: Any) -> None:
    """The loss of the only step is that of the start: a/2 (u - b)^2 + c/2 (v - d)^2, with v frozen."""
    SEEN.clear()
    e, now = run(best, engine)
    start = scattered(e).state.x["u"].numpy()
    trained = descend(start, a, b, e.algorithm.settings["lr"], 1)
    losses = SEEN[-1]["losses"].numpy()
    v = float(e.model.module.v)
    np.testing.assert_allclose(losses, a / 2 * (start - b) ** 2 + c / 2 * (v - d) ** 2, atol=1e-12)
    expected = (trained + trained[losses.argmin()]) / 2
    close(now.state.x["u"], torch.from_numpy(expected))


@ENGINES
def test_models_choose_the_graph_in_closed_form(engine: Any) -> None:
    e, now = run(nearest, engine)
    trained = descend(scattered(e).state.x["u"].numpy(), a, b, e.algorithm.settings["lr"], 1)
    distances = np.abs(trained[:, None] - trained[None]) + np.diag([np.inf] * 4)
    close(now.state.x["u"], torch.from_numpy((trained + trained[distances.argmin(1)]) / 2))


def test_every_exchange_of_a_round_and_its_messages_follow_it() -> None:
    """Three exchanges over the same W: the best sends to the three others each time."""
    settings = {**PLAIN, "topology": best, "steps": 1, "gossip_steps": 3}
    e = experiment(shared_only(), golden(), ct.algorithms.build("dfedsam", rho=0.0, **settings), Serial())
    now, row = e.run_round(scattered(e), 0, evaluate=True)
    assert row["messages_sent"] == 9
    trained = descend(scattered(e).state.x["u"].numpy(), a, b, e.algorithm.settings["lr"], 1)
    chosen = trained[SEEN[-1]["losses"].numpy().argmin()]
    close(now.state.x["u"], torch.from_numpy(chosen + (trained - chosen) / 8))


def test_a_client_that_does_not_train_has_no_loss() -> None:
    SEEN.clear()
    run(best, Serial(), rounds=3, participation=2)
    drawn = [int(each["losses"].isnan().sum()) for each in SEEN if each["losses"].isnan().any()]
    assert drawn == [2, 2, 2]


def test_a_restored_run_goes_on_to_the_same_bits() -> None:
    e, now = run(nearest, Serial(), rounds=4)
    half = play(e, 2, scattered(e))
    for t in (2, 3):
        half, _ = e.run_round(half, t, evaluate=False)
    assert torch.equal(half.state.x["u"], now.state.x["u"])


def test_what_no_place_has_is_refused_and_checked() -> None:
    with pytest.raises(ct.UserError, match="negative or no number"):
        topology.build(lambda t, losses: torch.eye(3) * (losses + torch.nan), 3)
    with pytest.raises(ct.UserError, match="write a function of the round t"):
        topology.build(lambda t, gradients: torch.eye(3), 3)
    graph = topology.build(best, 4)
    assert graph.uses == {"losses"}
    assert not graph.fixed
    assert graph(0).equal(best(0, torch.zeros(4, dtype=torch.float64)))
