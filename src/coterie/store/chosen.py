"""The clients' models of the round that a run would report so far, beside its checkpoints.

A checkpoint has the state of the latest rounds; the round that validation samples choose may be long past. What was
chosen is written before the checkpoint of its round, and stays until no checkpoint could need it.
"""

from pathlib import Path

from ..core.checked_json import read_json
from ..core.files import write_json
from ..core.schema import CheckpointFile
from ..core.tensors import Tensors
from .digests import read_tensors
from .safetensors import save_tensors

CHOSEN = "chosen"  # a folder of a run


def save_chosen(run: Path, round: int, tensors: Tensors, oldest: int) -> None:
    """Write what was chosen in a round; ``oldest``: the round of the oldest checkpoint, which may be gone back to."""
    about: CheckpointFile = {"round": round, "sha256": save_tensors(_file(run, round), tensors)}
    write_json(_record(run, round), about)
    needed = max((r for r in chosen_rounds(run) if r <= oldest), default=0)
    for past in chosen_rounds(run):
        if past < needed:
            _remove(run, past)


def load_chosen(run: Path, most: int) -> Tensors | None:
    """Return what was chosen last, up to a round; None where nothing was."""
    latest = max((r for r in chosen_rounds(run) if r <= most), default=None)
    if latest is None:
        return None
    record = _record(run, latest)
    sha = read_json(record, CheckpointFile).get("sha256", "")
    return {k: v.clone() for k, v in read_tensors(_file(run, latest), sha, record).items()}


def drop_later(run: Path, most: int) -> None:
    """Remove what was chosen after a round, which a run that goes on from there trains again."""
    for later in chosen_rounds(run):
        if later > most:
            _remove(run, later)


def chosen_rounds(run: Path) -> list[int]:
    """Return the rounds whose choice is there, in ascending order."""
    return sorted(int(path.stem.removeprefix("round-")) for path in (run / CHOSEN).glob("round-*.json"))


def drop_chosen(run: Path) -> None:
    """Remove all of it, once the clients' models are written."""
    for round in chosen_rounds(run):
        _remove(run, round)
    if (run / CHOSEN).exists():
        for left in (run / CHOSEN).iterdir():  # of a kill
            left.unlink()
        (run / CHOSEN).rmdir()


def _file(run: Path, round: int) -> Path:
    return run / CHOSEN / f"round-{round:06d}.safetensors"


def _record(run: Path, round: int) -> Path:
    return _file(run, round).with_suffix(".json")


def _remove(run: Path, round: int) -> None:
    """Remove what was chosen in a round; the JSON file first, because without it the other does not count."""
    _record(run, round).unlink()
    _file(run, round).unlink(missing_ok=True)
