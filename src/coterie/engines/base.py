"""Where clients run: a handful of verbs and a way to differentiate, whatever is behind them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from ..core.errors import UserError
from ..core.tensors import Integers, Tensors, Tree, count, rows
from ..data.batches import Batch, Batches, Stream
from ..topology.sparse import diagonal, entries, with_diagonal, with_values


class StepInfo(NamedTuple):
    """What a gradient evaluation returns beside the gradient."""

    loss: Tensor
    buffers: Tensors  # running statistics after the forward pass
    unreached: frozenset[str] = frozenset()  # parameters that the loss does not depend on: they do not move


Grad = Callable[[Tensors, Tensors, Batch], tuple[Tensors, StepInfo]]
"""(parameters, what is frozen, batch) -> (direction, info). Corrections are functions Grad -> Grad."""

Objective = Callable[[Tensors, Tensors, Batch], tuple[Tensor, StepInfo]]
"""(parameters, what is frozen, batch) -> (loss, info)."""

Pace = Callable[[int], float]
"""The number of a step, counted from 0 -> the factor of all rates in that step."""

Statistic = Callable[[Tensors, Tensors], Tensor]
"""(what the receiver has, what the sender has sent) -> one number."""

MixingRule = Callable[[Tensors, Tensor, Tensors], Tensors]
"""(what the receiver has, [k] weights of those it hears, stacked: what they have sent) -> what it has afterwards.

The receiver is not among those it hears: its own weight is what is missing to 1, so that of somebody who is not heard.
"""


class Moved(NamedTuple):
    """What push-sum's shares of numerators and mass have become: what stayed with a client, and what came to it."""

    kept: Tensors  # stacked
    kept_mass: Tensor  # [n]
    arrived: Tensors
    arrived_mass: Tensor


class Step(Protocol):
    """What ONE client does with a batch, again and again: carry <- step(carry, fixed, batch).

    A value: steps that are equal but for their rates are one program, which an engine may build once and keep.
    """

    @property
    def rates(self) -> tuple[float | Tensor, ...]:
        """Numbers that change from round to round."""

    @property
    def pace(self) -> Pace | None:
        """By what factor the rates change from step to step; None: they are the same in all of them."""

    def at(self, rates: Sequence[float | Tensor]) -> "Step":
        """Return the same step with other rates, without a pace."""

    @property
    def independent(self) -> bool:
        """Whether what is carried for a sample never depends on others of its batch: then padding does no harm."""

    def begin(self, given: Tree, /) -> Tree:
        """Return what is carried into the first step."""

    def __call__(self, carry: Tree, fixed: Tree, batch: Batch, /) -> Tree:
        """Return what is carried on; its shapes are those that came in."""

    def end(self, carry: Tree, /) -> Tree:
        """Return what is left after the last step."""


def rates_at(step: Step, k: int) -> list[float | Tensor]:
    """Return the rates of the step number ``k``."""
    factor = 1.0 if step.pace is None else step.pace(k)
    return [rate * factor for rate in step.rates]


class Engine(Protocol):
    """Runs functions that are written for ONE client on all of them."""

    @property
    def name(self) -> str:
        """The text that chooses this engine again."""

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """Run ``f`` on every client: stacked trees and batches in, stacked trees out; ``keys`` seed torch's draws."""

    def scan(self, step: Step, given: Tree, fixed: Tree, batches: Batches, keys: Sequence[int]) -> Tree:
        """Run ``step`` through all batches of every client: stacked trees in, stacked trees out."""

    def gradient(self, objective: Objective) -> Grad:
        """Return the gradient of an objective in its parameters."""

    def mix(self, W: Tensor, x: Tensors) -> Tensors:
        """Return sum_j W[i, j] x_j for every client; where W is the one row of a server, its sum_j W[j] x_j."""

    def combine(self, rule: MixingRule, W: Tensor, x: Tensors, own: Tensors | None = None) -> Tensors:
        """Return what ``rule`` makes of x_i and of the x_j that each client hears along W.

        Where W is the one row of a server, return what it makes of ``own``, which the server has, and of all rows.
        """

    def push(self, P: Tensor, x: Tensors, mass: Tensor) -> Moved:
        """Divide x_j and its mass by the column j of P: unlike in ``mix``, what is sent is no longer with its sender.

        Where messages can be lost, the engine loses and doubles none of them: what was not sent stays.
        """

    def pairwise(self, f: Statistic, W: Tensor, x: Tensors) -> Tensor:
        """Return [n, n] f(x_i, x_j) along every link of W, 0 elsewhere: small, and the same on every shard."""

    def all_mean(self, x: Tensors, clients: int) -> Tensors:
        """Return the mean over all clients; ``x`` is the mean over the ``clients`` of this shard."""


