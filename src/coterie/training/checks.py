"""What is refused before anything is trained."""

from typing import TYPE_CHECKING

import torch

from .. import measure
from ..algorithms.used import check_used, check_used_on
from ..core.errors import UserError
from ..store import flatten
from .first import PER_CLIENT, everybodys

if TYPE_CHECKING:
    from .experiment import Experiment


def check_asked(e: "Experiment") -> None:
    """Refuses what does not fit together or changes nothing."""
    check_used(e.algorithm)
    check_used_on(e.algorithm, e.model.module)
    if e.program.training.quantize is not None and not e.program.message(e.model.start):
        raise UserError(f"quantize changes nothing, because {e.algorithm.name} sends nothing: leave it out")
    graph = e.program.topology
    if e.program.fresh_graph and graph is not None and graph.fixed and not e.drop_messages:
        raise UserError(f"fresh_graph changes nothing, because {graph.name} is always the same: leave it out")
    for measured in e.record:
        measure.check_measure(measured, e.model, e.program)
    for name, likely in (("drop_messages", e.drop_messages), ("offline", e.offline)):
        _check_lost(e, name, likely)
    if e.first is not None and not begins_apart(e):
        raise UserError(
            f"init={PER_CLIENT} is for clients that begin with something of their own, with {e.algorithm.name} "
            "all begin with the server's model: leave init out"
        )


def _check_lost(e: "Experiment", name: str, likely: float) -> None:
    if not 0 <= likely <= 1:
        raise UserError(f"{name}={likely} is out of range: it must be a probability between 0 and 1")
    if likely and e.program.topology is None:
        instead = "lower its participation" if "participation" in e.algorithm.settings else "give it a topology"
        raise UserError(
            f"{name}={likely} is for clients that mix with each other, {e.algorithm.name} has a server: "
            f"{instead} instead"
        )


def begins_apart(e: "Experiment") -> bool:
    """Whether clients that draw their own first models begin elsewhere than with a common one: found by trying."""
    one, start = e.changed(shard=e.local_clients[:1]), e.model.start
    states = (one.program.init(start, everybodys(first, start, one.local_clients)) for first in (e.first, None))
    apart, common = map(flatten, states)
    return any(not torch.equal(v, common[k]) for k, v in apart.items())
