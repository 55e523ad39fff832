"""Where data sets are on this machine: a folder that people choose once."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..core.errors import UserError
from ..core.files import config_folder, user_path, write_text

OPTION = "--data-dir"
VARIABLE = "COTERIE_DATA"
_KEY = "data_dir"


class Place(NamedTuple):
    """A folder for data sets, and who chose it."""

    path: Path
    chosen_by: str


def data_dir(option: str | Path | None = None) -> Place:
    """Return the folder: the option's, else that of COTERIE_DATA, else the one chosen once, else ./data.

    >>> data_dir("/srv/data").chosen_by
    'the option'
    """
    if option:
        return Place(user_path(option), "the option")
    if os.environ.get(VARIABLE):
        return Place(user_path(os.environ[VARIABLE]), VARIABLE)
    saved = _saved().get(_KEY)
    if saved is None:
        return Place(Path("data"), "default")
    return Place(Path(str(saved)), str(config_file()))


def choose(folder: str | Path) -> Path:
    """Remember the folder for all later calls."""
    path = user_path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is no folder: name one that is, or one to be made")
    text = json.dumps({**_saved(), _KEY: str(path)}, indent=2) + "\n"
    write_text(config_file(), text, OPTION, shared=True)
    return path


def config_file() -> Path:
    """Return the file in which the choice is kept."""
    return config_folder() / "config.json"


def _saved() -> dict[str, object]:
    try:
        saved: Any = json.loads(config_file().read_text(encoding="utf-8"))
        if not isinstance(saved, dict) or not isinstance(saved.get(_KEY, ""), str):
            raise ValueError("it is not an object that names a folder")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{config_file()} cannot be read ({error}): fix or remove it") from error
    return cast(dict[str, object], saved)


def convenience(path: Path, write: Callable[[], None]) -> None:
    """Write what only makes things faster or clearer: a shared folder that is read-only is no reason to stop."""
    try:
        write()
    except UserError as error:
        print(f"{path.name} is not kept: {error}", file=sys.stderr)
