"""Short texts that people type, such as ``random:10`` or ``mlp:width=64``, read and bound to a function's signature.

Every kind of thing with options (methods, data, partitions, topologies, models, engines) is bound here, so that the
same mistake has the same words everywhere.
"""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from inspect import Parameter
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import UserError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 3e38  # the largest number that single precision holds
_LISTS: dict[Any, type[int] | type[float]] = {tuple[int, ...]: int, tuple[float, ...]: float}
_WORDS: dict[Any, str] = {
    tuple[int, ...]: "whole numbers with commas",
    tuple[float, ...]: "numbers with commas",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "none",
}
_UNIONS = (Union, UnionType)
_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SWITCHES = {"true": True, "yes": True, "false": False, "no": False}


class Spec(NamedTuple):
    """A name with its arguments, as typed: ``name:value,key=value``."""

    name: str
    args: tuple[str, ...]
    options: Mapping[str, Any]  # texts, and the values that a call in Python adds

    def __str__(self) -> str:
        rest = ",".join([*self.args, *(f"{k}={v}" for k, v in self.options.items())])
        return f"{self.name}{',' if ':' in self.name else ':'}{rest}" if rest else self.name

    def with_options(self, options: Mapping[str, Any]) -> "Spec":
        """Return the spec with options that are given beside the text, none of them twice."""
        for key in sorted(self.options.keys() & options.keys()):
            raise given_twice(self.name, key, self.options[key], options[key])
        return self._replace(options={**self.options, **options})


def parse(text: str) -> Spec:
    """Take ``name:value,key=value`` apart.

    >>> parse("synthetic:2000,classes=5")
    Spec(name='synthetic', args=('2000',), options={'classes': '5'})
    >>> str(parse("clique:10, count=4"))
    'clique:10,count=4'
    """
    name, _, rest = text.strip().partition(":")
    spec = Spec(name, (), {})
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if equals:
            spec = spec.with_options({key.strip().replace("-", "_"): value.strip()})
        elif spec.options:
            raise UserError(f"in {text!r} the plain value {item!r} must come before the named ones")
        else:
            spec = spec._replace(args=(*spec.args, item))
    return spec


class SharePart(NamedTuple):
    """One item of a text that divides something: a name, and behind ``x`` or ``@`` how much of it."""

    name: str
    sign: str  # x, @, or nothing where no amount is given
    amount: str


def parse_shares(text: str) -> list[SharePart]:
    """Take ``b4x15-b2x5`` or ``b1@0.25-b4`` apart.

    >>> [tuple(part) for part in parse_shares("b4x15 - 0.5@1/4 - b2")]
    [('b4', 'x', '15'), ('0.5', '@', '1/4'), ('b2', '', '')]
    """
    items = (re.fullmatch(r"\s*([^x@]*?)\s*(?:([x@])\s*(.*?)\s*)?", item, re.DOTALL) for item in text.split("-"))
    return [SharePart(*(group or "" for group in item.groups())) for item in items if item is not None]


def parse_seconds(text: str) -> float:
    """Return the seconds of a time such as ``90s``, ``25m``, ``1.5h`` or ``1h30m``.

    >>> parse_seconds("1h30m"), parse_seconds("0.5m")
    (5400.0, 30.0)
    """
    found = re.fullmatch(r"(?:(\d+\.?\d*)h)?(?:(\d+\.?\d*)m)?(?:(\d+\.?\d*)s)?", text.strip(), re.ASCII)
    hours, minutes, rest = (0.0, 0.0, 0.0) if found is None else (float(part or 0) for part in found.groups())
    seconds = 3600 * hours + 60 * minutes + rest
    if not 0 < seconds <= LARGEST:
        raise UserError(f"{text!r} is not a time: write it as 90s, 25m, 1.5h or 1h30m")
    return seconds


