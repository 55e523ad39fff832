"""An environment of its own for every peer: their requirements exclude each other's and must not touch Coterie's."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
VENVS = HERE.parent / ".venvs"


class UnavailableError(Exception):
    """A peer cannot take part; the message is one sentence that says why."""


def prepare(peer: str, say: Callable[[str], None]) -> Path:
    """The interpreter of a peer's environment, which is made first where it is missing or of other versions."""
    wanted = HERE / f"requirements-{peer}.txt"
    folder = VENVS / peer
    python, stamp = folder / "bin" / "python", folder / ".ready"
    if not (stamp.is_file() and stamp.read_text() == wanted.read_text()):
        say(f"installing {peer} into {folder} (some minutes, once)")
        run(f"no environment could be made in {folder}", sys.executable, "-m", "venv", folder)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", wanted)
        run(f"{wanted.name} could not be installed", *pip)
        stamp.write_text(wanted.read_text())  # last: an interrupted installation is taken up again by the next call
    return python


def run(failure: str, *command: str | Path) -> None:
    """Runs a command in silence; the last line of what it said becomes the reason of a failure."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UnavailableError(f"{failure} ({error.strerror})") from error
    if ended.returncode:
        raise UnavailableError(f"{failure} ({last_line(ended.stderr)})")


def last_line(said: str) -> str:
    """The last line that is not empty.

    >>> last_line("collecting\\nERROR: no such version\\n\\n")
    'ERROR: no such version'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
