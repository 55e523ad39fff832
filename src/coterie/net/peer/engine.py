"""The engine of one peer: it runs the peer's own client, while mixing goes over a network that may not deliver.

Every peer runs the same program on its own client, so all peers reach the same exchanges in the same order.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...core.tensors import Tensors, rows
from ...engines.base import Engine, MixingRule, Moved, Statistic
from ...topology.sparse import entries, with_values
from .kinds import Portion
from .mailbox import Arrived

GRID = 2.0**40  # shares of mass are multiples of 1 / GRID, so that sums of them up to 4,096 have no rounding


class Delivery(NamedTuple):
    """What became of an exchange of push-sum."""

    x: Tensors  # what was divided: of a round that is run again after a crash, what was sent then
    shares: Mapping[int, Portion]  # what has left, by receiver
    arrived: Sequence[Arrived]  # the transfers that came


class Exchange(Protocol):
    """How a peer reaches the others: one exchange of a round after another."""

    def copies(self, x: Tensors, to: Sequence[int], wanted: Sequence[int]) -> Mapping[int, Arrived]:
        """Send copies of ``x``; return what was heard in time of those who are ``wanted``."""

    def transfers(self, x: Tensors, shares: Mapping[int, Portion], wanted: Sequence[int]) -> Delivery:
        """Hand over shares of ``x`` to those who can be reached; return what has left and what came."""


class Networked:
    """An engine around the engine that runs the one client of a peer."""

    def __init__(self, inner: Engine, client: int, exchange: Exchange) -> None:
        self.inner, self.client, self.exchange = inner, client, exchange
        self.name, self.map, self.scan, self.gradient = inner.name, inner.map, inner.scan, inner.gradient
        self._heard: tuple[Tensors, Mapping[int, Arrived]] = {}, {}  # the latest message, and what others sent then

    def mix(self, W: Tensor, x: Tensors) -> Tensors:
        """Return sum_j W[i, j] x_j of this client; whoever was not heard leaves its weight to the client itself."""
        weight, heard = self._weights(W), self._hear(W, x)
        missing = sum(w for j, w in weight.items() if j not in heard and j != self.client)
        own = weight.get(self.client, 0.0) + missing
        total = {k: v * own for k, v in x.items()}
        for j, w in weight.items():
            if j in heard:
                _add(total, heard[j](), w)
        return total

    def combine(self, rule: MixingRule, W: Tensor, x: Tensors, own: Tensors | None = None) -> Tensors:
        """Return what ``rule`` makes of this client's row and of those that were heard; nothing changes without any."""
        weight, heard = self._weights(W), self._hear(W, x)
        if not heard:
            return dict(x)  # another message for the next exchange, with the same values
        there = sorted(heard)
        weights = torch.tensor([weight[j] for j in there], dtype=W.dtype, device=W.device)
        models = [heard[j]() for j in there]
        others = {k: torch.stack([model[k].to(v) for model in models]) for k, v in x.items()}
        return {k: v[None] for k, v in rule(rows(x, 0), weights, others).items()}

    def pairwise(self, f: Statistic, W: Tensor, x: Tensors) -> Tensor:
        """Return [n, n] f(x_i, x_j) in the row of this client, and 0 for whoever was not heard."""
        heard: dict[int, Arrived] = {**self._hear(W, x), self.client: partial(rows, x, 0)}
        i, j, weights = entries(W)
        found = torch.zeros_like(weights)
        for place in (i == self.client).nonzero().flatten().tolist():
            if int(j[place]) in heard:
                found[place] = f(rows(x, 0), {k: v.to(x[k]) for k, v in heard[int(j[place])]().items()})
        return with_values(W, found)

    def push(self, P: Tensor, x: Tensors, mass: Tensor) -> Moved:
        """Return what stays with this client and what came; mass is divided without rounding."""
        i, j, weights = entries(P)
        column = {int(k): float(w) for k, w in zip(i[j == self.client], weights[j == self.client], strict=True)}
        own = float(mass[0])
        shares = {k: Portion(w, round(w * own * GRID) / GRID) for k, w in column.items() if k != self.client}
        senders = [j for j in self._weights(P) if j != self.client]
        done = self.exchange.transfers(_message(x), shares, senders)
        stays = 1.0 - sum(share.weight for share in done.shares.values())
        kept = {k: (done.x[k] * stays).to(v)[None] for k, v in x.items()}
        came, came_mass = {k: torch.zeros_like(v) for k, v in x.items()}, torch.zeros_like(mass)
        for arrived in done.arrived:
            message = arrived()
            _add(came, {k: message[f"x/{k}"] for k in x}, float(message["weight"]))
            came_mass += float(message["mass"])
        return Moved(kept, mass - sum(share.mass for share in done.shares.values()), came, came_mass)

    def _weights(self, W: Tensor) -> dict[int, float]:
        """Return whom this client hears, in ascending order, with the weights."""
        i, j, weights = entries(W)
        mine = i == self.client
        return dict(zip(j[mine].tolist(), weights[mine].tolist(), strict=True))

    def _hear(self, W: Tensor, x: Tensors) -> Mapping[int, Arrived]:
        """Send what others need along the edges of W; return what was heard.

        Where the same message was sent just now to be compared with, it is not sent again to be mixed.
        """
        if self._heard[0] is not x:
            i, j, _ = entries(W)
            to = [int(k) for k in i[j == self.client] if int(k) != self.client]
            wanted = [k for k in self._weights(W) if k != self.client]
            self._heard = x, self.exchange.copies(_message(x), to, wanted)
        return self._heard[1]

    def all_mean(self, x: Tensors, clients: int) -> Tensors:
        """Refuse: no peer knows what the others have that are no neighbors."""
        raise AssertionError("peers have no model in common that one of them could measure")


def _message(x: Tensors) -> Tensors:
    return {k: v[0].detach().cpu() for k, v in x.items()}


def _add(total: Tensors, x: Tensors, weight: float) -> None:
    """Add what one member has sent; one after another, because each of them lies in a file as large as the model."""
    for k, v in total.items():
        v[0].add_(x[k].to(v), alpha=weight)
