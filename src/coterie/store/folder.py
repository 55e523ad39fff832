"""A run's folder: config.json, metrics.jsonl, summary.json, clients.json, digests.json, checkpoint/ and clients/.

The bootstrap draws of clients.json are in resampled.safetensors: a hundred thousand numbers are no text.
``RunFolder`` is what is there; ``Writer`` adds to it while a run trains, so seldom that it hardly notices.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar, cast

import numpy as np
import torch

from ..core.annotations import shown
from ..core.checked_json import check_table, made_of, read_json, read_lines, read_rows
from ..core.errors import DamagedFileError, FolderError
from ..core.files import append_line, digest, disk, json_text, text_digest, to_disk, write_json, write_text
from ..core.schema import ClientSummary, Config, Row, Summary
from ..core.tensors import Tensors
from . import checkpoint as checkpoints
from .checkpoint import Checkpoint, Saved
from .chosen import CHOSEN, drop_chosen
from .digests import DIGESTS, Digests
from .lock import LOCK, sole_writer
from .models import MODELS, write_models
from .safetensors import save_tensors

# These may differ between a run and its continuation: they do not change what is computed. The fingerprint of the data
# says more than the shape of a sample, which older folders do not have.
_FREE = ("versions", "engine", "engine_reason", "machine", "sample_shape")


def differences(there: Any, here: Any, at: str = "") -> list[str]:
    """Return where two configurations differ, as ``key: value there, value here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = sorted((there.keys() | here.keys()) - set(_FREE))
        return [d for k in keys for d in differences(there.get(k), here.get(k), f"{at}.{k}".lstrip("."))]
    return [] if there == here else [f"{at}: {shown(there)} there, {shown(here)} here"]


T = TypeVar("T")

CONFIG, METRICS, SUMMARY, CLIENTS = "config.json", "metrics.jsonl", "summary.json", "clients.json"
RESAMPLED = "resampled.safetensors"  # what clients.json would have under that key, as one tensor
CHECKPOINT = "checkpoint"  # a folder in it
INBOX, OUTBOX = "inbox", "outbox"  # those of a peer's messages
LOG = "log.jsonl"  # a peer's; log.jsonl.1 is the one before it, and so on
UNBEGUN = f".{CONFIG}.tmp"  # all that a kill leaves of a run which has not begun
SHARE = 0.05  # of the time may be spent on writing checkpoints


