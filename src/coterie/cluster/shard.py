"""A shard: an experiment with some of the clients, and where they stood after the latest rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..core.tensors import Tensors, size_in_bytes
from ..data.batches import Integers
from ..engines.base import Engine
from ..measure.shards import ShardMeasures
from ..store.checkpoint import Checkpoint
from ..training.experiment import Experiment, RunState
from ..training.first import everybodys
from ..training.run import client_tensors
from .shard_thread import Request, ShardThread
from .sharded import Sharded

T = TypeVar("T")


@dataclass(frozen=True)
class ShardContext:
    """What all shards of a run have in common."""

    experiment: Experiment  # with all clients
    owner: Integers  # [n] which shard each client lies on
    engine: Engine  # for the clients of a shard


class Shard:
    """The clients of one shard, round by round. A round never changes what was before it, so it can be repeated."""

    def __init__(self, scene: ShardContext, number: int, round: int = 0, state: Tensors | None = None) -> None:
        self.script = ShardThread()
        engine = Sharded(scene.engine, self.script, number, scene.owner)
        self.experiment = scene.experiment.changed(engine=engine, shard=engine.local_clients)
        self.after: dict[int, RunState] = {}  # round -> where its clients stood; the latest two
        if state is not None:
            self.after[round] = self.experiment.restored(Checkpoint(round, state))

    def begin(self, name: str, *args: Any) -> Request:
        """One of the works below, until it needs other shards or has ended."""
        work: Callable[..., Any] = getattr(self, name)
        return self.script.begin(lambda: work(*args))

    def start(self) -> tuple[None, Tensors]:
        """Before the first round."""
        self.after = {0: self.experiment.start()}
        return None, self.saved(0)

    def run_round(self, t: int, evaluate: bool) -> tuple[ShardMeasures, Tensors]:
        """Round ``t``, counted from 0."""
        now, part = self.experiment.run_shard_round(self.after[t], t, evaluate)
        self.after = {t: self.after[t], t + 1: now}
        return part, self.saved(t + 1)

    def saved(self, round: int) -> Tensors:
        """Where its clients stood after so many rounds."""
        return self.experiment.saved(self.after[round])

    def clients(self, round: int) -> tuple[None, Tensors]:
        """The models of its clients, as their files hold them, under the clients' numbers."""
        found = self.experiment.clients(self.after[round].state)
        numbered = zip(self.experiment.local_clients.tolist(), found, strict=True)
        return None, {f"{i}/{k}": v for i, client in numbered for k, v in client_tensors(client).items()}

    def accuracies(self, round: int) -> tuple[Any, Tensors]:
        """Those of its clients, by protocol."""
        now = self.after[round]
        return self.experiment.accuracies(now.state, now.after_train, max(0, round - 1)), {}


def tree(parts: Sequence[T], add: Callable[[int, T, T], T]) -> T:
    """All parts added up in pairs, pairs of pairs and so on: the same order whoever adds them, and wherever.

    >>> tree(["a", "b", "c"], lambda i, x, y: f"({x}+{y})")
    '((a+b)+c)'
    """
    held = list(enumerate(parts))
    while len(held) > 1:
        pairs = [held[k : k + 2] for k in range(0, len(held), 2)]
        held = [(p[0][0], add(p[0][0], p[0][1], p[1][1]) if len(p) == 2 else p[0][1]) for p in pairs]
    return held[0][1]


class Outline(NamedTuple):
    """What the saved state of a run looks like."""

    stacked: frozenset[str]  # names that have a row a client; the others are the server's, the same on every shard
    bytes: int  # of a client's rows


def outline(experiment: Experiment) -> Outline:
    """Found by trying: with the first client alone, and with it twice."""
    shapes = []
    for held in (experiment.local_clients[[0]], experiment.local_clients[[0, 0]]):
        one = experiment.changed(shard=held)
        state = one.program.init(one.model.start, everybodys(None, one.model.start, held))
        saved = one.saved(RunState(state, one.unmeasured()))
        shapes.append({k: v.shape for k, v in saved.items()})
    rows = frozenset(k for k, shape in shapes[0].items() if shape != shapes[1][k])
    return Outline(rows, size_in_bytes(v for k, v in saved.items() if k in rows) // 2)
