"""What an algorithm is: a name, its settings, and a program once the problem is known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .. import chance
from ..batches import Amount, Batches, Integers, Samples
from ..engines.base import Engine, Grad
from ..split import Patterns, personal_names
from ..tensors import Tensors, Tree
from ..topology import Topology

S = TypeVar("S")


@dataclass(frozen=True)
class Problem:
    """What a program is bound to: the model, the number of clients, the gradient of the training loss."""

    module: nn.Module
    parameters: frozenset[str]  # what can be trained
    clients: int
    gradient: Grad
    seed: int

    @cached_property
    def names(self) -> frozenset[str]:
        """Everything a model holds, running statistics included."""
        return frozenset(k for k, _ in (*self.module.named_parameters(), *self.module.named_buffers()))

    def personal(self, patterns: Patterns) -> frozenset[str]:
        """The names that stay with the clients."""
        return personal_names(self.module, patterns)


@dataclass(frozen=True)
class Round:
    """One round, as a program sees it."""

    index: int
    cohort: Integers  # [m] who takes part
    W: Tensor | None  # [n, n] who mixes with whom; None where there is a server or nobody to mix with
    samples: Samples  # the training data
    engine: Engine
    seed: int

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches) -> Tree:
        """``f`` on every client of the cohort."""
        keys: list[int] = chance.counters(chance.key(self.seed, "dropout", self.index), self.cohort).tolist()
        return self.engine.map(f, *clients, keys=keys)

    def batches(self, stream: int, amount: Amount, batch_size: int | None) -> Batches:
        """The cohort's shuffled batches of this round."""
        key = chance.key(self.seed, "batches", self.index, stream)
        return Batches(self.samples, self.cohort, amount, batch_size, key)

    @property
    def members(self) -> Tensor:
        """The cohort as a tensor, to index stacked tensors with."""
        return torch.from_numpy(self.cohort).to(self.samples.x.device)

    @property
    def sizes(self) -> Tensor:
        """[m] how many training samples the members of the cohort own."""
        return torch.from_numpy(self.samples.sizes[self.cohort]).to(self.samples.x.device, torch.float64)


class Trained(NamedTuple):
    """The cohort after its local work and before the exchange."""

    models: Tensors  # stacked: what each member would deploy now
    kept: Tree  # whatever else the exchange needs
    loss: Tensor  # [m] mean training loss over the steps
    steps: Tensor  # [m] how many there were; where none, the loss is no number
    gradients: int  # how many times a sample went through forward and backward


class Traffic(NamedTuple):
    """What a round sends, over all links and in both directions."""

    messages: int
    parameters: int
    bytes: int


class Program(NamedTuple, Generic[S]):
    """Pure functions over a state; the state is a NamedTuple of (stacked) tensors and nothing hides elsewhere."""

    shared: frozenset[str]  # what travels; the rest never leaves its client
    init: Callable[[Tensors, int], S]  # one model's tensors, number of clients
    train: Callable[[S, Round], Trained]
    exchange: Callable[[S, Trained, Round], S]
    models: Callable[[S], Tensors]  # stacked: what each client would deploy
    traffic: Callable[[S, Round], Traffic]
    topology: Topology | None = None
    participation: float | int = 1.0  # a fraction of the clients, or a count
    prepare: Callable[[S, Round], S] | None = None  # once before the first round, with all clients
    consensus: Callable[[S], Tensors] | None = None  # the one model they agree on; None: the mean of all models


@dataclass(frozen=True)
class Algorithm:
    """A method with its settings. ``settings`` is complete: building it again with them gives an equal one."""

    name: str
    settings: Mapping[str, Any]
    bind: Callable[[Problem], Program[Any]]

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.settings.items() if v is not None)
        return f"{self.name.replace('-', '_')}({inside})"