class Range(NamedTuple):
    """The numbers that an annotation allows, as in ``Annotated[float, Range(0, 1)]``."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False  # whether ``low`` itself is outside
    below: bool = False  # whether ``high`` itself is outside

    def check(self, name: str, value: Any) -> None:
        """Refuse a number outside; of several numbers each one."""
        for one in value if isinstance(value, list | tuple) else (value,):
            inside = self.low <= one <= min(self.high, LARGEST)
            if not inside or (self.above and one == self.low) or (self.below and one == self.high):
                raise UserError(f"{name}={one!r} is out of range: it must be a number {self}")

    def __str__(self) -> str:
        if self.high < math.inf and not self.above and not self.below:
            return f"between {self.low:g} and {self.high:g}"
        least = f"{'above' if self.above else 'at least'} {self.low:g}"
        return f"{least} and {'below' if self.below else 'at most'} {self.high:g}" if self.high < math.inf else least


NonNegative = Annotated[float, Range()]
Positive = Annotated[float, Range(above=True)]
Fraction = Annotated[float, Range(0, 1)]
PositiveInt = Annotated[int, Range(1)]


def plain_types(hint: Any) -> tuple[type, ...]:
    """Return the types of an annotation that can be typed as text.

    >>> plain_types(Annotated[int, Range(1)] | None)
    (<class 'int'>, <class 'NoneType'>)
    """
    if get_origin(hint) is Literal:
        return tuple(dict.fromkeys(type(choice) for choice in get_args(hint)))
    if get_origin(hint) is Annotated:  # first, because what stands behind the type may have no hash
        return plain_types(get_args(hint)[0])
    if hint in _WORDS:
        return (hint,)
    members = get_args(hint) if get_origin(hint) in _UNIONS else ()
    return tuple(dict.fromkeys(t for member in members for t in plain_types(member)))


def in_words(hint: Any) -> str:
    """Say what an annotation takes; where there are few choices, those.

    >>> in_words(int | None), in_words(Literal["size", "uniform"])
    ('a whole number or none', 'size or uniform')
    """
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return " or ".join(_WORDS[t] for t in plain_types(hint)) or "nothing that can be typed"


def check(subject: str, key: str, value: Any, hint: Any) -> None:
    """Refuse a value that an annotation does not allow: of another type, outside its range, or not a choice."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{key}={value!r} is not a choice: use {in_words(hint)}")
        return
    members = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
    if value is None and NoneType not in members:
        raise UserError(f"{key} cannot be none: leave it out, and it has its usual value")
    if all(map(plain_types, members)) and not _fits(value, plain_types(hint)):
        raise UserError(f"{key}={value!r} does not fit {subject}: {key} takes {in_words(hint)}")
    for member in members if value is not None else ():
        for bound in getattr(member, "__metadata__", ()):
            if isinstance(bound, Range):  # code of one's own may say other things there
                bound.check(key, value)


def _fits(value: Any, types: Collection[Any]) -> bool:
    """Return whether a value is of one of the plain types; whole numbers are numbers, true and false are not."""
    if isinstance(value, bool | str | None):
        return type(value) in types
    if isinstance(value, list | tuple):
        return any(all(_fits(one, (kind,)) for one in value) for several, kind in _LISTS.items() if several in types)
    return (int in types and isinstance(value, Integral)) or (float in types and isinstance(value, Real))


def convert(subject: str, key: str, value: Any, hint: Any) -> Any:
    """Return a typed text, or a value, as the plain value that an annotation asks for; refuse any other."""
    if hint in (Any, Parameter.empty) or isinstance(hint, str):  # code of one's own that does not say what it takes
        return _read(value, (int, float, bool, str)) if isinstance(value, str) else value
    types = plain_types(hint)
    found = _read(value, types) if isinstance(value, str) else value
    check(subject, key, found, hint)
    if isinstance(found, bool) or not isinstance(found, Real):
        return tuple(found) if isinstance(found, list) else found
    return int(found) if isinstance(found, Integral) and int in types else float(found)  # NumPy's are no JSON


