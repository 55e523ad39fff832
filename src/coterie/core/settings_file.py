"""A file of settings: TOML, one table per method, as in ``[dfedalt]`` and below it ``lr = 0.1``."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .annotations import shown
from .custom import own_name
from .errors import UserError
from .files import user_path, write_text

TUNED = "the best of"  # the first words of a file that `coterie tune` wrote
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class SettingsFile(NamedTuple):
    """What a file of settings says, not yet held against any method."""

    path: Path
    tables: Mapping[str, Mapping[str, Any]]  # by method, as it is written there
    tuned: bool = False  # whether `coterie tune` wrote it

    @property
    def own_code(self) -> list[str]:
        """The functions of one's own that the values name, such as a topology."""
        return [name for table in self.tables.values() for value in table.values() for name in named_code(value)]


def read_settings(path: str | Path) -> SettingsFile:
    """Return the tables of a file; refuse one that is no TOML, or has anything but tables of plain values."""
    file = user_path(path)
    found = read_toml(file)
    for name, table in found.items():
        if not isinstance(table, dict):
            raise UserError(f"{file}: {name} is in no table, so no method has it: write [METHOD] above it")
        for key, value in table.items():
            if not _plain(value):
                raise UserError(f"{file}, [{name}]: {key}={shown(value)} is no setting: give numbers or a string")
    if not any(found.values()):
        raise UserError(f"{file} has no settings: write [dfedalt] and below it lr = 0.1")
    return SettingsFile(file, found, file.read_text(encoding="utf-8").startswith(f"# {TUNED}"))


def read_toml(
    file: Path,
    missing: str = "name a file of settings, one table per method",
    example: str = "write [dfedalt] and below it lr = 0.1",
) -> dict[str, Any]:
    """Return what a file says; refuse one that is not there (``missing``: the fix), or no TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): {missing}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no text in UTF-8: write the settings in that encoding") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{file} is not TOML ({error}): {example}") from error


def named_code(value: Any) -> list[str]:
    """Return the functions of one's own that a setting names.

    >>> named_code("mine:teams,size=3"), named_code(["ring", "mine:net"]), named_code(0.1)
    (['mine:teams'], ['mine:net'], [])
    """
    if isinstance(value, list | tuple):
        return [name for one in value for name in named_code(one)]
    name = own_name(value)
    return [] if name is None else [name]


def _plain(value: Any) -> bool:
    return all(map(_plain, value)) if isinstance(value, list) else isinstance(value, bool | int | float | str)


def write_settings(path: Path, tables: Mapping[str, Mapping[str, Any]], remarks: Sequence[str] = ()) -> None:
    """Write a file of settings that ``read_settings`` reads; ``remarks``: comments above the tables."""
    blocks = [[f"# {line}" for remark in remarks for line in remark.splitlines()]]
    for name, table in tables.items():
        blocks.append([f"[{_key(name)}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())])
    write_text(path, "\n\n".join("\n".join(block) for block in blocks if block) + "\n")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value(value: Any) -> str:
    """Write a plain value; TOML has no null, so None is the text that people type for it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return (
        repr(value) if isinstance(value, float) else json.dumps("none" if value is None else value, ensure_ascii=False)
    )
