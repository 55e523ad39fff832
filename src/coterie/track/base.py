"""The interface of trackers, and what several of them need."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol

from ..core.errors import UserError
from ..core.files import write_json
from ..core.schema import Config, Summary, TrackedRow
from ..store import read_json

MARKS = "trackers.json"  # in a run folder: under which id each tracker knows the run


class Tracker(Protocol):
    """Takes the numbers of runs, one run after another.

    Whatever it refuses before any training (a package or a server that is not there), it refuses when it is made.
    Whatever it raises later is shown once and the run goes on without it.
    """

    @property
    def name(self) -> str:
        """How it is called in sentences, and in the run folder."""

    def begin(self, config: Config, folder: Path | None, history: Sequence[TrackedRow]) -> str:
        """A run begins, or goes on after the rounds of ``history``; returns where to look at it."""

    def round(self, row: TrackedRow) -> None:
        """One more round, as in metrics.jsonl, with the bytes of all rounds so far as ``bytes_sent_total``."""

    def end(self, summary: Summary | None) -> None:
        """The run is finished; None: it was interrupted, and may go on later."""


def needed(module: str, extra: str) -> Any:
    """An optional package, or a sentence that names what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(f"{extra} is not installed: run pip install 'coterie[{extra}]'") from error


def reason(error: BaseException) -> str:
    """The first line of an error, or as much of it as a sentence bears.

    >>> reason(OSError("gone\\nat line 3")), reason(KeyError())
    ('gone', 'KeyError')
    """
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0], 200, placeholder=" ...")


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row by name.

    >>> scalars({"round": 3, "train_loss": 0.5, "global_accuracy": None, "bytes_sent": 8})
    {'train_loss': 0.5, 'bytes_sent': 8.0}
    """
    return {k: float(v) for k, v in row.items() if isinstance(v, int | float) and k != "round"}


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested dicts as names with points.

    >>> dict(flat({"method": "local", "data": {"clients": 4}}))
    {'method': 'local', 'data.clients': 4}
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def name_of(config: Config, folder: Path | None) -> str:
    """What a run is called: as its folder, where it has one."""
    return f"{config['method']}-seed{config['seed']}" if folder is None else folder.absolute().name


def mark(folder: Path | None, name: str) -> str | None:
    """Under which id a tracker knows the run of this folder."""
    path = None if folder is None else folder / MARKS
    return read_json(path).get(name) if path is not None and path.exists() else None


def remember(folder: Path | None, name: str, known_as: str) -> None:
    """Keeps that id, so that a continued run is the same one there, too."""
    if folder is not None:
        path = folder / MARKS
        write_json(path, {**(read_json(path) if path.exists() else {}), name: known_as})