class RunFolder:
    """One run on disk. What it has written is whole at every moment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        with disk(self.path):
            return (self.path / CONFIG).exists()

    @property
    def finished(self) -> bool:
        """Whether the run here is complete."""
        with disk(self.path):
            return (self.path / SUMMARY).exists()

    @property
    def has_models(self) -> bool:
        """Whether the clients' models are here; a pack may have left them out, all together."""
        return (self.path / MODELS).exists()

    @contextmanager
    def writing(self, config: Config, say: Callable[[str], object], continued: bool = False) -> Iterator[None]:
        """Keep others from writing here meanwhile, and begin a new run unless one is continued.

        One that fails before its first round is finished leaves what a kill would, in whose place another can begin.
        """
        with sole_writer(self.path, say) as lock:
            if continued:
                self.check_same(config)
            else:
                self.begin(config, lock.killed)
            try:
                yield
            except Exception:
                lock.stays = not (self.path / METRICS).exists()
                raise

    def tidy(self) -> None:
        """Remove what a kill right after the last file has left beside a finished run."""
        if (self.path / CHOSEN).exists():
            with disk(self.path):
                drop_chosen(self.path)
        if (self.path / LOCK).exists():
            with suppress(FolderError), sole_writer(self.path, str):
                pass

    def begin(self, config: Config, killed: bool = False) -> None:
        """Begin a new run; refuse a folder that has more in it than a run that was killed before its first round."""
        left = {UNBEGUN, LOCK, *([CONFIG] if killed else [])}
        with disk(self.path):
            if self.path.exists() and any(path.name not in left for path in self.path.iterdir()):
                raise FolderError(
                    f"{self.path} already exists: choose another --out, or continue that run with --resume"
                )
        write_json(self.path / CONFIG, config)

    def config(self) -> Config:
        """Return the configuration that the run was begun with."""
        found = read_json(self.path / CONFIG, Config)
        self._check(CONFIG)
        return found

    def check_same(self, config: Config) -> None:
        """Refuse to continue with another configuration, and show the difference."""
        found = differences(self.config(), json.loads(json.dumps(config)))
        if found:
            raise FolderError(
                f"cannot resume {self.path}, its configuration differs from that in {CONFIG} "
                f"({'; '.join(found)}): use the same options, or another --out"
            )

    def resumed(
        self,
        restored: Callable[[checkpoints.Checkpoint], T],
        warn: Callable[[str], object],
        say: Callable[[str], object],
    ) -> tuple[T, list[Row]] | None:
        """Return the state that was saved last, as ``restored`` makes it, and the rows until then; None without any."""
        saved = self.latest(warn)
        rows = self.history(0 if saved is None else saved.round)
        if saved is None:
            return None
        say(f"resuming {self.path} after round {saved.round}")
        with made_of(str(self.path / CONFIG), "settings"):  # with other settings there would be other tensors
            return restored(saved), rows

    def history(self, rounds: int) -> list[Row]:
        """Return the first ``rounds`` rows; what came after the checkpoint is taken out of the file."""
        rows, why = [], ""
        try:
            rows = self.rows(rounds)
        except DamagedFileError as error:
            why = f" ({error.found})"
        if len(rows) < rounds:
            lacking = f"{self.path / METRICS} does not hold rounds 1 to {rounds}{why}"
            raise FolderError(f"{lacking}: start again with another --out")
        write_text(self.path / METRICS, "".join(line + "\n" for line in read_lines(self.path / METRICS, rounds)))
        return rows

    def rows(self, most: int | None = None) -> list[Row]:
        """Return the rows of all finished rounds, or of so many."""
        found = read_rows(self.path / METRICS, most)
        self._check(METRICS)
        return found

    def summary(self) -> Summary:
        """Return what a finished run came to."""
        found = read_json(self.path / SUMMARY, Summary)
        self._check(SUMMARY)
        return found

    def append(self, row: Row) -> None:
        """Add the row of one more round."""
        # Not synced: that would wait behind a checkpoint that is being written, and rows no checkpoint covers are cut.
        append_line(self.path / METRICS, row)

    def save(self, round: int, state: Saved) -> None:
        """Save the state after ``round`` rounds, whose rows are on the disk before it counts."""
        if round:
            with disk(self.path / METRICS):
                to_disk(self.path / METRICS)
        checkpoints.save(self.path / CHECKPOINT, round, state)

    def latest(self, say: Callable[[str], object]) -> checkpoints.Checkpoint | None:
        """Return the newest whole checkpoint."""
        return checkpoints.newest(self.path / CHECKPOINT, say)

    def client_summary(self) -> ClientSummary:
        """Return what is known of every client after the last round; nothing before that."""
        path = self.path / CLIENTS
        if not path.exists():
            self._check(CLIENTS)
            return {}
        found = read_json(path, ClientSummary)
        check_table(path, "labels", found.get("labels") or ())
        self._check(CLIENTS)
        if "resampled" in found:
            raise FolderError(f"{path} is of an earlier form, with the draws inside: start the run again")
        if (self.path / SUMMARY).exists() and RESAMPLED in (digests := Digests.of(self.path)).sha256:
            draws = digests.tensors(self.path / RESAMPLED)["resampled"].tolist()
            found["resampled"] = [[None if math.isnan(value) else value for value in row] for row in draws]
        return found

    def _check(self, name: str) -> None:
        """Refuse a file of a finished run that is not as the run wrote it."""
        if (self.path / SUMMARY).exists():
            Digests.of(self.path).check(self.path / name)

    def finish(
        self, summary: Summary, clients: Iterable[Tensors], client_summary: ClientSummary, common: Tensors
    ) -> None:
        """Write the clients' models, what is known of them, then the summary that says the run is complete.

        ``common``: what all clients have the same.
        """
        sha256 = write_models(self.path, client_summary.get("names", ()), clients, common)
        written = cast(ClientSummary, {k: v for k, v in client_summary.items() if k != "resampled"})
        if "resampled" in client_summary:
            draws = np.array(client_summary["resampled"], dtype=np.float32)  # a value that is None becomes NaN
            sha256[RESAMPLED] = save_tensors(self.path / RESAMPLED, {"resampled": torch.from_numpy(draws)})
        sha256[CLIENTS] = write_json(self.path / CLIENTS, written, indent=None)
        sha256 |= {name: digest(self.path / name) for name in (CONFIG, METRICS)}
        checkpoints.prune(self.path / CHECKPOINT, kept=1)  # nothing is left that could need the one before
        sha256[SUMMARY] = text_digest(json_text(summary))
        write_json(self.path / DIGESTS, {"sha256": sha256})
        write_json(self.path / SUMMARY, summary)
        drop_chosen(self.path)  # last: as long as the run is not complete, it may go on from there


