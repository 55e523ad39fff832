"""What an algorithm is: a name, its settings, and a program once the problem is known."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..core import rng
from ..core.clients import client_name
from ..core.errors import DivergedError
from ..core.tensors import Integers, Tensors, Tree, finite, floating, to_device
from ..data.batches import Amount, Batches, Samples
from ..engines.base import Engine, MixingRule, Step
from ..local.personal import Patterns, personal_names
from ..local.steps import Phase
from ..models.model import Model
from ..topology import Topology
from .options import Training
from .traffic import Traffic

S = TypeVar("S")


class Submodel(NamedTuple):
    """A form of the model that some clients train: cut, factorized, or only a part of it.

    ``extract`` and ``embed`` are written for one client; ``index``: the choice of its cut, {} where there is none. Mass
    is 1 where the client holds an entry of the common form and 0 where it does not; {}: it holds all. Where several
    submodels have the same ``prepare``, it runs once for all of them.
    """

    model: Model
    extract: Callable[[Tensors, Tree], Tensors]  # (the common form, index) -> the client's form
    embed: Callable[[Tensors, Tree], tuple[Tensors, Tensors]]  # (the client's form, index) -> (values, else 0; mass)
    private: frozenset[str] = frozenset()  # names of this form that no common one has: they never leave the client
    prepare: Callable[[Tensors], Tensors] | None = None  # the common form -> what ``extract`` is given instead of it


class Assigned(NamedTuple):
    """The members of a cohort that train one submodel."""

    places: Integers  # in the cohort
    submodel: Submodel
    index: Tree  # stacked over them


@dataclass(frozen=True)
class Problem:
    """The problem that a program is bound to: the model, the number of clients, the number of rounds."""

    model: Model  # of all clients, before a method makes others of it
    clients: int  # how many there are
    rounds: int  # of the whole run, for schedules
    seed: int  # of the run
    submodels: Callable[["Round"], Sequence[Assigned]] | None = None  # where clients train forms of their own
    shard: Integers | None = None  # the clients of this process; None: all clients

    @cached_property
    def local_clients(self) -> Integers:
        """The clients whose rows the stacked tensors of a state have, in that order."""
        return np.arange(self.clients) if self.shard is None else self.shard

    @property
    def module(self) -> nn.Module:
        """The module of all clients."""
        return self.model.module

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of all parameters."""
        return frozenset(self.model.parameters)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all tensors, running statistics included; constants are nobody's."""
        return frozenset(self.model.start)

    def personal(self, patterns: Patterns) -> frozenset[str]:
        """Return the names that stay with the clients."""
        return personal_names(self.module, patterns, self.model.constants)


@dataclass(frozen=True)
class Round:
    """One round, as a program sees it."""

    index: int  # counted from 0
    cohort: Integers  # [m] who takes part, of the local clients
    Ws: tuple[Tensor, ...]  # [n, n] who mixes with whom, one exchange after another; none where there is a server
    samples: Samples  # the training data
    engine: Engine  # where the clients run
    seed: int  # of the run
    global_cohort: Integers  # who takes part, wherever they lie
    local_clients: Integers  # those of this process, in the order of the state's rows
    dropout: bool = False  # whether the model drops out: then batches bring the keys of its masks
    smallest_batch: int = 1  # samples that a step needs

    @property
    def W(self) -> Tensor:  # noqa: N802
        """The mixing matrix of the only exchange, or of the first of several; between peers."""
        return self.Ws[0]

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches) -> Tree:
        """Apply ``f`` to every client of the cohort."""
        keys: list[int] = rng.counters(rng.key(self.seed, "torch", self.index), self.cohort).tolist()
        return self.engine.map(f, *clients, keys=keys)

    def scan(self, step: Step, given: Tree, fixed: Tree, batches: Batches) -> Tree:
        """Run ``step`` through all batches of every client of the cohort."""
        key = rng.key(self.seed, "torch", self.index, batches.key or 0)
        return self.engine.scan(step, given, fixed, batches, keys=rng.counters(key, self.cohort).tolist())

    def batches(self, stream: int, amount: Amount, batch_size: int | None, replacement: bool = False) -> Batches:
        """Return the cohort's batches of this round, of shuffled samples or of samples drawn with replacement."""
        key = rng.key(self.seed, "batches", self.index, stream)
        every = self.dropout, self.smallest_batch, 0, replacement
        return Batches(self.samples, self.cohort, amount, batch_size, key, *every)

    @property
    def members(self) -> Tensor:
        """The places of the cohort in a state, to index its stacked tensors with."""
        return to_device(torch.from_numpy(np.searchsorted(self.local_clients, self.cohort)), self.samples.y.device)

    def row(self, weighting: str) -> Tensor:
        """Return [m] a server's row of W: the weight of each local member among all members of the round.

        weighting: "size", by their training samples, or "uniform"; a cohort without any data counts equally.
        """
        sizes = self.samples.sizes
        total = sizes[self.global_cohort].sum() if weighting == "size" else 0
        row = sizes[self.cohort] / total if total else np.full(len(self.cohort), 1 / len(self.global_cohort))
        return to_device(torch.from_numpy(row), self.samples.y.device)


