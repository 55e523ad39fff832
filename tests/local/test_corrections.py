"""Corrections compose by name: every pair of five, in both orders, in closed form on the quadratic, to 1e-12."""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from coterie.algorithms import build
from coterie.algorithms.base import Algorithm, Problem, Program
from coterie.algorithms.options import Training
from coterie.algorithms.peers import decentralized
from coterie.algorithms.pushsum import push_sum
from coterie.algorithms.server import federated
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors
from coterie.data.batches import Batch
from coterie.engines import Serial, Vectorized
from coterie.engines.base import Grad, StepInfo
from coterie.local.corrections import control_variate, debiased, masked, proximal, sam
from coterie.local.steps import Aux, Correction, Phase
from law import PUSH, RING, Floats, a, b, descend
from quadratic import shared_only
from same_numbers import graphed_for
from toys import PLAIN, experiment, golden, net, play, ragged

ENGINES = pytest.mark.parametrize(
    "engine", [Serial(), Vectorized(3), graphed_for(3)], ids=["serial", "vectorized", "graphed"]
)
RHO, ETA, LAM, LR, STEPS = 0.1, 0.2, 0.5, 0.05, 3
CONTROL = np.array([0.3, -30.0, 0.4, -0.1])  # the second outweighs its gradient
MU = np.array([0.8, 1.25, 0.5, 2.0])
START = np.array([8.0, 9.0, 10.0, 9.0])  # far from b: nobody crosses its minimum on the way

CORRECTIONS: dict[str, tuple[Correction, ...]] = {
    "sam": sam(RHO),
    "adaptive": sam(RHO, "adaptive", ETA),
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
    # in one dimension the adaptive form evaluates what is inside of it at (1 + rho up) u + rho eta up, for u > 0
    ("adaptive", "proximal"): lambda up, r, mu: (
        a * (1 + RHO * up) + LAM,
        (a * (b - RHO * ETA * up) + LAM * r) / (a * (1 + RHO * up) + LAM),
    ),
    ("proximal", "adaptive"): lambda up, r, mu: (
        (a + LAM) * (1 + RHO * up),
        ((a * b + LAM * r) / (a + LAM) - RHO * ETA * up) / (1 + RHO * up),
    ),
    **dict.fromkeys(
        (("adaptive", "control"), ("control", "adaptive")),
        lambda up, r, mu: (a * (1 + RHO * up), (b - CONTROL / a - RHO * ETA * up) / (1 + RHO * up)),
    ),
    ("adaptive", "push-sum"): lambda up, r, mu: (
        a * (1 + RHO * up) / mu,
        mu * (b - RHO * ETA * up) / (1 + RHO * up),
    ),
    ("push-sum", "adaptive"): lambda up, r, mu: (
        a * (1 + RHO * up) / mu,
        (mu * b - RHO * ETA * up) / (1 + RHO * up),
    ),
    ("sam", "adaptive"): lambda up, r, mu: (
        a * (1 + RHO * up),
        (b - RHO * up - RHO * ETA * up) / (1 + RHO * up),
    ),
    ("adaptive", "sam"): lambda up, r, mu: (
        a * (1 + RHO * up),
        (b - RHO * ETA * up) / (1 + RHO * up) - RHO * up,
    ),
    ("sam", "proximal", "control", "push-sum"): lambda up, r, mu: (
        (a + LAM) / mu,
        mu * (a * b + LAM * r - CONTROL - a * RHO * up) / (a + LAM),
    ),
}
CLIMBS: dict[tuple[str, ...], Callable[[Floats, Floats], Floats]] = {
    ("proximal", "sam"): lambda u, r: a * (u - b) + LAM * (u - r),
    ("control", "sam"): lambda u, r: a * (u - b) + CONTROL,
}
CLIMBS |= {(first, "adaptive"): CLIMBS[first, "sam"] for first in ("proximal", "control")}


def local(order: tuple[str, ...], u: Floats, r: Floats, mu: Floats) -> Floats:
    """Where a round of local steps ends, in closed form."""
    climbs = CLIMBS.get(order, lambda u, r: u / mu - b)
    up = np.sign(climbs(u, r))
    end = descend(u, *WAYS[order](up, r, mu), LR, STEPS)
    assert not {"sam", "adaptive"} & set(order) or (np.sign(climbs(end, r)) == up).all()  # else there is no closed form
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
        ("adaptive", "proximal", True),
        ("adaptive", "push-sum", True),
        ("proximal", "push-sum", True),
        ("proximal", "control", False),
        ("control", "push-sum", False),
    ],
)
def test_the_order_matters_where_it_should(first: str, second: str, matters: bool) -> None:
    one, other = (next(played(between_peers(o), Serial())).x["u"] for o in ((first, second), (second, first)))
    assert (float((one - other).abs().max()) > 1e-3) == matters


