"""The clients' models of the round that a run would report so far, beside its checkpoints.

A checkpoint has the state of the latest rounds; the round that validation samples choose may be long past. What was
chosen is written before the checkpoint of its round, and stays until no checkpoint could need it.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from ..core.errors import DamagedFileError
from ..core.tensors import Tensors
from .safetensors import save_tensors

CHOSEN = "chosen"  # a folder of a run


def save_chosen(run: Path, round: int, tensors: Tensors, oldest: int) -> None:
    """Write what was chosen in a round; ``oldest``: the round of the oldest checkpoint, which may be gone back to."""
    save_tensors(_file(run, round), tensors)
    needed = max((r for r in chosen_rounds(run) if r <= oldest), default=0)
    for past in chosen_rounds(run):
        if past < needed:
            _file(run, past).unlink()


def load_chosen(run: Path, most: int) -> Tensors | None:
    """Return what was chosen last, up to a round; None where nothing was. What came later is removed."""
    found = chosen_rounds(run)
    for later in found:
        if later > most:
            _file(run, later).unlink()
    latest = max((r for r in found if r <= most), default=None)
    if latest is None:
        return None
    try:
        return {k: v.clone() for k, v in load_file(_file(run, latest)).items()}
    except (OSError, SafetensorError) as error:
        raise DamagedFileError(_file(run, latest), f"it cannot be read ({error})") from error


def chosen_rounds(run: Path) -> list[int]:
    """Return the rounds whose choice is there, in ascending order."""
    return sorted(int(path.stem.removeprefix("round-")) for path in (run / CHOSEN).glob("round-*.safetensors"))


def drop_chosen(run: Path) -> None:
    """Remove all of it, once the clients' models are written."""
    for round in chosen_rounds(run):
        _file(run, round).unlink()
    if (run / CHOSEN).exists():
        for left in (run / CHOSEN).iterdir():  # of a kill
            left.unlink()
        (run / CHOSEN).rmdir()


def _file(run: Path, round: int) -> Path:
    return run / CHOSEN / f"round-{round:06d}.safetensors"
