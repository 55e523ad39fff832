"""The kinds of messages between peers: what a peer takes of each, how long it keeps it, and when it uses it.

A *copy* is a model to be averaged: it is for one exchange of one round, and only those of the current round and of the
next one are taken. A *transfer* is a share of push-sum's numerators and mass, which has left its sender: it is taken
once, whenever it comes, and is on the disk before it is acknowledged.

A further kind is one more class here, with a place in the table ``Mailbox.kinds``, and a verb of ``Exchange`` that
sends it.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Condition
from typing import ClassVar, NamedTuple

import torch

from ...core.errors import DamagedFileError
from ...core.tensors import Tensors
from ..wire.message import Announced, Header, Refused, map_message, open_message

WAITING_ROUNDS = 3  # of one sender's transfers: a late one, that of this round and that of the next
ROUNDING = 1e-9  # of a sum of many portions
At = tuple[int, int]
"""(round, step) of an exchange."""
NEVER: At = (-1, -1)


class MessageKind(ABC):
    """The messages of one kind that a peer has taken and not used yet. The mailbox holds its lock for every call."""

    name: ClassVar[str]
    lasts: ClassVar[bool]  # whether it counts whenever it comes: it is sent until its receiver has it on the disk

    def admit(self, header: Header, round: int) -> None:  # noqa: B027 - a kind may take every message
        """Refuse a message that is of no use to a peer in this round."""

    def check(self, message: Tensors) -> None:  # noqa: B027 - and all values
        """Refuse values that no member of this federation has."""

    @abstractmethod
    def take(self, sender: str, at: At, path: Path, message: Tensors) -> None:
        """Keep a message."""

    def found(self, sender: str, at: At, path: Path) -> bool:
        """Tell whether to keep a file that an earlier process has left."""
        return False

    @abstractmethod
    def here(self, sender: str, at: At) -> bool:
        """Tell whether a sender's message of an exchange has come."""

    @abstractmethod
    def due(self, wanted: Collection[str], at: At) -> list[tuple[str, Path]]:
        """Return what an exchange uses, by sender."""

    def enter(self, round: int) -> None:  # noqa: B027 - and keep nothing by round
        """Begin a round."""

    def saved(self) -> list[Path]:
        """Return the files that nobody needs any more, as another state is on the disk."""
        return []


class Copies(MessageKind):
    """Models to be averaged, each for one exchange."""

    name, lasts = "copy", False

    def __init__(self) -> None:
        self._paths: dict[tuple[str, At], Path] = {}

    def admit(self, header: Header, round: int) -> None:
        """Take those of this round and of the next one, once."""
        if header.round < round:
            raise Refused("late", f"it is of round {header.round + 1}, and this peer is in round {round + 1}")
        if self.here(header.sender, (header.round, header.step)):
            raise Refused("duplicate", f"it was taken before: round {header.round + 1}")

    def take(self, sender: str, at: At, path: Path, message: Tensors) -> None:
        """Keep it until its round is over."""
        self._paths[sender, at] = path

    def here(self, sender: str, at: At) -> bool:
        """Tell whether it is here."""
        return (sender, at) in self._paths

    def due(self, wanted: Collection[str], at: At) -> list[tuple[str, Path]]:
        """Return those of this exchange that have come."""
        return [(sender, self._paths[sender, at]) for sender in sorted(wanted) if self.here(sender, at)]

    def enter(self, round: int) -> None:
        """Remove those of earlier rounds."""
        for key in [key for key in self._paths if key[1][0] < round]:
            self._paths.pop(key).unlink(missing_ok=True)


class Portion(NamedTuple):
    """What one receiver of push-sum gets: the weight of the numerators, and the mass."""

    weight: float
    mass: float

    def message(self, x: Tensors) -> Tensors:
        """Return the tensors of a transfer: the numerators ``x``, which are not copied, and the share of them."""
        numbers = {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in ("mass", "weight")}
        return {f"x/{k}": v for k, v in x.items()} | numbers


class Transfers(MessageKind):
    """Shares of push-sum, and the mass that this peer has together with them."""

    name, lasts = "transfer", True

    def __init__(
        self,
        announced: Announced,  # what each of them is like; nothing if the method has none
        per_round: int,  # so many does a member hand to another one in a round
        applied: Mapping[str, At],  # the last one of each sender that the saved state has
        members: int,  # so much is the mass of all members together
        lock: Condition,
    ) -> None:
        self.applied, self.mass = dict(applied), 0.0
        self._announced, self._most, self._members, self._lock = announced, WAITING_ROUNDS * per_round, members, lock
        self._paths: dict[str, dict[At, Path]] = {}
        self._last = dict(applied)
        self._used: list[Path] = []  # of the state that is not saved yet
        self._kept: list[Path] = []  # of the saved state, which the checkpoint before it would need

    def admit(self, header: Header, round: int) -> None:
        """Take each once, in order, and a few until they are used."""
        sender = header.sender
        if self.here(sender, (header.round, header.step)):
            raise Refused("duplicate", f"it was taken before: round {header.round + 1}")
        if len(self._paths.get(sender, ())) >= self._most:
            raise Refused("early", f"this peer first uses what {sender} has handed over before")

    def check(self, message: Tensors) -> None:
        """Refuse what no division of a member's mass gives, and mass that the members together do not have."""
        weight, mass = float(message["weight"]), float(message["mass"])
        if not (0 <= weight <= 1 and mass >= 0):
            raise Refused("values", f"it hands over {weight:g} of its numbers with a mass of {mass:g}")
        if self.mass + mass > self._members * (1 + ROUNDING):
            more = f"with the {self.mass:g} here this is more than the {self._members} of all members"
            raise Refused("values", f"it hands over a mass of {mass:g}: {more}")

    def take(self, sender: str, at: At, path: Path, message: Tensors) -> None:
        """Keep it until a saved state has it."""
        self._paths.setdefault(sender, {})[at] = path
        self._last[sender] = max(at, self._last.get(sender, NEVER))
        self.mass += float(message["mass"])

    def found(self, sender: str, at: At, path: Path) -> bool:
        """Keep it; refuse a damaged one, because its sender has let go of it and cannot send it again."""
        if at <= self.applied.get(sender, NEVER):
            self._kept.append(path)
            return True
        try:
            self.take(sender, at, path, open_message(path, self._announced))
        except Refused as error:
            raise DamagedFileError(path, str(error)) from error
        return True

    def here(self, sender: str, at: At) -> bool:
        """Tell whether it has come: they come in order."""
        return at <= self._last.get(sender, NEVER)

    def due(self, wanted: Collection[str], at: At) -> list[tuple[str, Path]]:
        """Return all until then that no state has yet, of any sender and of earlier exchanges as well."""
        ready = []
        for sender, paths in sorted(self._paths.items()):
            for earlier in sorted(each for each in paths if each <= at):
                ready.append((sender, paths.pop(earlier)))
                self.applied[sender] = earlier
        self._used += [path for _, path in ready]
        return ready

    def saved(self) -> list[Path]:
        """Return those that the state before the saved one has, too."""
        had, self._kept, self._used = self._kept, self._used, []
        return had

    def moved(self, mass: float) -> None:
        """Note that this peer has so much more mass than before; what it hands over is negative."""
        with self._lock:
            self.mass += mass

    @property
    def waiting_mass(self) -> float:
        """The mass of the transfers that no saved state has yet."""
        with self._lock:
            paths = [path for each in self._paths.values() for path in each.values()] + self._used
            return sum(float(map_message(path, self._announced)["mass"]) for path in paths)
