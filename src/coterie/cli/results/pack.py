"""``coterie pack``."""

from collections.abc import Sequence
from pathlib import Path

from ...core.errors import UserError
from ...core.spec import scaled
from ...store.pack import pack


def _whole(folder: Path) -> Path:
    """Return the folder that a path leads to."""
    try:
        return folder.resolve()
    except (OSError, RuntimeError) as error:  # the latter up to Python 3.12
        raise UserError(f"{folder} is a link that leads to itself: give the folder of a run") from error


def pack_runs(runs: Sequence[Path], out: Path | None, checkpoints: bool) -> None:
    """Write the archive, and say how large it is, what it lacks and what that is needed for."""
    whole = [_whole(run) for run in runs]
    path = out or Path(f"{whole[0].name}.tar.gz")
    found = pack(runs, path, checkpoints)
    held = [f"{found.finished} finished", *([f"{found.unfinished} unfinished"] if found.unfinished else [])]
    print(f"{path} is {scaled(found.size, 'B')} large, with {' and '.join(held)} runs")
    if found.left_out:
        print(
            f"left out are {scaled(found.left_out, 'B')} of clients' models and states, which only coterie export, "
            "coterie.load(...).clients and the drawing of the loss need"
        )
    if found.checkpoints and checkpoints:
        print(
            f"{scaled(found.checkpoints, 'B')} of checkpoints are for going on with unfinished runs after unpacking: "
            "--no-checkpoints leaves them out"
        )
    elif found.checkpoints:
        print("the checkpoints are left out, too: unfinished runs go on only where they were packed")
