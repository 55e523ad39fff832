"""Who mixes with whom in a round: of the graph, as much as is delivered."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithms.base import Program
from ..core import rng as chance
from ..data.batches import Integers
from ..topology import Topology, silenced, without_absent


class Lost(NamedTuple):
    """What does not arrive in a round."""

    silent: float  # how likely a message is dropped
    keeps: str  # who takes its weight
    online: Integers | None  # who is there; None: everybody
    seed: int


def matrices(program: Program[Any], t: int, lost: Lost, device: torch.device) -> tuple[Tensor, ...]:
    """The mixing matrices of round ``t``, one exchange after another; none where there is a server."""
    graph, steps = program.topology, program.gossip_steps
    if graph is None:
        return ()
    if not program.fresh_graph:
        return (_matrix(graph, t, lost).to(device),) * steps
    return tuple(_matrix(graph, t * steps + q, lost).to(device) for q in range(steps))


def _matrix(graph: Topology, at: int, lost: Lost) -> Tensor:
    """One matrix of the graph."""
    W = graph(at)
    if lost.silent:
        W = silenced(W, lost.silent, lost.keeps, chance.generator(lost.seed, "silent", at))
    return W if lost.online is None else without_absent(W, lost.online, lost.keeps)