def _read(text: str, types: Collection[Any]) -> Any:
    """Return what a text spells in the first of the types that fits it, or the text itself."""
    word = text.strip()
    for several, one in _LISTS.items():
        if several in types and ("," in word or one not in types):  # one number alone may be a list of its own
            with suppress(ValueError):
                return tuple(one(part) for part in word.split(","))
    if NoneType in types and word.lower() == "none":
        return None
    if bool in types and word.lower() in _SWITCHES:
        return _SWITCHES[word.lower()]
    for kind in (int, float):
        if kind in types:
            with suppress(ValueError):
                return kind(word)
    return word


def parameters(function: Callable[..., object], filled: Collection[str] = ()) -> dict[str, Parameter]:
    """Return the parameters of a function that can be typed, annotated; the caller fills the others itself."""
    try:
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
    except (NameError, TypeError):  # code of one's own, which may be annotated with anything
        hints = {}
    found = inspect.signature(function).parameters
    return {k: p.replace(annotation=hints.get(k, p.annotation)) for k, p in found.items() if k not in filled}


def bind(kind: str, spec: Spec, takes: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return what was typed as keyword arguments for these parameters, each of the type that its annotation has.

    >>> def ring(n: int, weight: Annotated[float, Range(0, 1)] = 0.5) -> None: ...
    >>> bind("shape", parse("ring:1"), parameters(ring, filled=["n"]))
    {'weight': 1.0}
    >>> bind("shape", parse("ring:wieght=1"), parameters(ring, filled=["n"]))
    Traceback (most recent call last):
    coterie.core.errors.UserError: shape ring has no option 'wieght' (did you mean weight?): it takes weight
    """
    subject, named = f"{kind} {spec.name}", {k: p for k, p in takes.items() if p.kind not in _REST}
    in_order = [k for k, p in named.items() if p.kind is not Parameter.KEYWORD_ONLY]
    for extra in spec.args[len(in_order) :]:
        known = ", ".join(k if k in in_order else f"{k}=VALUE" for k in named) or "no options"
        raise UserError(f"{subject} has no place for {extra!r}: it takes {known}")
    given = Spec(spec.name, (), dict(zip(in_order, spec.args, strict=False))).with_options(spec.options).options
    any_other = any(p.kind is Parameter.VAR_KEYWORD for p in takes.values())
    for key in given:
        if key not in named and not any_other:
            raise no_option(subject, key, named)
    for key, p in named.items():
        if p.default is Parameter.empty and key not in given:
            example = Spec(spec.name, (), {key: "VALUE"})
            raise UserError(f"{subject} needs {key} ({in_words(p.annotation)}): write {example}")
    hints = {k: named[k].annotation if k in named else Any for k in given}
    return {k: convert(subject, k, value, hints[k]) for k, value in given.items()}


def checked(kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function refuse arguments in Python in the words with which ``bind`` refuses typed ones."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        subject = f"{kind} {function.__name__.replace('_', '-')}"
        signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            values = {k: convert(subject, k, v, hints[k]) for k, v in bound.arguments.items()}
            takes_names: Callable[..., R] = function
            return takes_names(**values)

        return call

    return decorate


def no_option(subject: str, key: str, known: Iterable[str]) -> UserError:
    """Return the error for an option that something does not have."""
    near = did_you_mean(key, known)
    return UserError(
        f"{subject} has no option {key!r}{near and f' ({near})'}: it takes {', '.join(known) or 'no options'}"
    )


def given_twice(subject: str, key: str, first: object, second: object) -> UserError:
    """Return the error for an option with two values."""
    return UserError(f"{subject} is given {key} twice: keep one of {first} and {second}")


def scaled(value: float, unit: str) -> str:
    """Write a large number with the prefix that suits it.

    >>> scaled(5.03e14, "FLOP"), scaled(0, "B"), scaled(999_900, "B")
    ('503 TFLOP', '0 B', '1 MB')
    """
    for power, prefix in ((24, "Y"), (21, "Z"), (18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 0.9995 * 10**power:  # what would be written as 1000
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
