"""Who mixes with whom in a round: of the graph, as much as is delivered."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithms.base import Program
from ..core import rng as rng
from ..data.batches import Integers
from ..topology import Topology, drop_messages_of, without_absent


class Undelivered(NamedTuple):
    """What does not arrive in a round."""

    probability: float  # how likely a message is dropped
    weight_stays_with: str  # who takes its weight
    online: Integers | None  # who is there; None: everybody
    seed: int


def matrices(program: Program[Any], t: int, lost: Undelivered, device: torch.device) -> tuple[Tensor, ...]:
    """The mixing matrices of round ``t``, one exchange after another; none where there is a server."""
    graph, steps = program.topology, program.gossip_steps
    if graph is None:
        return ()
    if not program.fresh_graph:
        return (_matrix(graph, t, lost).to(device),) * steps
    return tuple(_matrix(graph, t * steps + q, lost).to(device) for q in range(steps))


def _matrix(graph: Topology, at: int, lost: Undelivered) -> Tensor:
    """One matrix of the graph."""
    W = graph(at)
    if lost.probability:
        W = drop_messages_of(
            W,
            lost.probability,
            lost.weight_stays_with,
            rng.generator(lost.seed, "silent", at),
        )
    return W if lost.online is None else without_absent(W, lost.online, lost.weight_stays_with)
