"""Where data sets lie on this machine: a folder that people choose once, and writing into it whole or not at all."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..core.errors import UserError

VARIABLE = "COTERIE_DATA"
_KEY = "data_dir"


class Place(NamedTuple):
    """A folder for data sets, and who chose it."""

    path: Path
    chosen_by: str


def data_dir(option: str | Path | None = None) -> Place:
    """The folder: the option's, else that of COTERIE_DATA, else the one chosen once, else ./data.

    >>> data_dir("/srv/data").chosen_by
    'the option'
    """
    if option:
        return Place(Path(option).expanduser(), "the option")
    if os.environ.get(VARIABLE):
        return Place(Path(os.environ[VARIABLE]).expanduser(), VARIABLE)
    saved = _saved().get(_KEY)
    if saved is None:
        return Place(Path("data"), "default")
    if not isinstance(saved, str):
        raise UserError(f"{config_file()} names no folder: choose one with `coterie data dir FOLDER`")
    return Place(Path(saved), str(config_file()))


def choose(folder: str | Path) -> Path:
    """Remembers the folder for all later calls."""
    path = Path(folder).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is no folder: name one that is, or one to be made")
    text = json.dumps({**_saved(), _KEY: str(path)}, indent=2) + "\n"
    whole_file(config_file(), lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def config_file() -> Path:
    """Where the choice is kept, as each system has it."""
    if os.environ.get("XDG_CONFIG_HOME"):
        base = Path(os.environ["XDG_CONFIG_HOME"])
    elif sys.platform == "win32":
        base = Path(os.environ.get("APPDATA", Path.home() / "AppData" / "Roaming"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path.home() / ".config"
    return base / "coterie" / "config.json"


def _saved() -> dict[str, object]:
    try:
        known = json.loads(config_file().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{config_file()} cannot be read ({error}): mend or remove it") from error
    if not isinstance(known, dict):
        raise UserError(f"{config_file()} is no JSON object: mend or remove it")
    return known


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what a disk refuses into a sentence that names the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"cannot write {path} ({reason}): free the disk or its permissions, or choose another --data-dir"
        ) from error


def whole_file(path: Path, write: Callable[[Path], object]) -> None:
    """Makes ``path`` what ``write`` writes, or leaves it as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def whole_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Makes the new folder ``path`` with what ``write`` writes into it, or makes none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            write(temporary)
            if not path.exists():  # another process may have been faster
                temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def convenience(path: Path, write: Callable[[], None]) -> None:
    """Writes what only makes things faster or clearer: that a shared folder is read-only is no reason to stop."""
    try:
        write()
    except UserError as error:
        print(f"{path.name} is not kept: {error}", file=sys.stderr)