class InMemory(ABC):
    """What engines have in common whose clients are in the memory of one process."""

    on_build: Callable[[int, int | None], None] | None = None
    """Whom an engine that builds programs tells before each of them: its number from 1, and how many, where known."""

    @abstractmethod
    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """Run ``f`` on every client."""

    def rehearse(self, play: Callable[[], object]) -> None:  # noqa: B027
        """Build whatever a round needs before it; ``play`` would go through it. Most engines build nothing."""

    def scan(self, step: Step, given: Tree, fixed: Tree, batches: Batches, keys: Sequence[int]) -> Tree:
        """Loop over the batches in one function of one client."""

        def every_batch(given: Tree, fixed: Tree, stream: Stream) -> Tree:
            carry = step.begin(given)
            for k in range(stream.steps):
                now = step if step.pace is None else step.at(rates_at(step, k))
                carry = now(carry, fixed, stream.batch(k))
            return step.end(carry)

        return self.map(every_batch, given, fixed, batches, keys=keys)

    def mix(self, W: Tensor, x: Tensors) -> Tensors:
        """Return sum_j W[i, j] x_j, or sum_j W[j] x_j for a server."""
        return {k: (W.to(v) @ v.reshape(len(v), -1)).view((*W.shape[:-1], *v.shape[1:])) for k, v in x.items()}

    def combine(self, rule: MixingRule, W: Tensor, x: Tensors, own: Tensors | None = None) -> Tensors:
        """Return what ``rule`` makes of the rows that each client, or a server, hears."""
        if W.dim() == 1:
            assert own is not None
            return rule(own, W, x)
        i, j, weights = entries(W)
        others = i != j
        return combined(rule, x, x, i[others], j[others], weights[others])

    def push(self, P: Tensor, x: Tensors, mass: Tensor) -> Moved:
        """Return what stays with every client and what comes to it."""
        return moved(self.mix, diagonal(P), P, x, mass)

    def pairwise(self, f: Statistic, W: Tensor, x: Tensors) -> Tensor:
        """Return f(x_i, x_j) along every link of W."""
        i, j, _ = entries(W)
        return with_values(W, statistics(f, x, x, i, j))

    def all_mean(self, x: Tensors, clients: int) -> Tensors:
        """Return ``x``: all clients are in this process."""
        return x


def moved(mix: Callable[[Tensor, Tensors], Tensors], own: Tensor, P: Tensor, x: Tensors, mass: Tensor) -> Moved:
    """Return what stays and what comes where no message is lost; ``own``: the share that each local client keeps."""
    others = with_diagonal(P, torch.zeros(len(P), dtype=P.dtype, device=P.device))
    came = mix(others, {f"x/{k}": v for k, v in x.items()} | {"mass": mass})  # one message, not two
    stays: Tensors = vmap(lambda v, a: {k: u * a.to(u) for k, u in v.items()})(x, own)
    return Moved(stays, own.to(mass) * mass, {k: came[f"x/{k}"] for k in x}, came["mass"])


SIDE_BY_SIDE = 2**26  # numbers that are compared at a time
SORTED = 2**22  # numbers that are combined at a time: rules sort them, twice as fast in a processor's cache


def statistics(f: Statistic, x: Tensors, heard: Tensors, i: Tensor, j: Tensor) -> Tensor:
    """Return [links] f(x_i, heard_j) with ``i`` ascending, one receiver after another: never n x n models at a time."""
    numbers = sum(math.prod(v.shape[1:]) for v in heard.values())
    at_once = max(1, SIDE_BY_SIDE // max(1, numbers))
    found = [
        vmap(f, (None, 0))(rows(x, receiver), rows(heard, senders[k : k + at_once]))
        for receiver, senders in enumerate(j.tensor_split(i.bincount().cumsum(0).cpu()))
        for k in range(0, len(senders), at_once)
    ]
    return torch.cat(found) if found else torch.zeros(0, device=j.device)


def combined(rule: MixingRule, x: Tensors, heard: Tensors, i: Tensor, j: Tensor, weights: Tensor) -> Tensors:
    """Return what ``rule`` makes of every row of ``x`` and of the heard_j that it hears, with ``i`` ascending.

    Those that hear equally many go side by side, some at a time: never n x n models at a time.
    """
    result = {k: v.clone() for k, v in x.items()}
    senders = i.bincount(minlength=count(x))
    first = senders.cumsum(0) - senders
    numbers = sum(math.prod(v.shape[1:]) for v in heard.values())
    for degree in sorted({*senders.tolist()} - {0}):
        receivers = (senders == degree).nonzero()[:, 0]
        for some in receivers.split(max(1, SORTED // max(1, numbers * degree))):
            links = first[some, None] + torch.arange(degree, device=i.device)
            made: Tensors = vmap(rule)(rows(x, some), weights[links], rows(heard, j[links]))
            for k, v in made.items():
                result[k][some] = v
    return result


def name_owners(error: Exception, batches: Sequence[Batches], which: Integers) -> None:
    """Name those who ran, at the places ``which``, in a note of the error, unless it is a sentence for the user."""
    if batches and not isinstance(error, UserError):
        error.add_note(f"It happened with the samples of {batches[0].owners(which)}.")
