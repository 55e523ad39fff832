"""What push-sum has sent: on the disk before it leaves, and until its receiver has it on its own.

An entry is one exchange of one round: the sender's numerators, and who gets which share of them and of the mass. It is
written before the first byte is sent, and from then on it is what was sent, even if the round is run again after a
crash. It goes when all receivers have acknowledged it and no checkpoint is left of a state before the round.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock

from safetensors import SafetensorError, safe_open

from ...core.errors import DamagedFileError
from ...core.files import disk
from ...core.tensors import Tensors
from ...store.safetensors import save_tensors
from .kinds import Portion

SHARES = "shares"


@dataclass
class Entry:
    """One exchange of push-sum."""

    path: Path
    round: int
    step: int
    shares: Mapping[str, Portion]  # by receiver
    unsettled: set[str] = field(default_factory=set)

    @cached_property
    def tensors(self) -> Tensors:
        """The numerators as they were sent, mapped from the file once for all receivers."""
        with safe_open(self.path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def message(self, to: str) -> Tensors:
        """Return what a receiver gets: the numerators, once in memory for all, and its share of them."""
        return self.shares[to].message(self.tensors)


class Outbox:
    """The entries of a peer. Every method may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._lock, self._saved, self._oldest = folder, Lock(), 0, 0
        with disk(folder, "folder"):
            folder.mkdir(parents=True, exist_ok=True)
        self.entries = {(e.round, e.step): e for e in map(_read, sorted(folder.glob("*.safetensors")))}

    def commit(self, round: int, step: int, x: Tensors, shares: Mapping[str, Portion]) -> Entry:
        """Write an entry: from now on these shares are no longer with this peer."""
        path = self.folder / f"{round:06d}-{step}.safetensors"
        save_tensors(path, x, {SHARES: json.dumps(shares)})
        entry = Entry(path, round, step, dict(shares), set(shares))
        with self._lock:
            self.entries[round, step] = entry
        return entry

    def settle(self, round: int, step: int, to: str) -> None:
        """Note that a receiver has its share."""
        with self._lock:
            if (round, step) in self.entries:
                self.entries[round, step].unsettled.discard(to)
            self._tidy()

    def saved(self, rounds: int, oldest: int) -> None:
        """Note that the state after so many rounds is on the disk, and after how many the ``oldest`` one there is."""
        with self._lock:
            self._saved, self._oldest = rounds, oldest
            self._tidy()

    def _tidy(self) -> None:
        done = [at for at, e in self.entries.items() if e.round < self._oldest and not e.unsettled]
        for at in done:
            self.entries.pop(at).path.unlink(missing_ok=True)

    @property
    def open(self) -> Entry | None:
        """The entry of a round that was committed and is not saved yet, if a crash has left one."""
        with self._lock:
            return next((e for e in self.entries.values() if e.round >= self._saved), None)

    @property
    def owed(self) -> set[str]:
        """Those who have not acknowledged all that was sent to them."""
        with self._lock:
            return {to for entry in self.entries.values() for to in entry.unsettled}

    @property
    def unsaved_mass(self) -> float:
        """The mass that was handed over in rounds whose states are not saved yet."""
        with self._lock:
            entries = [entry for entry in self.entries.values() if entry.round >= self._saved]
            return sum(share.mass for entry in entries for share in entry.shares.values())

    @property
    def unsettled_mass(self) -> float:
        """The mass that has left and is not acknowledged."""
        with self._lock:
            return sum(e.shares[to].mass for e in self.entries.values() for to in e.unsettled)


def _read(path: Path) -> Entry:
    """Return the entry of a file; refuse a damaged one, because what it says has left this peer."""
    try:
        with safe_open(path, "pt") as file:
            shares = {to: Portion(*share) for to, share in json.loads(file.metadata()[SHARES]).items()}
        round, step = map(int, path.stem.split("-"))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFileError(path, f"it cannot be read ({error})") from error
    return Entry(path, round, step, shares, set(shares))
