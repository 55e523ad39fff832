"""What a round sends: messages by weight, and who sends and gets how many of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .. import topology as topologies
from ..core.tensors import Tensors, entries, floating, size_in_bytes
from ..data.batches import Integers


class Load(NamedTuple):
    """What one message weighs."""

    parameters: int
    values: int  # bytes of the parameters
    tensors: int
    aside: int = 0  # bytes of what goes along: push-sum's weight, a mask

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.values + self.aside


def load(x: Tensors, stacked: bool, aside: int = 0) -> Load:
    """What a message with one client's share of ``x`` weighs."""
    tensors = [v[0] if stacked else v for v in floating(x).values()]
    return Load(entries(tensors), size_in_bytes(tensors), len(tensors), aside)


class Messages(NamedTuple):
    """Messages of one weight, by node. A server is a node of its own, the last one."""

    load: Load
    out: Integers  # [nodes] how many each node sends
    into: Integers  # [nodes] how many each node gets

    @property
    def total(self) -> int:
        """How many there are; every one of them arrives."""
        return int(self.out.sum())

    @property
    def back(self) -> "Messages":
        """As many in the other direction."""
        return self._replace(out=self.into, into=self.out)


def over(W: Tensor, load: Load) -> tuple[Messages, ...]:
    """One message along every link of a graph; none where there is nothing to send."""
    return (Messages(load, *topologies.degrees(W)),) if load.parameters else ()


def gossiped(Ws: Sequence[Tensor], load: Load) -> "Traffic":
    """One exchange after another; what somebody sends who has got nothing yet is what it has trained."""
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
    """One message of every member; none where there is nothing to send."""
    if not load.parameters:
        return ()
    out = np.zeros(clients + 1, dtype=np.int64)
    out[members] = 1
    into = np.zeros_like(out)
    into[clients] = len(members)
    return (Messages(load, out, into),)


class Traffic(NamedTuple):
    """What a round sends, over all links and in both directions."""

    sent: tuple[Messages, ...]  # what clients have trained
    relayed: tuple[Messages, ...] = ()  # what was mixed already: a server's answer, later gossip steps

    @property
    def all(self) -> tuple[Messages, ...]:
        """Whatever they hold."""
        return self.sent + self.relayed

    @property
    def messages(self) -> int:
        """How many there are."""
        return sum(m.total for m in self.all)

    @property
    def parameters(self) -> int:
        """How many parameters they hold."""
        return sum(m.total * m.load.parameters for m in self.all)

    @property
    def bytes(self) -> int:
        """How many bytes they take."""
        return sum(m.total * m.load.bytes for m in self.all)

    @property
    def busiest_up(self) -> int:
        """The bytes of the node that sends most."""
        return self._most(lambda m: m.out)

    @property
    def busiest_down(self) -> int:
        """The bytes of the node that gets most."""
        return self._most(lambda m: m.into)

    def _most(self, of: Callable[[Messages], Integers]) -> int:
        return int(np.sum([m.load.bytes * of(m) for m in self.all], axis=0).max()) if self.all else 0
