"""Corrections compose by name: every pair of four, in both orders, in closed form on the quadratic, to 1e-12."""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from coterie.algorithms.base import Algorithm, Problem, Program
from coterie.algorithms.options import Training
from coterie.algorithms.peers import decentralized
from coterie.algorithms.pushsum import push_sum
from coterie.algorithms.server import federated
from coterie.core.errors import UserError
from coterie.engines import Serial, Vectorized
from coterie.local.corrections import control_variate, debiased, masked, proximal, sam
from coterie.local.steps import Correction, Phase
from law import PUSH, RING, Floats, a, b, descend
from test_engines import graphed_for
from test_oracles_papers import shared_only
from toys import PLAIN, experiment, golden

ENGINES = pytest.mark.parametrize(
    "engine", [Serial(), Vectorized(3), graphed_for(3)], ids=["serial", "vectorized", "graphed"]
)
RHO, LAM, LR, STEPS = 0.1, 0.5, 0.05, 3
CONTROL = np.array([0.3, -30.0, 0.4, -0.1])  # the second outweighs its gradient
MU = np.array([0.8, 1.25, 0.5, 2.0])
START = np.array([8.0, 9.0, 10.0, 9.0])  # far from b: nobody crosses its minimum on the way

CORRECTIONS: dict[str, tuple[Correction, ...]] = {
    "sam": sam(RHO),
    "proximal": proximal(LAM),
    "control": control_variate(),
    "push-sum": debiased(frozenset("u")),
}
T = Training().with_options({**PLAIN, "lr": LR, "steps": STEPS})

# For each order how steep the way of u is and where it leads, from the reference r and the weight mu. The first of a
# pair is applied to the gradient, the second to what came out of that. ``up`` is the sign of what SAM climbs along.
Way = Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]
WAYS: dict[tuple[str, ...], Way] = {
    ("sam", "proximal"): lambda up, r, mu: (a + LAM, (a * b + LAM * r - a * RHO * up) / (a + LAM)),
    ("proximal", "sam"): lambda up, r, mu: (a + LAM, (a * b + LAM * r) / (a + LAM) - RHO * up),
    ("sam", "control"): lambda up, r, mu: (a, b - CONTROL / a - RHO * up),
    ("control", "sam"): lambda up, r, mu: (a, b - CONTROL / a - RHO * up),
    ("sam", "push-sum"): lambda up, r, mu: (a / mu, mu * (b - RHO * up)),
    ("push-sum", "sam"): lambda up, r, mu: (a / mu, mu * b - RHO * up),
    ("proximal", "control"): lambda up, r, mu: (a + LAM, (a * b + LAM * r - CONTROL) / (a + LAM)),
    ("control", "proximal"): lambda up, r, mu: (a + LAM, (a * b + LAM * r - CONTROL) / (a + LAM)),
    ("proximal", "push-sum"): lambda up, r, mu: ((a + LAM) / mu, mu * (a * b + LAM * r) / (a + LAM)),
    ("push-sum", "proximal"): lambda up, r, mu: (a / mu + LAM, (a * b + LAM * r) / (a / mu + LAM)),
    ("control", "push-sum"): lambda up, r, mu: (a / mu, mu * (b - CONTROL / a)),
    ("push-sum", "control"): lambda up, r, mu: (a / mu, mu * (b - CONTROL / a)),
    ("sam", "proximal", "control", "push-sum"): lambda up, r, mu: (
        (a + LAM) / mu,
        mu * (a * b + LAM * r - CONTROL - a * RHO * up) / (a + LAM),
    ),
}
CLIMBS: dict[tuple[str, ...], Callable[[Floats, Floats], Floats]] = {
    ("proximal", "sam"): lambda u, r: a * (u - b) + LAM * (u - r),
    ("control", "sam"): lambda u, r: a * (u - b) + CONTROL,
}


def local(order: tuple[str, ...], u: Floats, r: Floats, mu: Floats) -> Floats:
    """Where a round of local steps ends, in closed form."""
    climbs = CLIMBS.get(order, lambda u, r: u / mu - b)
    up = np.sign(climbs(u, r))
    end = descend(u, *WAYS[order](up, r, mu), LR, STEPS)
    assert "sam" not in order or (np.sign(climbs(end, r)) == up).all()  # else there is no closed form
    return end


def between_peers(order: tuple[str, ...]) -> Algorithm:
    """A method that names the corrections in this order and gives what they look up."""

    def bind(p: Problem) -> Program[Any]:
        phase = Phase(p.parameters, T.amount, T.lr, tuple(c for name in order for c in CORRECTIONS[name]))
        aux = {
            "control": lambda s, r: {"u": torch.from_numpy(CONTROL)},
            "weight": lambda s, r: torch.from_numpy(MU),
        }
        return decentralized(p, [phase], T, "ring", p.names, aux=aux)

    return Algorithm("between-peers", T._asdict(), bind)