class ModelGroup(NamedTuple):
    """What some members of a cohort would deploy: models of one module."""

    places: Integers  # in the cohort
    model: Model
    models: Tensors  # stacked
    private: frozenset[str] = frozenset()  # names that no common form has


class Trained(NamedTuple):
    """The cohort after its local work and before the exchange."""

    models: Tensors  # stacked: what each member would deploy now, in the common form
    sent: Tensors  # stacked: what leaves the members; of what others have trained, an exchange sees nothing else
    private: Tree  # whatever else the exchange needs
    loss: Tensor  # [m] mean training loss over the steps
    steps: Tensor  # [m] how many there were; where none, the loss is no number
    passes: tuple[tuple[Model, int], ...]  # how many times a sample went forward and backward through which model
    mass: Tensors | None = None  # stacked: 1 where an entry of ``sent`` is there, 0 where it is not; None: all are
    groups: tuple[ModelGroup, ...] = ()  # instead of ``models``, where members have modules of their own

    def check_finite(self, r: Round) -> None:
        """Stop before a diverged client spoils the others."""
        models = floating(self.models) or self.sent
        total = torch.stack([v.sum() for v in (*models.values(), self.loss[self.steps > 0])]).sum()
        if bool(total.isfinite()):  # a NaN or an infinity would show in the sum: one pass in the usual case
            return
        lost = ~self.loss.isfinite() & (self.steps > 0)
        bad = lost | ~finite(models)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            what, who = "loss" if bool(lost[first]) else "model", client_name(r.samples.names, int(r.cohort[first]))
            raise DivergedError(
                f"the {what} of {who} is not finite any more in round {r.index + 1}: "
                "lower lr, or set clip; every round before it is kept"
            )


class Program(NamedTuple, Generic[S]):
    """Pure functions over a state; the state is a NamedTuple of (stacked) tensors and nothing hides elsewhere."""

    shared: frozenset[str]  # the part of a deployed model that is mixed; the rest is its client's own
    phases: Sequence[Phase]  # the local work
    training: Training  # what all methods have in common: rates, batches, fine-tuning, bits
    init: Callable[[Tensors, Tensors], S]  # the common first model; stacked: those of the local clients
    train: Callable[[S, Round], Trained]  # the local work of the cohort, which needs no other client
    exchange: Callable[[S, Trained, Round], S]  # what follows from what the members have sent: the next state
    models: Callable[[S], Tensors]  # stacked: what each client would deploy, in the common form
    message: Callable[[Tensors], Tensors]  # of one model's tensors: names, shapes and types of what a client sends
    traffic: Callable[[S, Round], Traffic]  # messages and bytes of a round
    topology: Topology | None = None  # the graph that clients exchange over; None with a server
    gossip_steps: int = 1  # exchanges of a round over that topology
    fresh_graph: bool = False  # whether each of them has a matrix of its own
    participation: float | int = 1.0  # a fraction of the clients, or a count
    prepare: Callable[[S, Round], S] | None = None  # once before the first round, with all clients
    consensus: Callable[[S], Tensors] | None = None  # the one model they agree on; None: the mean of all models
    receiver_has: Callable[[S], Tensors] | None = None  # what all receivers have already: a server's model
    mass: Callable[[S], Tensor] | None = None  # [n] the weights that push-sum keeps beside the models
    weight_stays_with: Literal["receiver", "sender"] = "receiver"  # the weight of a message that is not delivered
    finetune: Callable[[S, Round], Iterator[ModelGroup]] | None = None  # all models, tuned for measuring only
    submodels: Callable[[Round], Sequence[Assigned]] | None = None  # who has which; None: all have the common model
    server_steps: bool = False  # whether a server takes the steps of ``server_optimizer``
    rule: MixingRule | None = None  # what takes the place of averages in the exchange; None: nothing does


def around(program: Program[Any], inner: Callable[[Any], Any], **own: Any) -> Program[Any]:
    """Return a program whose state has that of another one inside; functions not in ``own`` are those of that one."""

    def looking(f: Callable[..., Any] | None) -> Callable[..., Any] | None:
        return None if f is None else lambda s, *rest: f(inner(s), *rest)

    names = ("train", "models", "traffic", "consensus", "receiver_has", "mass", "finetune")
    return program._replace(**{**{name: looking(getattr(program, name)) for name in names}, **own})


def unchanged(model: Model) -> Model:
    """Return the model as it is."""
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
