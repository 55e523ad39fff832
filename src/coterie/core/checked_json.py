"""JSON files from any origin: each is whole and of the types of ``core/schema``, or it is refused in a sentence.

msgspec holds the values against the types. What no type can say is checked here: a number is finite, a text can be
printed without moving a cursor, and nothing is nested deeper than a run's files are.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .annotations import LARGEST, shown
from .errors import DamagedFileError, UserError
from .extras import import_extra
from .schema import Row

T = TypeVar("T")

DEEPEST = 32  # lists and objects inside each other
SHOWN = 60  # characters of a value that a sentence repeats
_TOKENS = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[\[\]{}]')
# Control characters (escape sequences of terminals among them), marks that turn the direction of a text around, and
# halves of characters, which no file can hold.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# msgspec's sentences: "Expected `int`, got `str` - at `$.runs[1]`", with [...] for the key of a dict
_PLACE = re.compile(r"(.*) - at `(?:key` in `)?\$\.?([^`]*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")


class Misfit(NamedTuple):
    """Where a value is not what it should be."""

    at: str  # as in data.clients or labels[2][0]; empty: the whole
    what: str

    def under(self, key: str | int) -> "Misfit":
        """Return the problem as the value one level above has it."""
        if isinstance(key, int):
            step = f"[{key}]"
        else:
            step = key if len(key) <= SHOWN and not _UNPRINTABLE.search(key) else shown(key)
        return self._replace(at=f"{step}{'.' if self.at and self.at[0] != '[' else ''}{self.at}")


def read_json(path: Path, kind: type[T]) -> T:
    """Return the content of a JSON file of that type, or refuse it with a sentence."""
    return parse_json(_decoded(_content(path), str(path)), kind, str(path))


def parse_json(text: str, kind: type[T], where: str) -> T:
    """Return the value of a JSON text of that type; ``where``: what it is called in a sentence.

    Keys that the type does not list are kept: a later version may have added them.
    """
    try:
        value: Any = json.loads(text)  # not by msgspec, which does not say which field holds a NaN
    except RecursionError:
        raise DamagedFileError(where, f"{_deepest(text)} is nested too deep") from None
    except ValueError as error:
        raise DamagedFileError(where, f"it is not valid JSON ({error})") from error
    problem = _unwritable(value) or _mistyped(value, kind)
    if problem is not None:
        raise DamagedFileError(where, f"{problem.at or 'all of it'} {problem.what}")
    return value  # type: ignore[no-any-return]


def _mistyped(value: Any, kind: Any) -> Misfit | None:
    """Find what does not fit a type, in the words of msgspec."""
    msgspec = import_extra("msgspec", "", "reading a run's files")
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        place = _PLACE.fullmatch(str(error))
        what, at = place.groups() if place else (str(error), "")
        if missing := _MISSING.fullmatch(what):
            return Misfit(f"{at}.{missing[1]}".lstrip("."), "is missing")
        return Misfit(at, f"does not fit ({_cut(what.replace('`', ''))})")
    return None


def check_table(where: Path, field: str, rows: Sequence[Sequence[object]]) -> None:
    """Refuse a table whose rows have different lengths."""
    if len({len(row) for row in rows}) > 1:
        raise DamagedFileError(where, f"{field} has rows of different lengths")


def _deepest(text: str) -> str:
    """Return the last key before what is nested too deep, the field that it is in."""
    depth, last = 0, "it"
    for token in _TOKENS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > DEEPEST:
            break
        last = shown(token[1]) if token[2] else last
    return last


def read_lines(path: Path, most: int | None = None) -> list[str]:
    """Return the lines of a file, at most so many; there are none where there is no file.

    A line without an end does not count: a run that is under way may just be writing it. What a crash left behind the
    lines that are asked for is not looked at.
    """
    lines = _content(path).split(b"\n")[:-1][:most] if path.exists() else []
    return [_decoded(line, f"{path}, line {number},") for number, line in enumerate(lines, 1)]


def read_rows(path: Path, most: int | None = None) -> list[Row]:
    """Return the rows of rounds 1, 2, ... of the lines of a file."""
    rows = []
    for number, line in enumerate(read_lines(path, most), 1):
        where = f"{path}, line {number},"
        row = parse_json(line, Row, where)
        if row["round"] != number:
            raise DamagedFileError(where, f"round is {row['round']} and should be {number}")
        rows.append(row)
    return rows


def read_text(path: Path) -> str:
    """Return the text of a file of a run, or refuse it with a sentence."""
    text = _decoded(_content(path), str(path))
    if problem := _unwritable(text):
        raise DamagedFileError(path, f"it {problem.what}")
    return text


@contextmanager
def made_of(where: str, field: str) -> Iterator[None]:
    """Name the file and the field in whatever goes wrong while something is made of them.

    What stands there has the right type, and may still be a setting that no method has or a model that nothing holds.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}, {field}: {error}") from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DamagedFileError(where, f"{field} cannot be used ({_cut(reason)})") from error


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a device or a pipe may never end
            raise UserError(f"{path} is not a plain file: give the path of a run folder")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): give the path of a run folder") from error


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DamagedFileError(where, f"it is not text in UTF-8 (byte {error.start})") from error


def _cut(text: str) -> str:
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]}..."


def _unwritable(value: Any, depth: int = 0) -> Misfit | None:
    """Find what no file of a run has, whatever its types."""
    if isinstance(value, str):
        return Misfit("", f"is {shown(value)}, with a control character") if _UNPRINTABLE.search(value) else None
    if isinstance(value, int | float):
        return None if -LARGEST <= value <= LARGEST else Misfit("", f"is {shown(value)} and should be a finite number")
    if depth == DEEPEST:
        return Misfit("", "is nested too deep")
    if isinstance(value, list):
        return _first((i, _unwritable(item, depth + 1)) for i, item in enumerate(value))
    if isinstance(value, dict):
        return _first((k, _unwritable(k) or _unwritable(item, depth + 1)) for k, item in value.items())
    return None


def _first(problems: Iterable[tuple[str | int, Misfit | None]]) -> Misfit | None:
    """Return the first problem of the parts of a value."""
    return next((problem.under(key) for key, problem in problems if problem is not None), None)
