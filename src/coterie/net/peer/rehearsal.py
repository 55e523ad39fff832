"""What every message of a round will be like, found by going through one without anybody answering."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...algorithms.base import Round
from ...core.tensors import Tensors
from ...training.experiment import Experiment, RunState
from .engine import Delivery, Networked
from .kinds import Copies, Portion, Transfers
from .mailbox import Announcement, Arrived, largest


@dataclass
class Rehearsal:
    """An exchange with nobody, which notes what would be sent."""

    announced: list[Announcement] = field(default_factory=list)

    def copies(self, x: Tensors, to: Sequence[int], wanted: Sequence[int]) -> Mapping[int, Arrived]:
        """Note a copy."""
        self._note(Copies.name, x)
        return {}

    def transfers(self, x: Tensors, shares: Mapping[int, Portion], wanted: Sequence[int]) -> Delivery:
        """Note a transfer."""
        self._note(Transfers.name, Portion(0.0, 0.0).message(x))
        return Delivery(x, {}, [])

    def _note(self, kind: str, x: Tensors) -> None:
        self.announced.append(Announcement(kind, {k: (v.dtype, tuple(v.shape)) for k, v in x.items()}, largest(x)))


def announcements(experiment: Experiment, client: int, start: RunState) -> list[Announcement]:
    """Return the messages of any round: a client without samples trains for no step, and exchanges what it has."""
    rehearsal = Rehearsal()
    engine = Networked(experiment.engine, client, rehearsal)
    r = replace(experiment.round(0), engine=engine)
    experiment.program.exchange(start.state, experiment.program.train(start.state, without_samples(r)), r)
    return rehearsal.announced


def without_samples(r: Round) -> Round:
    """Return a round in which no client has samples, so that training takes no step."""
    return replace(r, samples=replace(r.samples, owned=tuple(own[:0] for own in r.samples.owned)))
