"""The theorems of the papers, by the names that methods call them, and a run beside one of them."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ...algorithms import BUILDERS, builder
from ...algorithms.base import Problem
from ...algorithms.method import facts
from ...algorithms.options import members
from ...algorithms.settings import settings_of
from ...core.arguments import checked
from ...core.errors import UserError, unknown
from ...core.spec import bind, parameters, parse
from ...topology import build
from . import corollary, gossip, lowrank, matrices, partial, server
from .corollary import Corollary
from .outcome import Outcome
from .quadratic import quadratic
from .trajectory import BoundMethod, run_trajectory


class Theorem(NamedTuple):
    """How a method is set up for its theorem, run, and compared with it."""

    defaults: Callable[..., dict[str, Any]]  # (problem, topology, rounds, what is asked for) -> the other settings
    compare: Callable[..., Outcome]  # (problem, topology, the bound method, runs)
    topology: str | None = None  # where none is chosen; None: with a server
    corollary: Corollary | None = None  # what it gives with rates that fall with the rounds
    own: tuple[str, ...] = ()  # settings that a method must have, beside those that the defaults give it
    problem: Callable[..., Any] = quadratic  # (clients, seed, its options)
    run: Callable[..., Any] = run_trajectory  # (problem, algorithm, rounds, seed)


THEOREMS: dict[str, Theorem] = {
    "alternating": Theorem(partial.alt_defaults, partial.compare_alt, "ring"),
    "alternating-sam": Theorem(partial.salt_defaults, partial.compare_salt, "ring"),
    "alternating-push": Theorem(partial.push_defaults, partial.compare_push, "random-push:3", corollary.PUSH),
    "sam": Theorem(gossip.defaults, gossip.compare, "ring", corollary.SAM),
    "joint": Theorem(server.average_defaults, server.compare_average, corollary=corollary.AVERAGE),
    "joint-controlled": Theorem(
        server.scaffold_defaults, server.compare_scaffold, None, corollary.SCAFFOLD, ("c_init",)
    ),
    "low-rank": Theorem(
        lowrank.defaults, lowrank.compare, None, None, ("regularizer",), matrices.matrices, matrices.run_factors
    ),
}
"""The theorems of the papers; a method says which of them is about it."""

PLAIN: dict[str, Any] = {"lr_decay": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip": None, "batch_size": 1}

CLIENTS, ROUNDS = 8, 100  # where no others are asked for

MOVING = tuple(f"{part}{name}" for part in ("", "personal_") for name in ("lr", "outer_lr", "steps", "epochs"))


@checked("function")
def examine(
    method: str,
    *,
    clients: int = CLIENTS,
    rounds: int = ROUNDS,
    topology: str | None = None,
    problem: str = "",
    seed: int = 0,
    seeds: int = 1,
    rates: Literal["largest", "corollary"] = "largest",
    **settings: Any,
) -> Outcome:
    """Compare the theorem of a method with runs of it.

    The problem is a quadratic with known constants (``coterie.theory.quadratic``), or, for fedlmt, one in two matrices;
    problem: its options, such as "noise=0.1,spread=2"; seeds: how many runs the measured is the mean of, since the
    theorems bound expectations: all have the problem and the graphs of ``seed``, and batches and cohorts of their own;
    settings: of the method. A setting that is not given has the value that the theorem wants, a rate the largest that
    it allows; rates="corollary": the one with which the paper's corollary gives an order of convergence.

    >>> outcome = examine("dfedsam", clients=4, rounds=3, topology="full")
    >>> outcome.holds, round(outcome.constant("lambda"), 6), outcome.void
    (True, 0.0, ())
    """
    name = method.replace("_", "-")
    make = builder(name)
    theorem = theorem_of(name)
    if rounds < 1 or seeds < 1 or clients < 2:
        raise UserError("a theorem speaks of at least one round, one seed and two clients: choose larger numbers")
    given = settings if topology is None else {**settings, "topology": topology}
    if given.get("topology") is not None and theorem.topology is None:
        raise UserError(f"the theorem of {name} is about a server: leave the topology out")
    _check(settings)
    if theorem.topology is not None and members(settings.get("participation", 1.0), clients) < clients:
        raise UserError(f"the theorem of {name} has everybody in every round: leave participation out")
    where = {} if theorem.topology is None else {"topology": given.get("topology", theorem.topology)}
    graph = build(where["topology"], clients, seed) if where else None
    spec = parse(f"{theorem.problem.__name__}:{problem}")
    options = bind("problem", spec, parameters(theorem.problem, filled=("clients", "seed")))
    instance = theorem.problem(clients, seed, **options)
    base = {k: v for k, v in PLAIN.items() if not ("lr_min" in given and k == "lr_decay")}
    asked = {**base, **where, **given}
    wanted = theorem.defaults if rates == "largest" else corollary_of(name).rates
    chosen = {**asked, **wanted(instance, graph, rounds, asked), **given}
    # A text would draw other graphs for every seed; the constants of the bound are of these.
    algorithm = make(**chosen if graph is None else {**chosen, "topology": graph})
    runs = [theorem.run(instance, algorithm, rounds, seed + k) for k in range(seeds)]
    program = algorithm.bind(Problem(algorithm.adapt(instance.model), clients, rounds, seed))
    return theorem.compare(instance, graph, BoundMethod(name, program, {**algorithm.settings, **where}), runs)


def theorem_of(method: str) -> Theorem:
    """Return the theorem that a method names.

    >>> theorem_of("dfedsam").topology
    'ring'
    """
    make = builder(method)
    named = facts(make).theorem
    if named is None:
        having = [name for name, build in BUILDERS.items() if facts(build).theorem]
        raise UserError(f"{method} has no theorem in its paper: choose one of {', '.join(having)}")
    if named not in THEOREMS:
        raise unknown("theorem", named, THEOREMS)
    for setting in THEOREMS[named].own:
        if setting not in settings_of(make):
            raise UserError(f"the theorem {named} speaks of {setting}, which {method} has not: name another theorem")
    return THEOREMS[named]


def corollary_of(method: str) -> Corollary:
    """Return the corollary of a method's theorem.

    >>> corollary_of("scaffold-p").order({})["T"].exponent
    -0.5
    """
    found = theorem_of(method).corollary
    if found is None:
        having = [name for name, build in BUILDERS.items() if (t := facts(build).theorem) and THEOREMS[t].corollary]
        raise UserError(f"the paper of {method} has no corollary with rates: choose one of {', '.join(having)}")
    return found


def _check(settings: dict[str, Any]) -> None:
    """Refuse settings with which there is nothing to compare with a theorem."""
    if "personal" in settings:
        raise UserError("the personal part of the problem is its v: leave personal out")
    for name in MOVING:
        if settings.get(name) == 0:
            raise UserError(f"with {name}=0 nothing moves that a theorem could speak of: choose a larger number")