class Writer:
    """Keeps a run's rounds in its folder; use it in a ``with`` statement.

    One checkpoint at a time is written, by a thread: a state never changes once a round has made it, so the next round
    can train meanwhile. While one is under way, and until what it took is SHARE of the time since, states are passed
    over. However the ``with`` statement ends, the last one is saved.
    """

    def __init__(self, folder: RunFolder, say: Callable[[str], object]) -> None:
        self.folder, self.say = folder, say
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._under_way: futures.Future[float] | None = None  # or the last one that was; gives when the next is due
        self._unsaved: tuple[int, Saved] | None = None  # the last round and the state after it, if no checkpoint has it
        self._stream: torch.cuda.Stream | None = None  # that copies tensors of a GPU
        self.longest = 0.0  # seconds that a checkpoint has taken

    def __enter__(self) -> "Writer":
        # The thread is there before the first checkpoint: a Ctrl-C while the pool starts it would make the pool forget
        # it and start another one, and two threads would write into one file.
        self._thread.submit(int).result()
        return self

    def keep(self, row: Row, state: Saved) -> None:
        """Add the row of one more round, and save the state after it when the time has come.

        Raises what went wrong with the checkpoint before.
        """
        self.folder.append(row)
        self._unsaved = row["round"], state
        if self._under_way is not None and not self._under_way.done():
            return
        due = -math.inf if self._under_way is None else self._under_way.result()
        if monotonic() >= due:
            self._begin(*self._unsaved)

    def wait(self) -> None:
        """Wait until nothing is under way, through any Ctrl-C: half of a file helps nobody. It is raised afterwards."""
        interrupted: KeyboardInterrupt | None = None
        while self._under_way is not None and not self._under_way.done():
            try:
                futures.wait([self._under_way])  # joining the thread would take it for dead after a Ctrl-C
            except KeyboardInterrupt as error:
                interrupted = error
        if self._under_way is not None:
            self._under_way.result()
        if interrupted is not None:
            raise interrupted

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        done = self._under_way is None or self._under_way.done()
        failed = self._under_way is not None and done and self._under_way.exception() is not None
        if self._unsaved is not None and not failed:
            self._begin(*self._unsaved)
        if kind is KeyboardInterrupt and self._under_way is not None and not self._under_way.done():
            self.say("saving the last finished round")
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _begin(self, round: int, state: Saved) -> None:
        """Hand a state to the thread, behind whatever it is writing."""
        self._under_way = self._thread.submit(self._write, round, state, self._beside_the_training(state))
        self._unsaved = None

    def _write(self, round: int, state: Saved, queue: AbstractContextManager[object]) -> float:
        """Write a checkpoint and return when the next one is due."""
        began = monotonic()
        with queue:
            self.folder.save(round, state)
        ended = monotonic()
        self.longest = max(self.longest, ended - began)
        return ended + (ended - began) / SHARE

    def _beside_the_training(self, state: Saved) -> AbstractContextManager[object]:
        """Return the queue that copies tensors of a GPU: behind what has made them, but before what comes now.

        torch hands out 32 streams of a priority in turn. One of another priority than those of the engine is none of
        theirs, however many there are: a copy on a stream that trains would wait for it, and would break a recording.
        """
        device = next((v.device for v in state.values() if v.is_cuda), None) if isinstance(state, dict) else None
        if device is None:
            return nullcontext()
        self._stream = self._stream or torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        return torch.cuda.stream(self._stream)


class ExtendedFolder(RunFolder):
    """A run that is to have ``rounds``; its files stay as they are until nothing can be refused any more."""

    def __init__(self, path: Path, rounds: int) -> None:
        super().__init__(path)
        self.rounds = rounds

    @property
    def finished(self) -> bool:
        """Whether the run here is complete, which it is not with more rounds."""
        return False

    def config(self) -> Config:
        """Return the configuration that the run would have been begun with."""
        return cast(Config, {**super().config(), "rounds": self.rounds})

    def resumed(
        self, restored: Callable[[Checkpoint], T], warn: Callable[[str], object], say: Callable[[str], object]
    ) -> tuple[T, list[Row]] | None:
        """Return what was saved last, as any run does; from then on the run here is one that has not ended yet."""
        found = super().resumed(restored, warn, say)
        with disk(self.path):
            # The summary first: as long as it is there, the run is complete.
            for name in (SUMMARY, DIGESTS, CLIENTS, RESAMPLED):
                (self.path / name).unlink(missing_ok=True)
            write_json(self.path / CONFIG, self.config())
        return found
