"""JSON files that anybody may have written: they are whole and of the types of ``core/schema``, or they are refused.

The types are walked here, because the libraries that do it are not installed where the core must run. A number is
finite, a text can be printed without moving a cursor, and nothing is nested deeper than a run's files are.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from .annotations import LARGEST, UNIONS, WORDS, shown
from .errors import DamagedFileError, UserError
from .schema import Row

T = TypeVar("T")

DEEPEST = 32  # lists and objects inside each other
SHOWN = 60  # characters of a value that a sentence repeats
_WORDS = {**WORDS, NoneType: "null"}
_TOKENS = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[\[\]{}]')
# Control characters (escape sequences of terminals among them), marks that turn the direction of a text around, and
# halves of characters, which no file can hold.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Misfit(NamedTuple):
    """Where a value is not what it should be."""

    at: str  # as in data.clients or labels[2][0]; empty: the whole
    what: str

    def under(self, key: str | int) -> "Misfit":
        """Return the problem as the value one level above has it."""
        if isinstance(key, int):
            step = f"[{key}]"
        else:
            step = key if len(key) <= SHOWN and not _UNPRINTABLE.search(key) else _shown(key)
        return self._replace(at=f"{step}{'.' if self.at and self.at[0] != '[' else ''}{self.at}")


Check = Callable[[Any], Misfit | None]


def read_json(path: Path, kind: type[T]) -> T:
    """Return the content of a JSON file of that type, or refuse it with a sentence."""
    return parse_json(_decoded(_content(path), str(path)), kind, str(path))


def parse_json(text: str, kind: type[T], where: str) -> T:
    """Return the value of a JSON text of that type; ``where``: what it is called in a sentence."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise DamagedFileError(where, f"{_deepest(text)} is nested too deep") from None
    except ValueError as error:
        raise DamagedFileError(where, f"it is not valid JSON ({error})") from error
    hint: Any = kind
    problem = _check_of(hint)(value)
    if problem is not None:
        raise DamagedFileError(where, f"{problem.at or 'all of it'} {problem.what}")
    return value  # type: ignore[no-any-return]


def _deepest(text: str) -> str:
    """Return the last key before what is nested too deep, the field that it is in."""
    depth, last = 0, "it"
    for token in _TOKENS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > DEEPEST:
            break
        last = _shown(token[1]) if token[2] else last
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
    if problem := _plain(text):
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


@cache
def _check_of(hint: Any) -> Check:
    """Return the function that finds what is wrong with a value of an annotation, None where nothing is."""
    kind, members = get_origin(hint), get_args(hint)
    if hint is Any:
        return _plain
    if kind is Annotated:
        return _bounded(_check_of(members[0]), members[1:])
    if kind is Literal:
        return lambda value: None if value in members else _wrong(value, " or ".join(map(str, members)))
    if kind in UNIONS:
        return _union([_check_of(member) for member in members], [get_origin(m) or m for m in members])
    if is_typeddict(hint):
        return _object(hint)
    if kind is dict:
        return _items(dict, _check_of(members[1]))
    if kind is list:
        return _items(list, _check_of(members[0]))
    return _scalar(hint)


def _wrong(value: Any, should_be: str) -> Misfit:
    return Misfit("", f"is {_shown(value)} and should be {should_be}")


def _shown(value: Any) -> str:
    """Return a value as a sentence repeats it."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return "null" if value is None else shown(value)


def _cut(text: str) -> str:
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]}..."


def _scalar(kind: type) -> Check:
    types = (int, float) if kind is float else (kind,)

    def check(value: Any) -> Misfit | None:
        return _plain(value) if type(value) in types else _wrong(value, _WORDS[kind])

    return check


def _plain(value: Any, depth: int = 0) -> Misfit | None:
    """Find what no file of a run has, whatever its types."""
    if isinstance(value, str):
        return Misfit("", f"is {_shown(value)}, with a control character") if _UNPRINTABLE.search(value) else None
    if isinstance(value, int | float):
        return None if -LARGEST <= value <= LARGEST else _wrong(value, "a finite number")
    if depth == DEEPEST:
        return Misfit("", "is nested too deep")
    if isinstance(value, list):
        return _first((i, _plain(each, depth + 1)) for i, each in enumerate(value))
    if isinstance(value, dict):
        return _first((k, _plain(k) or _plain(each, depth + 1)) for k, each in value.items())
    return None


def _first(found: Iterable[tuple[str | int, Misfit | None]]) -> Misfit | None:
    """Return the first problem of the parts of a value."""
    return next((problem.under(key) for key, problem in found if problem is not None), None)


def _bounded(check: Check, bounds: tuple[Any, ...]) -> Check:
    """Add what stands behind a type: a range or the like, or a type of some of the keys."""
    further = [_check_of(bound) for bound in bounds if is_typeddict(bound)]
    ranges = [bound for bound in bounds if not is_typeddict(bound)]

    def both(value: Any) -> Misfit | None:
        problem = next((found for each in (check, *further) if (found := each(value)) is not None), None)
        outside = (_wrong(value, str(bound)) for bound in ranges if not bound.holds(value))
        return problem or next(outside, None)

    return both


def _union(checks: list[Check], kinds: list[Any]) -> Check:
    def check(value: Any) -> Misfit | None:
        problems = []
        for each in checks:
            if (problem := each(value)) is None:
                return None  # without a sentence about the others: a file may have a hundred thousand numbers or nulls
            problems.append(problem)
        # Of the member that it seems to be, where one is.
        return next((p for p, kind in zip(problems, kinds, strict=True) if _is_like(value, kind)), problems[0])

    return check


def _is_like(value: Any, kind: Any) -> bool:
    return isinstance(value, dict) if is_typeddict(kind) else isinstance(kind, type) and type(value) is kind


def _object(hint: Any) -> Check:
    """Return the check of a TypedDict; other keys may be anything that a file of a run may hold."""
    known = {k: _check_of(h) for k, h in _hints(hint).items()}
    required = [key for key in known if key in hint.__required_keys__]

    def check(value: Any) -> Misfit | None:
        if not isinstance(value, dict):
            return _wrong(value, "an object")
        missing = next((Misfit(key, "is missing") for key in required if key not in value), None)
        return missing or _first((k, _plain(k) or known.get(k, _plain)(each)) for k, each in value.items())

    return check


def _hints(hint: Any) -> dict[str, Any]:
    """Return the types of the keys of a TypedDict, with their ranges."""
    given = get_type_hints(hint, include_extras=True)
    return {k: get_args(h)[0] if get_origin(h) is NotRequired else h for k, h in given.items()}


def _items(kind: type[list[Any]] | type[dict[str, Any]], each: Check) -> Check:
    def check(value: Any) -> Misfit | None:
        if not isinstance(value, kind):
            return _wrong(value, "a list" if kind is list else "an object")
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return _first((k, (_plain(k) if isinstance(k, str) else None) or each(v)) for k, v in pairs)

    return check
