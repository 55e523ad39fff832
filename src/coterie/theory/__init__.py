"""The papers' theorems beside runs on problems small enough to compute everything they speak of."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ..algorithms import builder
from ..errors import RequestError
from ..topology import build
from . import gossip, lowrank, matrices, partial, server
from .outcome import Condition, Constant, Outcome
from .played import path
from .quadratic import OPTIONS, options, quadratic

__all__ = ["THEOREMS", "Condition", "Constant", "Outcome", "examine"]


class Theorem(NamedTuple):
    """How a method is set up for its theorem, played, and held beside it."""

    defaults: Callable[..., dict[str, Any]]  # (problem, topology, rounds, what is asked for) -> the other settings
    beside: Callable[..., Outcome]  # (problem, topology, settings, paths)
    topology: str | None = None  # where nobody says; None: around a server
    problem: Callable[..., Any] = quadratic  # (clients, seed, its options)
    options: tuple[str, ...] = OPTIONS
    path: Callable[..., Any] = path  # (problem, algorithm, rounds, seed)


THEOREMS: dict[str, Theorem] = {
    "dfedalt": Theorem(partial.gossip_defaults, partial.gossip_beside, "ring"),
    "dfedsalt": Theorem(partial.salt_defaults, partial.gossip_beside, "ring"),
    "dfedpgp": Theorem(partial.push_defaults, partial.push_beside, "random-push:3"),
    "dfedsam": Theorem(gossip.defaults, gossip.beside, "ring"),
    "dfedsam-mgs": Theorem(gossip.defaults, gossip.beside, "ring"),
    "fedavg-p": Theorem(server.average_defaults, server.average_beside),
    "scaffold-p": Theorem(server.scaffold_defaults, server.scaffold_beside),
    "fedlmt": Theorem(lowrank.defaults, lowrank.beside, None, matrices.matrices, matrices.OPTIONS, matrices.path),
}
"""The methods whose papers have a theorem."""

PLAIN: dict[str, Any] = {"lr_decay": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip": None, "batch_size": 1}

MOVING = tuple(f"{part}{name}" for part in ("", "personal_") for name in ("lr", "outer_lr", "steps", "epochs"))


def examine(
    method: str,
    *,
    clients: int = 8,
    rounds: int = 100,
    topology: str | None = None,
    problem: str = "",
    seed: int = 0,
    seeds: int = 1,
    **settings: Any,
) -> Outcome:
    """The theorem of a method beside runs of it.

    The problem is a quadratic with known constants (``coterie.theory.quadratic``), or, for fedlmt, one in two matrices;
    problem: its options, such as "noise=0.1,spread=2"; seeds: how many runs the measured is the mean of, since the
    theorems bound expectations; settings: of the method. What is not given is as the theorem wants it, rates the
    largest that it allows.

    >>> outcome = examine("dfedsam", clients=4, rounds=3, topology="full")
    >>> outcome.holds, round(outcome.constant("lambda"), 6), outcome.void
    (True, 0.0, ())
    """
    name = method.replace("_", "-")
    make = builder(name)
    if name not in THEOREMS:
        raise RequestError(f"{name} has no theorem in its paper: choose one of {', '.join(THEOREMS)}")
    if rounds < 1 or seeds < 1 or clients < 2:
        raise RequestError("a theorem speaks of at least one round, one seed and two clients: choose larger numbers")
    theorem = THEOREMS[name]
    given = settings if topology is None else {**settings, "topology": topology}
    if given.get("topology") is not None and theorem.topology is None:
        raise RequestError(f"the theorem of {name} is about a server: leave the topology out")
    _check(settings)
    where = {} if theorem.topology is None else {"topology": given.get("topology", theorem.topology)}
    graph = build(where["topology"], clients, seed) if where else None
    instance = theorem.problem(clients, seed, **options(problem, theorem.options))
    base = {k: v for k, v in PLAIN.items() if not ("lr_min" in given and k == "lr_decay")}
    asked = {**base, **where, **given}
    chosen = {**asked, **theorem.defaults(instance, graph, rounds, asked), **given}
    algorithm = make(**chosen)
    paths = [theorem.path(instance, algorithm, rounds, seed + k) for k in range(seeds)]
    return theorem.beside(instance, graph, dict(algorithm.settings), paths)._replace(method=name)


def _check(settings: dict[str, Any]) -> None:
    """Refuses settings with which there is nothing to hold beside a theorem."""
    if "personal" in settings:
        raise RequestError("the personal part of the problem is its v: leave personal out")
    for name in MOVING:
        if settings.get(name) == 0:
            raise RequestError(f"with {name}=0 nothing moves that a theorem could speak of: choose a larger number")
