"""The messages of a round: their weight, and how many each node sends and gets."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .. import topology as topologies
from ..core.tensors import Integers, Tensors, floating


class Load(NamedTuple):
    """The weight of one message."""

    parameters: int
    values: int  # bytes of the parameters
    tensors: int
    aside: int = 0  # bytes beside the parameters: push-sum's weight, a mask


def load(x: Tensors, stacked: bool, aside: int = 0) -> Load:
    """Return the weight of a message with one client's share of ``x``."""
    tensors = [v[0] if stacked else v for v in floating(x).values()]
    values = sum(v.numel() * v.element_size() for v in tensors)
    return Load(sum(v.numel() for v in tensors), values, len(tensors), aside)


class Messages(NamedTuple):
    """Messages of one weight, by node. A server is a node of its own, the last one."""

    load: Load
    out: Integers  # [nodes] how many each node sends
    into: Integers  # [nodes] how many each node gets

    @property
    def back(self) -> "Messages":
        """The same messages in the other direction."""
        return self._replace(out=self.into, into=self.out)


def over(W: Tensor, load: Load) -> tuple[Messages, ...]:
    """Count one message along every link of a graph; none where there is nothing to send."""
    return (Messages(load, *topologies.degrees(W)),) if load.parameters else ()


def gossiped(Ws: Sequence[Tensor], load: Load) -> "Traffic":
    """Count one exchange after another; a client that has received nothing yet sends what it has trained."""
    sent: list[Messages] = []
    relayed: list[Messages] = []
    mixed = np.zeros(len(Ws[0]), dtype=bool)
    for W in Ws if load.parameters else ():
        receivers, senders = topologies.links(W)
        again = mixed[senders]
        for which, kind in ((~again, sent), (again, relayed)):
            out, into = (np.bincount(ends[which], minlength=len(W)) for ends in (senders, receivers))
            kind.append(Messages(load, out, into))
        mixed[receivers] = True
    return Traffic(tuple(sent), tuple(relayed))


def to_server(clients: int, members: Integers, load: Load) -> tuple[Messages, ...]:
    """Count one message of every member; none where there is nothing to send."""
    if not load.parameters:
        return ()
    out = np.zeros(clients + 1, dtype=np.int64)
    out[members] = 1
    into = np.zeros_like(out)
    into[clients] = len(members)
    return (Messages(load, out, into),)


class Totals(NamedTuple):
    """The numbers of a round's messages, over all links and in both directions."""

    messages: int = 0
    parameters: int = 0  # in all messages
    bytes: int = 0
    busiest_up: int = 0  # the bytes of the node that sends most
    busiest_down: int = 0  # the bytes of the node that gets most


class Traffic(NamedTuple):
    """All messages of a round."""

    sent: tuple[Messages, ...]  # what clients have trained
    relayed: tuple[Messages, ...] = ()  # what was mixed already: a server's answer, later gossip steps

    @property
    def totals(self) -> Totals:
        """How many there are, how much they weigh, and how much the busiest nodes send and get; all of them arrive."""
        counted = [(int(m.out.sum()), m.load.values + m.load.aside, m) for m in self.sent + self.relayed]
        return Totals(
            sum(n for n, _, _ in counted),
            sum(n * m.load.parameters for n, _, m in counted),
            sum(n * weight for n, weight, _ in counted),
            int(np.max(sum(weight * m.out for _, weight, m in counted))),
            int(np.max(sum(weight * m.into for _, weight, m in counted))),
        )
