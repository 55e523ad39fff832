"""What has arrived at a peer: files of its own folder, each checked before it counts.

A *copy* is a model to be averaged: it is for one exchange of one round, and only those of the current round and of the
next one are taken. A *transfer* is a share of push-sum's numerators and mass, which has left its sender: it is taken
once, whenever it comes, and is on the disk before it is acknowledged.
"""

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from threading import Condition
from typing import Final, NamedTuple

from ...core.errors import DamagedFileError
from ...core.files import disk, to_disk
from ...core.tensors import Tensors
from ..wire.message import LONGEST_HEADER, Announced, Header, Kind, Refused, map_message, open_message

WAITING_ROUNDS = 3  # of one sender's transfers: a late one, that of this round and that of the next
ROUNDING = 1e-9  # of a sum of many portions
HUGE = 1000.0  # times the largest value of one's own first message: nothing that training gives
TURN = 0.2  # seconds: a Ctrl-C between Python's last look and a wait would be lost, so nobody waits longer at once
Arrived = Callable[[], Tensors]
"""A message that was taken: it is mapped into memory when it is called for, and no longer than somebody holds it."""
TRANSFER: Final = "transfer"
COPY: Final = "copy"
_TRANSFER_FILE = re.compile(rf"{TRANSFER}-(?P<round>[0-9]+)-(?P<step>[0-9]+)-(?P<sender>.+)\.safetensors")


class WaitFor(NamedTuple):
    """How long an exchange waits, and for whom."""

    seconds: float
    alive: Callable[[], Collection[str]]  # nobody else is waited for
    longest: float = 0.0  # seconds, while a message of them is arriving


class Announcement(NamedTuple):
    """What every message of one exchange of a round is like, which is the same for all members."""

    kind: Kind
    tensors: Announced
    largest: float = 1.0  # value of the first message

    @property
    def size(self) -> int:
        """The most bytes that such a message may have."""
        return LONGEST_HEADER + sum(dtype.itemsize * math.prod(shape) for dtype, shape in self.tensors.values())


def largest(x: Tensors) -> float:
    """Return the largest value of a message, whatever its sign.

    >>> import torch
    >>> largest({"a": torch.tensor([1.0, -3.0]), "b": torch.zeros(0)})
    3.0
    """
    return max((float(v.abs().max()) for v in x.values() if v.is_floating_point() and v.numel()), default=0.0)


