"""One participant's part of an experiment: all members' clients, of which only its own has samples here."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...algorithms.base import Algorithm, Problem
from ...core.errors import UserError
from ...core.schema import Config
from ...data import Federation
from ...models.model import Model
from ...topology.sparse import links
from ...training.config import describe
from ...training.experiment import Experiment
from ...training.prepare import prepare
from ...training.settings import RunSettings


@dataclass(frozen=True, eq=False)
class Participant:
    """What one participant runs."""

    federation: str  # the name of the federation
    members: tuple[str, ...]  # all of them, in the order of the clients
    client: int  # which of them this is
    experiment: Experiment  # with the clients of all members, of which this one's alone has samples
    alone: Experiment  # the same as a run of one client, which its folder tells of
    given: Model  # as it was, before the method adapted it
    reason: str  # why the engine was chosen
    agreed: dict[str, Any]  # all that must be the same at every member
    digest: str  # of that
    folder: Path  # of its own
    deadline: float | None = None  # seconds that an exchange waits for neighbors; None: it adapts
    wait: float = 300.0  # seconds for the others to come before the first round

    @property
    def name(self) -> str:
        """The name of this participant."""
        return self.members[self.client]

    @lru_cache(maxsize=8)  # noqa: B019  # a participant lives as long as its process
    def _links(self, round: int) -> list[tuple[list[int], list[int]]]:
        """Return (receivers, senders) of every exchange of a round."""
        Ws = self.experiment.schedule.matrices(round, torch.device("cpu"))
        return [tuple(ends.tolist() for ends in links(W)) for W in Ws]

    def senders(self, round: int, step: int) -> Collection[str]:
        """Return whom this participant hears in an exchange of a round."""
        receivers, senders = self._links(round)[step]
        return {self.members[j] for i, j in zip(receivers, senders, strict=True) if i == self.client}

    def receivers(self, round: int) -> Collection[str]:
        """Return who hears this participant in a round."""
        return {self.members[i] for Ws in self._links(round) for i, j in zip(*Ws, strict=True) if j == self.client}

    def neighbors(self, round: int) -> Collection[str]:
        """Return with whom this participant exchanges messages in a round."""
        heard = (self.senders(round, step) for step in range(len(self._links(round))))
        return set(self.receivers(round)).union(*heard) - {self.name}


def experiments(
    given: Model, own: Federation, members: Sequence[str], client: int, algorithm: Algorithm, settings: RunSettings
) -> tuple[Experiment, Experiment, str]:
    """Return the experiment of all members with the samples of one, that of this one alone, and why its engine.

    ``own``: a federation of one client, this participant's. Its validation samples are those that a simulation of all
    members keeps.
    """
    check_between_peers(algorithm, given, len(members), settings)
    prepared = prepare(given, among(own, members, client), algorithm, settings, shard=np.array([client]))
    whole, choice = prepared.experiment, prepared.choice
    assert choice is not None
    own = only(whole.federation, client, own)
    alone = replace(whole, federation=own, shard=None, program=whole.program._replace(topology=None))
    return whole, alone, choice.reason


def among(own: Federation, members: Sequence[str], client: int) -> Federation:
    """Return a federation of all members, in which the others have no samples."""
    nobody = torch.zeros(0, dtype=torch.int64, device=own.y.device)

    def of(rows: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(rows[0] if i == client else nobody for i in range(len(members)))

    return replace(own, train=of(own.train), test=of(own.test), validation=(), names=tuple(members))


def configuration(p: Participant) -> Config:
    """Return what config.json of a participant's folder says: a run of one client, and whose it is."""
    device = p.experiment.federation.y.device.type
    config = describe(p.alone, p.given, p.experiment.engine.name, p.reason, device)
    own = p.alone.federation
    config["peer"] = {
        "federation": p.federation,
        "name": p.name,
        "number": p.client,
        "members": list(p.members),
        "train_samples": len(own.train[0]),
        "test_samples": len(own.test[0]),
    }
    return config


def only(everybody: Federation, client: int, own: Federation) -> Federation:
    """Return a member's federation of one client, with its training samples divided as among all members."""
    train, validation = (rows[client : client + 1] for rows in (everybody.train, everybody.validation))
    return replace(own, train=train, validation=validation)


def check_between_peers(algorithm: Algorithm, given: Model, members: int, settings: RunSettings) -> None:
    """Refuse what needs a server, and what no peer could repeat after a crash."""
    program = algorithm.bind(Problem(algorithm.adapt(given), members, settings.rounds, settings.seed))
    if program.topology is None:
        raise UserError(
            f"{algorithm.name} as it is set needs a server, and peers have none: give it a topology, if it takes one, "
            "or choose a method between peers, such as dfedalt (`coterie list`)"
        )
    if program.gossip_steps > 1 and program.weight_stays_with == "sender":
        raise UserError(
            f"{algorithm.name} with gossip_steps={program.gossip_steps} hands over mass several times a round, and a "
            "peer that crashes between two of them cannot tell what it still has: leave gossip_steps out, or let "
            'receivers weigh what they hear, as with topology = "random-pull:2"'
        )
