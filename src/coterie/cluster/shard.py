"""A shard: an experiment with some of the clients, and their states after the latest rounds."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..core.tensors import Integers, Tensors, size_in_bytes
from ..engines.base import Engine
from ..measure.rows import ShardMeasures
from ..store.checkpoint import Checkpoint
from ..training.client import folded
from ..training.experiment import Experiment, RunState
from ..training.initial_models import everybodys
from .shard_thread import Request, ShardThread
from .sharded import Sharded

T = TypeVar("T")
COMMON = "common"  # what clients of a shard have the same, in the place of a client's number


class Shard:
    """The clients of one shard, round by round. A round never changes the state before it, so it can be repeated."""

    def __init__(
        self,
        experiment: Experiment,  # with all clients
        engine: Engine,  # for the clients of a shard
        shard_of: Integers,  # [n] the shard of each client
        number: int,
        round: int = 0,
        state: Tensors | None = None,  # after ``round`` rounds
    ) -> None:
        self.thread = ShardThread()
        sharded = Sharded(engine, self.thread, number, shard_of)
        self.experiment = experiment.changed(engine=sharded, shard=sharded.local_clients)
        self.after: dict[int, RunState] = {}  # the states after the latest two rounds
        if state is not None:
            self.after[round] = self.experiment.restored(Checkpoint(round, state))

    def begin(self, name: str, *args: Any) -> Request:
        """Run one of the methods below until it needs other shards or has ended."""
        work: Callable[..., Any] = getattr(self, name)
        return self.thread.begin(lambda: work(*args))

    def start(self) -> tuple[None, Tensors]:
        """Return the state before the first round."""
        self.after = {0: self.experiment.start()}
        return None, self.saved(0)

    def run_round(self, t: int, evaluate: bool) -> tuple[ShardMeasures, Tensors]:
        """Run round ``t``, counted from 0; return its measurements and the state after it."""
        now, measures = self.experiment.run_shard_round(self.after[t], t, evaluate)
        self.after = {t: self.after[t], t + 1: now}
        return measures, self.saved(t + 1)

    def saved(self, round: int) -> Tensors:
        """Return the state after ``round`` rounds as named tensors."""
        return self.experiment.saved(self.after[round])

    def clients(self, round: int) -> tuple[None, Tensors]:
        """Return the clients' models, as their files have them, under the clients' numbers and ``common``."""
        common, own = folded(self.experiment.clients(self.after[round].state, round - 1))
        numbered = zip(self.experiment.local_clients.tolist(), own, strict=True)
        each = {f"{i}/{k}": v for i, tensors in numbered for k, v in tensors.items()}
        return None, each | {f"{COMMON}/{k}": v for k, v in common.items()}

    def values(self, round: int) -> tuple[Any, Tensors]:
        """Return the clients' metrics by protocol."""
        now = self.after[round]
        return self.experiment.values(now.state, now.after_train, max(0, round - 1)), {}


def tree(parts: Sequence[T], add: Callable[[int, T, T], T]) -> T:
    """Add up all parts in pairs, pairs of pairs and so on: the order is the same whoever adds them.

    >>> tree(["a", "b", "c"], lambda i, x, y: f"({x}+{y})")
    '((a+b)+c)'
    """
    left = list(enumerate(parts))
    while len(left) > 1:
        pairs = [left[k : k + 2] for k in range(0, len(left), 2)]
        left = [(p[0][0], add(p[0][0], p[0][1], p[1][1]) if len(p) == 2 else p[0][1]) for p in pairs]
    return left[0][1]


class Outline(NamedTuple):
    """The shape of a run's saved state."""

    stacked: frozenset[str]  # names with one row per client; the others are the server's, equal on every shard
    bytes: int  # of one client's rows


def outline(experiment: Experiment) -> Outline:
    """Compare the saved state of the first client alone with that of the same client twice: rows differ in shape."""
    shapes = []
    for clients in (experiment.local_clients[[0]], experiment.local_clients[[0, 0]]):
        one = experiment.changed(shard=clients)
        state = one.program.init(one.model.start, everybodys(None, one.model.start, clients))
        saved = one.saved(RunState(state, one.unmeasured()))
        shapes.append({k: v.shape for k, v in saved.items()})
    rows = frozenset(k for k, shape in shapes[0].items() if shape != shapes[1][k])
    return Outline(rows, size_in_bytes(v for k, v in saved.items() if k in rows) // 2)