def played(algorithm: Algorithm, engine: Any) -> Any:
    """The state after each of two rounds, from where everybody begins at its own u."""
    e = experiment(shared_only(), golden(), algorithm, engine)
    now = e.start()
    now = now._replace(state=now.state._replace(x={**now.state.x, "u": torch.from_numpy(START)}))
    for t in range(2):
        now, _ = e.run_round(now, t, evaluate=False)
        yield now.state


def close(found: torch.Tensor, expected: Floats) -> None:
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-12)


@ENGINES
@pytest.mark.parametrize("order", WAYS, ids=" then ".join)
def test_corrections_compose(order: tuple[str, ...], engine: Any) -> None:
    u = START
    for state in played(between_peers(order), engine):
        u = RING @ local(order, u, u, MU if "push-sum" in order else np.ones(4))
        close(state.x["u"], u)


def test_every_pair_is_there_in_both_orders() -> None:
    assert set(permutations(CORRECTIONS, 2)) == {order for order in WAYS if len(order) == 2}


@pytest.mark.parametrize(
    ("first", "second", "matters"),
    [
        ("sam", "proximal", True),
        ("sam", "control", True),
        ("sam", "push-sum", True),
        ("proximal", "push-sum", True),
        ("proximal", "control", False),
        ("control", "push-sum", False),
    ],
)
def test_the_order_matters_where_it_should(first: str, second: str, matters: bool) -> None:
    one, other = (next(played(between_peers(o), Serial())).x["u"] for o in ((first, second), (second, first)))
    assert (float((one - other).abs().max()) > 1e-3) == matters


@ENGINES
@pytest.mark.parametrize("inner", [("sam",), ("proximal",), ("control",), ("sam", "proximal", "control")], ids=" ".join)
def test_push_sum_takes_whatever_is_followed_at_its_ratio(inner: tuple[str, ...], engine: Any) -> None:
    """With weights that move along the graph; the reference is the ratio that a client begins with."""

    def bind(p: Problem) -> Program[Any]:
        phase = Phase(p.parameters, T.amount, T.lr, tuple(c for name in inner for c in CORRECTIONS[name]))
        aux = {"control": lambda s, r: {"u": torch.from_numpy(CONTROL)}}
        return push_sum(p, [phase], T, lambda t: torch.from_numpy(PUSH), p.names, aux=aux)

    u, mu = START, np.ones(4)
    for state in played(Algorithm("pushed", T._asdict(), bind), engine):
        end = local((*inner, "push-sum"), u, u / mu, mu)
        u, mu = PUSH @ end, PUSH @ mu
        close(state.x["u"], u)
        close(state.mu, mu)


FAMILIES: dict[str, Callable[[Problem, Sequence[Phase]], Program[Any]]] = {
    "between peers": lambda p, phases: decentralized(p, phases, T, "ring", p.names),
    "with a server": lambda p, phases: federated(p, phases, T, p.names),
    "push-sum": lambda p, phases: push_sum(p, phases, T, "ring", p.names),
}
NEEDY = {"control": control_variate(), "mask": masked(), "weight": debiased(frozenset("u"))}


@pytest.mark.parametrize(
    ("family", "name"),
    [(f, name) for f in FAMILIES for name in NEEDY if (f, name) != ("push-sum", "weight")],  # which it gives
)
def test_a_correction_that_is_given_nothing_is_refused_when_bound(family: str, name: str) -> None:
    def bind(p: Problem) -> Program[Any]:
        return FAMILIES[family](p, [Phase(p.parameters, T.amount, T.lr, NEEDY[name])])

    with pytest.raises(UserError, match=rf"looks up '{name}'.*aux=") as refused:
        experiment(shared_only(), golden(), Algorithm("forgetful", T._asdict(), bind)).check()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("corrections", "kind"),
    [((proximal(1.0),), "tuple of tuple"), (sam(0.1)[0], "Sam"), ([*sam(0.1)], "list"), ((Correction,), "of type")],
)
def test_what_is_no_tuple_of_corrections_is_refused_where_a_phase_is_made(corrections: Any, kind: str) -> None:
    with pytest.raises(UserError, match=rf"{kind}: write sam\(rho\)") as refused:
        Phase(frozenset("u"), T.amount, T.lr, corrections)
    assert "\n" not in str(refused.value)


def test_a_reference_needs_no_giver() -> None:
    """It is the model that a client begins the round with."""
    end = next(played(between_peers(("proximal",)), Serial())).x["u"]
    close(end, RING @ descend(START, a + LAM, (a * b + LAM * START) / (a + LAM), LR, STEPS))
