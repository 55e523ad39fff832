"""A run's folder: config.json, metrics.jsonl, summary.json, clients.json, checkpoint/ and clients/."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from ..core.errors import UserError
from ..core.files import append_line, disk, to_disk, write_json, write_text
from ..core.schema import ClientSummary, Config, Row, Summary
from ..core.tensors import Tensors
from . import checkpoint as checkpoints
from .saving import save_tensors

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CENSUS = "clients.json"
UNBEGUN = f".{CONFIG}.tmp"  # all that a kill leaves of a run which has not begun

# These may differ between a run and its continuation: they do not change what is computed.
_FREE = ("versions", "engine", "engine_reason")


class RunFolder:
    """One run on disk. What it has written is whole at every moment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        with disk(self.path):
            return (self.path / CONFIG).exists()

    def begin(self, config: Config) -> None:
        """A new run; refuses a folder that has anything in it."""
        with disk(self.path):
            if self.path.exists() and (not self.path.is_dir() or any(p.name != UNBEGUN for p in self.path.iterdir())):
                raise UserError(f"{self.path} already exists: choose another --out, or continue that run with --resume")
        write_json(self.path / CONFIG, config)

    def config(self) -> Config:
        """The configuration the run was begun with."""
        return cast(Config, read_json(self.path / CONFIG))

    def check_same(self, config: Config) -> None:
        """Refuses to continue with another configuration, and shows the difference."""
        differences = _differences(self.config(), json.loads(json.dumps(config)))
        if differences:
            raise UserError(
                f"cannot resume {self.path}, its configuration differs ({'; '.join(differences)}): "
                "use the same options, or another --out"
            )

    def history(self, rounds: int) -> list[Row]:
        """The first ``rounds`` rows; what came after the checkpoint is taken out of the file."""
        path = self.path / METRICS
        lines: list[str] = []
        try:
            lines = path.read_text().splitlines()[:rounds] if path.exists() else []
            rows = [json.loads(line) for line in lines]
            found: list[Any] | None = [row["round"] for row in rows]
        except (ValueError, TypeError, KeyError):
            rows, found = [], None
        if found != list(range(1, rounds + 1)):
            raise UserError(f"{path} does not hold rounds 1 to {rounds}: start again with another --out")
        text = "".join(line + "\n" for line in lines)
        write_text(path, text)
        return rows

    def append(self, row: Row) -> None:
        """The row of one more round."""
        # Not synced: that would wait behind a checkpoint that is being written, and rows no checkpoint covers are cut.
        append_line(self.path / METRICS, row)

    def save(self, round: int, state: checkpoints.Saved) -> None:
        """The state after ``round`` rounds, whose rows are on the disk before it counts."""
        if round:
            with disk(self.path / METRICS):
                to_disk(self.path / METRICS)
        checkpoints.save(self.path / "checkpoint", round, state)

    def latest(self, say: Callable[[str], object]) -> checkpoints.Checkpoint | None:
        """The newest whole checkpoint."""
        return checkpoints.newest(self.path / "checkpoint", say)

    def client_summary(self) -> ClientSummary:
        """What is known of every client after the last round; nothing in folders that were made before it was kept."""
        path = self.path / CENSUS
        return cast(ClientSummary, read_json(path)) if path.exists() else {}

    def finish(self, summary: Summary, clients: Sequence[Tensors], client_summary: ClientSummary) -> None:
        """The clients' models, one file each, what is known of them, then the summary that says it is complete."""
        for i, tensors in enumerate(clients):
            save_tensors(client_file(self.path, i), tensors)
        write_json(self.path / CENSUS, client_summary, indent=None)
        checkpoints.prune(self.path / "checkpoint", kept=1)  # nothing is left that could need the one before
        write_json(self.path / SUMMARY, summary)


def client_file(path: Path, client: int) -> Path:
    """Where a client's model lies."""
    return path / "clients" / f"client-{client:04d}.safetensors"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a sentence."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): give the path of a run folder") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): restore it or start the run again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} does not describe a run: give the config.json of a run folder")
    return value


def _differences(there: Any, here: Any, at: str = "") -> list[str]:
    """Where two configurations differ, as ``key: value there, value here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = sorted((there.keys() | here.keys()) - set(_FREE))
        return [d for k in keys for d in _differences(there.get(k), here.get(k), f"{at}.{k}".lstrip("."))]
    return [] if there == here else [f"{at}: {there!r} there, {here!r} here"]