class Mailbox:
    """The messages that were taken and are not used yet. Every method may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        federation: str,
        digest: str,
        announced: Sequence[Announcement],
        senders: Callable[[int, int], Collection[str]],  # (round, step) -> whom this peer hears then
        applied: Mapping[str, tuple[int, int]],  # the last transfer of each sender that the saved state has
        members: int,  # so much is push-sum's mass of all of them together
    ) -> None:
        self.folder, self.federation, self.digest = folder, federation, digest
        self.announced, self.senders, self.members = announced, senders, members
        self.round = 0
        self.mass = 0.0  # push-sum's, that this peer has and that waits here
        self.changed = Condition()
        self._numbers = count()
        self._largest = [each.largest for each in announced]  # value of this peer's own first message
        self._sent: set[int] = set()  # exchanges of which this peer has sent a message
        self._arriving: dict[str, tuple[tuple[int, int], Path]] = {}  # what each sends now, while its file is there
        self._copies: dict[tuple[int, int, str], Path] = {}
        self._transfers: dict[str, dict[tuple[int, int], Path]] = {}
        self._last = dict(applied)
        self._used: list[Path] = []  # transfers of the state that is not saved yet
        self._kept: list[Path] = []  # those of the saved state, which the checkpoint before it would need
        self.applied = dict(applied)
        with disk(folder, "folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self._find(applied)

    def _find(self, applied: Mapping[str, tuple[int, int]]) -> None:
        """Keep the transfers that a crash left here; copies are sent again, and halves of messages, too."""
        for path in sorted(self.folder.iterdir()):
            named = _TRANSFER_FILE.fullmatch(path.name)
            if named is None:
                path.unlink()
                continue
            sender, at = named["sender"], (int(named["round"]), int(named["step"]))
            if at <= applied.get(sender, (-1, -1)):
                self._kept.append(path)
                continue
            self.mass += self._mass_of_whole(path)
            self._transfers.setdefault(sender, {})[at] = path
            self._last[sender] = max(at, self._last.get(sender, (-1, -1)))

    def _mass_of_whole(self, path: Path) -> float:
        """Return a transfer's mass; refuse a damaged one: its sender has let go of it, and cannot send it again."""
        try:
            return float(open_message(path, self._transferred)["mass"])
        except Refused as error:
            raise DamagedFileError(path, str(error)) from error

    def admit(self, header: Header, size: int) -> Path:
        """Return where a message is to be written, or refuse it before it is read."""
        with self.changed:
            self._check(header, size)
            path = self.folder / f".{next(self._numbers)}.part"
            path.touch()
            self._arriving[header.sender] = (header.round, header.step), path
            return path

    def _check(self, header: Header, size: int) -> None:
        if header.federation != self.federation:
            raise Refused("federation", f"it is of the federation {header.federation!r}")
        if header.digest != self.digest:
            raise Refused("settings", "its sender has another method, model or other settings")
        if not 0 <= header.step < len(self.announced) or header.kind != self.announced[header.step].kind:
            raise Refused("format", f"a round has no exchange {header.step} of kind {header.kind!r}")
        if size > self.announced[header.step].size:
            raise Refused("size", f"{size} bytes are more than the {self.announced[header.step].size} of any message")
        if header.round > self.round + 1:
            raise Refused("early", f"it is of round {header.round + 1}, and this peer is in round {self.round + 1}")
        at = header.round, header.step
        if header.sender not in self.senders(*at):
            raise Refused("sender", f"{header.sender} is no neighbor in round {header.round + 1}")
        if header.kind == TRANSFER:
            if at <= self._last.get(header.sender, (-1, -1)):
                raise Refused("duplicate", f"it was taken before: round {header.round + 1}")
            if len(self._transfers.get(header.sender, ())) >= WAITING_ROUNDS * self._transfers_per_round:
                raise Refused("early", f"this peer first uses what {header.sender} has handed over before")
            return
        if header.round < self.round:
            raise Refused("late", f"it is of round {header.round + 1}, and this peer is in round {self.round + 1}")
        if (*at, header.sender) in self._copies:
            raise Refused("duplicate", f"it was taken before: round {header.round + 1}")

    def take(self, header: Header, path: Path) -> None:
        """Check the whole message and keep it: when this returns, it counts."""
        found = open_message(path, self.announced[header.step].tensors, HUGE * max(1.0, self._largest[header.step]))
        mass = float(found["mass"]) if header.kind == TRANSFER else 0.0
        name = f"{header.kind}-{header.round:06d}-{header.step}-{header.sender}.safetensors"
        if header.kind == TRANSFER:
            to_disk(path)
        with self.changed:
            self._check(header, 0)
            if header.kind == TRANSFER:
                self._check_portion(float(found["weight"]), mass)
            final = path.rename(self.folder / name)
            at = header.round, header.step
            if header.kind == TRANSFER:
                to_disk(self.folder)
                self._transfers.setdefault(header.sender, {})[at] = final
                self._last[header.sender] = at
                self.mass += mass
            else:
                self._copies[*at, header.sender] = final
            self.changed.notify_all()

    def _check_portion(self, weight: float, mass: float) -> None:
        """Refuse what no division of a member's mass gives, and mass that the members together do not have."""
        if not (0 <= weight <= 1 and mass >= 0):
            raise Refused("values", f"it hands over {weight:g} of its numbers with a mass of {mass:g}")
        if self.mass + mass > self.members * (1 + ROUNDING):
            more = f"with the {self.mass:g} here this is more than the {self.members} of all members"
            raise Refused("values", f"it hands over a mass of {mass:g}: {more}")

    def moved(self, mass: float) -> None:
        """Note that this peer has so much more mass than before; what it hands over is negative."""
        with self.changed:
            self.mass += mass

    def sent(self, step: int, x: Tensors) -> None:
        """Note what this peer has sent itself: others may differ from it, but not by orders of magnitude.

        The first one counts: what it sends later follows what others have sent, who could raise the bound every round.
        """
        if step not in self._sent:
            self._sent.add(step)
            self._largest[step] = largest(x)

    def enter(self, round: int) -> None:
        """Begin a round: copies of earlier ones are of no use any more."""
        with self.changed:
            self.round = round
            for at in [at for at in self._copies if at[0] < round]:
                self._copies.pop(at).unlink(missing_ok=True)

    def copies(self, wanted: Collection[str], round: int, step: int, until: WaitFor) -> dict[str, Arrived]:
        """Wait for the copies of one exchange; return those that came in time, by sender."""

        def here() -> set[str]:
            return {sender for sender in wanted if (round, step, sender) in self._copies}

        with self.changed:
            found = self._wait(here, frozenset(wanted), (round, step), until)
            paths = {sender: self._copies[round, step, sender] for sender in sorted(found)}
        return {sender: self._arrived(path, step) for sender, path in paths.items()}

    def _arrived(self, path: Path, step: int) -> Arrived:
        return partial(map_message, path, self.announced[step].tensors)

    def transfers(self, wanted: Collection[str], round: int, step: int, until: WaitFor) -> list[Arrived]:
        """Wait for the transfers of one exchange; return all until then that no state has yet, earlier ones as well."""

        def here() -> set[str]:
            return {sender for sender in wanted if self.has_transfer(sender, round, step)}

        with self.changed:
            self._wait(here, frozenset(wanted), (round, step), until)
            ready = []
            for sender, each in sorted(self._transfers.items()):
                for at in sorted(at for at in each if at <= (round, step)):
                    ready.append(each.pop(at))
                    self.applied[sender] = at
            self._used += ready
        return [self._arrived(path, step) for path in ready]

    def has_transfer(self, sender: str, round: int, step: int) -> bool:
        """Tell whether a sender's transfer of an exchange has come: they come in order."""
        return (round, step) <= self._last.get(sender, (-1, -1))

    def _wait(
        self, here: Callable[[], set[str]], wanted: frozenset[str], at: tuple[int, int], until: WaitFor
    ) -> set[str]:
        """Wait until all are here whom one can wait for, in short turns."""
        began = time.monotonic()
        while missing := (wanted - here()) & set(until.alive()):
            longest = until.longest if self._arrives(missing, at) else 0.0
            left = began + max(until.seconds, longest) - time.monotonic()
            if left <= 0:
                break
            self.changed.wait(min(left, TURN))
        return here()

    def _arrives(self, senders: Collection[str], at: tuple[int, int]) -> bool:
        """Tell whether a part of somebody's message of an exchange is here; a cut one is removed by who reads it."""
        found = (self._arriving[sender] for sender in senders if sender in self._arriving)
        return any(exchange == at and path.exists() for exchange, path in found)

    def saved(self) -> None:
        """Note that another state is on the disk, and remove the transfers that the one before it has, too."""
        with self.changed:
            had, self._kept, self._used = self._kept, self._used, []
        for path in had:
            path.unlink(missing_ok=True)

    @property
    def waiting_mass(self) -> float:
        """The mass of the transfers that no saved state has yet."""
        with self.changed:
            paths = [path for each in self._transfers.values() for path in each.values()] + self._used
            return sum(float(map_message(path, self._transferred)["mass"]) for path in paths)

    @property
    def _transfers_per_round(self) -> int:
        return sum(each.kind == TRANSFER for each in self.announced)

    @property
    def _transferred(self) -> Announced:
        return next((each.tensors for each in self.announced if each.kind == TRANSFER), {})