@ENGINES
@pytest.mark.parametrize(
    "inner", [("sam",), ("adaptive",), ("proximal",), ("control",), ("sam", "proximal", "control")], ids=" ".join
)
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


def phase_of(p: Problem, **changed: Any) -> Any:
    return Phase(**{"trains": p.parameters, "amount": T.amount, "lr": T.lr, **changed})


def with_server(p: Problem, phases: Any, **changed: Any) -> Program[Any]:
    return federated(p, phases, T, **{"shared": p.names, **changed})


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda p: with_server(p, phase_of(p)), "phases takes a list of"),
        (lambda p: with_server(p, [[phase_of(p)]]), r"phases\[0\] takes a Phase"),
        (lambda p: phase_of(p, trains="head"), r"trains takes a frozenset, such as p\.parameters"),
        (lambda p: phase_of(p, amount=5), r"amount takes an Amount, such as t\.amount"),
        (lambda p: phase_of(p, lr=None), r"lr takes a number, such as t\.lr"),
        (lambda p: phase_of(p, corrections=sam(rho="0.1")), "rho takes a number"),
        (lambda p: phase_of(p, corrections=proximal(strength="0.1")), "strength takes a number"),
        (lambda p: with_server(p, [phase_of(p)], shared="head"), r"shared takes a frozenset, such as p\.names"),
        (lambda p: with_server(p, [phase_of(p)], weighting="equal"), "weighting='equal' is not a choice"),
        (lambda p: push_sum(p, phase_of(p), T, "ring", p.names), "phases takes a list of"),
        (lambda p: decentralized(p, phase_of(p), T, "ring", p.names), "phases takes a list of"),
    ],
)
def test_a_wrong_argument_of_a_part_is_one_sentence(made: Callable[[Problem], Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        experiment(shared_only(), golden(), Algorithm("mistaken", T._asdict(), made)).check()
    assert "\n" not in str(refused.value)


class OnlyFollowed(Correction):
    """Forgets what the gradient has told beside itself."""

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        return lambda x, frozen, batch: grad(x, frozen, batch)[0]  # type: ignore[return-value]


def test_a_direction_that_forgets_what_the_gradient_told_is_one_sentence() -> None:
    def bind(p: Problem) -> Program[Any]:
        return with_server(p, [phase_of(p, corrections=(OnlyFollowed(),))])

    with pytest.raises(UserError, match=r"returned a dict: return what is followed and .* `return g, info`"):
        play(experiment(shared_only(), golden(), Algorithm("forgetful", T._asdict(), bind)), 1)


def test_running_statistics_are_a_numerator_again_after_a_step_at_the_ratio() -> None:
    """With mu = 1/4 a mean of 8 is seen as 32; a layer makes it 33, of which a quarter is kept. Personal ones stay."""

    def grad(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
        return x, StepInfo(torch.zeros(()), {k: v + 1 for k, v in frozen.items()})

    (at_ratio,) = debiased(frozenset({"u", "mean"}))
    means = {"mean": torch.tensor(8.0), "personal.mean": torch.tensor(8.0)}
    batch = Batch(torch.zeros(1), torch.zeros(1), None)
    _, info = at_ratio.direction(grad, {"weight": torch.tensor(0.25)})({"u": torch.zeros(1)}, means, batch)
    assert info.buffers == {"mean": torch.tensor(8.25), "personal.mean": torch.tensor(9.0)}


def test_a_reference_needs_no_giver() -> None:
    """It is the model that a client begins the round with."""
    end = next(played(between_peers(("proximal",)), Serial())).x["u"]
    close(end, RING @ descend(START, a + LAM, (a * b + LAM * START) / (a + LAM), LR, STEPS))


class ReleasedSam(torch.optim.Optimizer):
    """SAM as its usual code for torch has it: an ascent that keeps the old weights, then a step of SGD from there."""

    def __init__(self, parameters: Any, rho: float, adaptive: bool, eta: float, **sgd: Any) -> None:
        super().__init__(parameters, {"rho": rho, "adaptive": adaptive, "eta": eta, **sgd})
        self.base = torch.optim.SGD(self.param_groups, **sgd)

    @torch.no_grad()
    def step(self, closure: Any) -> None:  # type: ignore[override]
        """Take one step; ``closure`` fills the gradients."""
        group = self.param_groups[0]
        scales = [p.abs() + group["eta"] if group["adaptive"] else torch.ones_like(p) for p in group["params"]]
        closure()
        norms = [(t * p.grad).norm() for p, t in zip(group["params"], scales, strict=True)]
        length = group["rho"] / (torch.stack(norms).norm() + 1e-12)
        old = [p.clone() for p in group["params"]]
        for p, t in zip(group["params"], scales, strict=True):
            p.add_(t**2 * p.grad * length)
        closure()
        for p, before in zip(group["params"], old, strict=True):
            p.copy_(before)
        self.base.step()


FORMS = pytest.mark.parametrize(("form", "eta"), [("plain", 0.0), ("adaptive", 0.0), ("adaptive", 0.01)])
SGD = {"lr": LR, "momentum": 0.9, "weight_decay": 0.01}


def released(client: int, form: str, eta: float, masks: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the usual code makes of a client's model in STEPS steps; after each of them the masked entries are 0."""
    federation, module = ragged("mlp"), net("mlp")
    x, y = (data[federation.train[client]] for data in (federation.x, federation.y))

    def closure() -> None:
        with torch.enable_grad():
            module.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()

    optimizer = ReleasedSam(module.parameters(), 0.7, form == "adaptive", eta, **SGD)
    for _ in range(STEPS):
        optimizer.step(closure)
        for name, mask in masks.items():
            module.get_parameter(name).data.mul_(mask[client])
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def trained_alike(algorithm: Algorithm, engine: Any, form: str, eta: float, masks: dict[str, torch.Tensor]) -> None:
    """Hold a round of a method without neighbors against the usual code."""
    e = experiment(net("mlp"), ragged("mlp"), algorithm, engine)
    now, _ = e.run_round(e.start(), 0, evaluate=False)
    for client in range(2):
        for name, parameter in released(client, form, eta, masks).items():
            torch.testing.assert_close(now.state.x[name][client], parameter, rtol=0, atol=1e-12)


@ENGINES
@FORMS
def test_sam_is_the_optimizer_of_its_usual_code_step_by_step(form: str, eta: float, engine: Any) -> None:
    settings = {**PLAIN, **SGD, "steps": STEPS, "rho": 0.7, "sam": form, "sam_eta": eta}
    trained_alike(build("dfedsam", topology="none", **settings), engine, form, eta, {})


@ENGINES
@FORMS
@pytest.mark.parametrize("first", ["sam", "mask"])
def test_sam_composes_with_masks(first: str, form: Any, eta: float, engine: Any) -> None:
    """In both orders, because a mask acts after the step: SAM climbs along the gradient of the masked model."""
    t = Training().with_options({**PLAIN, **SGD, "steps": STEPS})
    draws = torch.Generator().manual_seed(0)
    masks = {
        name: torch.randint(0, 2, (len(ragged("mlp").train), *parameter.shape), generator=draws).double()
        for name, parameter in net("mlp").named_parameters()
    }
    climb = sam(0.7, form, eta)

    def bind(p: Problem) -> Program[Any]:
        phase = Phase(p.parameters, t.amount, t.lr, climb + masked() if first == "sam" else masked() + climb)
        return decentralized(p, [phase], t, "none", p.names, aux={"mask": lambda s, r: masks})

    trained_alike(Algorithm("thinned", t._asdict(), bind), engine, form, eta, masks)


def test_an_adaptive_ascent_leaves_dead_entries_where_they_are() -> None:
    """A masked weight is 0, so it has no share in the norm either: T g = (12, 0), and the climb is rho (3, 0)."""
    points = []

    def grad(x: Any, frozen: Any, batch: Any) -> Any:
        points.append(x["u"])
        return {"u": torch.tensor([4.0, 100.0])}, None

    probe = type("Batch", (), {"y": torch.zeros(1)})()
    sam(0.7, "adaptive")[0].direction(grad, {})({"u": torch.tensor([3.0, 0.0])}, {}, probe)
    assert (points[1] - points[0]).tolist() == pytest.approx([2.1, 0.0])


def flops(method: str, **settings: Any) -> float:
    e = experiment(net("mlp"), ragged("mlp"), build(method, epochs=1, **settings))
    cost: float = e.run_round(e.start(), 0, evaluate=True)[1]["flops"]
    return cost


def test_both_forms_of_sam_cost_the_same() -> None:
    assert flops("fedsam", rho=0.1, sam="plain") == flops("fedsam", rho=0.1, sam="adaptive")


@pytest.mark.parametrize("method", ["dfedalt", "dfedpgp"])
def test_sam_costs_a_second_gradient_of_the_shared_part(method: str) -> None:
    sharp = flops(method, topology="ring", rho=0.1)
    assert sharp == flops("dfedsalt", topology="ring") > flops(method, topology="ring")
