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
from ..problem import Model
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
    still: Grad  # the gradient in evaluation mode: no dropout, running statistics as they are
    rounds: int  # of the whole run, for what follows a schedule
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
    sent: Tensors  # stacked: what leaves the members; of what others have trained, an exchange sees nothing else
    kept: Tree  # whatever else the exchange needs
    loss: Tensor  # [m] mean training loss over the steps
    steps: Tensor  # [m] how many there were; where none, the loss is no number
    gradients: int  # how many times a sample went through forward and backward


class Load(NamedTuple):
    """What one message weighs."""

    parameters: int
    values: int  # bytes of the parameters
    aside: int = 0  # bytes of what goes along: push-sum's weight, a mask


class Traffic(NamedTuple):
    """What a round sends, over all links and in both directions."""

    sent: int  # messages with what a client has trained
    relayed: int  # messages with what was mixed already: a server's answer, the later ones of several gossip steps
    load: Load  # of those with something trained
    relayed_load: Load  # of the others

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.sent + self.relayed

    @property
    def parameters(self) -> int:
        """How many parameters they hold."""
        return self.sent * self.load.parameters + self.relayed * self.relayed_load.parameters

    @property
    def bytes(self) -> int:
        """How many bytes they take."""
        one, other = (load.values + load.aside for load in (self.load, self.relayed_load))
        return self.sent * one + self.relayed * other


class Program(NamedTuple, Generic[S]):
    """Pure functions over a state; the state is a NamedTuple of (stacked) tensors and nothing hides elsewhere."""

    shared: frozenset[str]  # what travels; the rest never leaves its client
    init: Callable[[Tensors, int], S]  # one model's tensors, number of clients
    train: Callable[[S, Round], Trained]
    exchange: Callable[[S, Trained, Round], S]
    models: Callable[[S], Tensors]  # stacked: what each client would deploy
    message: Callable[[Tensors], Tensors]  # of one model's tensors: names, shapes and types of what a client sends
    traffic: Callable[[S, Round], Traffic]
    topology: Topology | None = None
    participation: float | int = 1.0  # a fraction of the clients, or a count
    prepare: Callable[[S, Round], S] | None = None  # once before the first round, with all clients
    consensus: Callable[[S], Tensors] | None = None  # the one model they agree on; None: the mean of all models
    known: Callable[[S], Tensors] | None = None  # what the receivers of all messages have already: a server's model
    keeps: str = "receiver"  # who takes the weight of a message that is not delivered; push-sum: the "sender"
    finetune: Callable[[S, Round], Tensors] | None = None  # stacked: everybody's model, tuned for measuring only


def unchanged(model: Model) -> Model:
    """The model as it is."""
    return model


@dataclass(frozen=True)
class Algorithm:
    """A method with its settings. ``settings`` is complete: building it again with them gives an equal one."""

    name: str
    settings: Mapping[str, Any]
    bind: Callable[[Problem], Program[Any]]
    adapt: Callable[[Model], Model] = unchanged  # where a method trains another module than the one it is given

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.settings.items() if v is not None)
        return f"{self.name.replace('-', '_')}({inside})"
