"""Pictures that commands write: one figure, one PNG."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_png(path: Path) -> None:
    """Refuses what could not be drawn, before anything that takes long."""
    if path.suffix.lower() != ".png":
        raise UserError(f"the picture is a PNG: write it to {path.with_suffix('.png')} instead of {path}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UserError("drawing a PNG needs matplotlib: run pip install 'coterie[report]'") from error


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """A white figure of so many inches to draw on; it is written to ``path`` in the end."""
    check_png(path)
    from matplotlib.figure import Figure

    # Not pyplot, which keeps every figure in a global list and picks a backend for the whole process.
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    yield figure
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): name a folder you can write to") from error
