"""What has arrived at a peer: files of its own folder, each checked before it counts."""

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from threading import Condition
from typing import NamedTuple

from ...core.files import disk, to_disk
from ...core.tensors import Tensors
from ..wire.message import LONGEST_HEADER, Announced, Header, Refused, map_message, open_message
from .kinds import At, Copies, MessageKind, Transfers

HUGE = 1000.0  # times the largest value of one's own first message: nothing that training gives
TURN = 0.2  # seconds: a Ctrl-C between Python's last look and a wait would be lost, so nobody waits longer at once
Arrived = Callable[[], Tensors]
"""A message that was taken: it is mapped into memory when it is called for, and no longer than somebody holds it."""
_FILE = re.compile(r"(?P<kind>[a-z]+)-(?P<round>[0-9]+)-(?P<step>[0-9]+)-(?P<sender>.+)\.safetensors")


class WaitFor(NamedTuple):
    """How long an exchange waits, and for whom."""

    seconds: float
    alive: Callable[[], Collection[str]]  # nobody else is waited for
    longest: float = 0.0  # seconds, while a message of them is arriving


class Announcement(NamedTuple):
    """What every message of one exchange of a round is like, which is the same for all members."""

    kind: str
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
        applied: Mapping[str, At],  # the last transfer of each sender that the saved state has
        members: int,
    ) -> None:
        self.folder, self.federation, self.digest = folder, federation, digest
        self.announced, self.senders, self.round = announced, senders, 0
        self.changed = Condition()
        shares = [each.tensors for each in announced if each.kind == Transfers.name]
        self.copies = Copies()
        self.transfers = Transfers(shares[0] if shares else {}, len(shares), applied, members, self.changed)
        self.kinds: dict[str, MessageKind] = {kind.name: kind for kind in (self.copies, self.transfers)}
        self._numbers = count()
        self._largest = [each.largest for each in announced]  # value of this peer's own first message
        self._sent: set[int] = set()  # exchanges of which this peer has sent a message
        self._arriving: dict[str, tuple[At, Path]] = {}  # what each sends now, while its file is there
        with disk(folder, "folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self._find()

    def _find(self) -> None:
        """Keep what a crash has left here and lasts; the rest is sent again, and halves of messages, too."""
        for path in sorted(self.folder.iterdir()):
            named = _FILE.fullmatch(path.name)
            kind = self.kinds.get(named["kind"]) if named else None
            if named and kind and kind.found(named["sender"], (int(named["round"]), int(named["step"])), path):
                continue
            path.unlink()

    def admit(self, header: Header, size: int) -> Path:
        """Return where a message is to be written, or refuse it before it is read."""
        with self.changed:
            self._check(header, size)
            path = self.folder / f".{next(self._numbers)}.part"
            path.touch()
            self._arriving[header.sender] = (header.round, header.step), path
            return path

    def _check(self, header: Header, size: int) -> MessageKind:
        """Refuse a message that this peer has no use for, and return its kind."""
        if header.federation != self.federation:
            raise Refused("federation", f"it is of the federation {header.federation!r}")
        if header.digest != self.digest:
            raise Refused("settings", "its sender has another method, model or other settings")
        if header.kind not in self.kinds:
            raise Refused("format", f"its kind is none of {', '.join(self.kinds)}")
        if not 0 <= header.step < len(self.announced) or header.kind != self.announced[header.step].kind:
            raise Refused("format", f"a round has no exchange {header.step} of kind {header.kind!r}")
        if size > self.announced[header.step].size:
            raise Refused("size", f"{size} bytes are more than the {self.announced[header.step].size} of any message")
        if header.round > self.round + 1:
            raise Refused("early", f"it is of round {header.round + 1}, and this peer is in round {self.round + 1}")
        if header.sender not in self.senders(header.round, header.step):
            raise Refused("sender", f"{header.sender} is no neighbor in round {header.round + 1}")
        kind = self.kinds[header.kind]
        kind.admit(header, self.round)
        return kind

    def take(self, header: Header, path: Path) -> None:
        """Check the whole message and keep it: when this returns, it counts."""
        most = HUGE * max(1.0, self._largest[header.step])
        message = open_message(path, self.announced[header.step].tensors, most)
        if self.kinds[header.kind].lasts:
            to_disk(path)
        with self.changed:
            kind = self._check(header, 0)
            kind.check(message)
            name = f"{header.kind}-{header.round:06d}-{header.step}-{header.sender}.safetensors"
            final = path.rename(self.folder / name)
            if kind.lasts:
                to_disk(self.folder)
            kind.take(header.sender, (header.round, header.step), final, message)
            self.changed.notify_all()

    def sent(self, step: int, x: Tensors) -> None:
        """Note what this peer has sent itself: others may differ from it, but not by orders of magnitude.

        The first one counts: what it sends later follows what others have sent, who could raise the bound every round.
        """
        if step not in self._sent:
            self._sent.add(step)
            self._largest[step] = largest(x)

    def enter(self, round: int) -> None:
        """Begin a round."""
        with self.changed:
            self.round = round
            for kind in self.kinds.values():
                kind.enter(round)

    def due(
        self, kind: MessageKind, wanted: Collection[str], at: At, until: WaitFor
    ) -> tuple[set[str], list[tuple[str, Arrived]]]:
        """Wait for the messages of one exchange; return who was heard in time, and what there is to use, by sender."""
        began = time.monotonic()
        with self.changed:
            while missing := {k for k in wanted if not kind.here(k, at)} & set(until.alive()):
                longest = until.longest if self._arrives(missing, at) else 0.0
                left = began + max(until.seconds, longest) - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(min(left, TURN))
            heard = {sender for sender in wanted if kind.here(sender, at)}
            ready, tensors = kind.due(wanted, at), self.announced[at[1]].tensors
        return heard, [(sender, partial(map_message, path, tensors)) for sender, path in ready]

    def _arrives(self, senders: Collection[str], at: At) -> bool:
        """Tell whether a part of somebody's message of an exchange is here; a cut one is removed by who reads it."""
        found = (self._arriving[sender] for sender in senders if sender in self._arriving)
        return any(exchange == at and path.exists() for exchange, path in found)

    def saved(self) -> None:
        """Note that another state is on the disk, and remove what nobody needs any more."""
        with self.changed:
            gone = [path for kind in self.kinds.values() for path in kind.saved()]
        for path in gone:
            path.unlink(missing_ok=True)
