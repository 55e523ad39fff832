"""Short texts that people type, such as ``random:10`` or ``mlp:width=64``, read and bound to a function's signature.

Every kind of thing with options (methods, data, partitions, topologies, models, engines) is bound here, so that the
same mistake has the same words everywhere.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from inspect import Parameter
from types import NoneType
from typing import Any, NamedTuple, get_type_hints

from .annotations import LARGEST, in_words, plain_types
from .arguments import accept
from .errors import UserError, no_option

_LISTS: dict[Any, type[int] | type[float]] = {tuple[int, ...]: int, tuple[float, ...]: float}
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


def spelled(text: str, known: Iterable[str]) -> str:
    """Return a typed text whose name is spelled as one of the known ones is: case, ``-`` and ``_`` do not matter.

    >>> spelled("CIFAR10", ["cifar10"]), spelled("Random_Pull:10", ["random-pull"]), spelled("Mine:Net", ["mlp"])
    ('cifar10', 'random-pull:10', 'Mine:Net')
    """
    name, colon, rest = text.strip().partition(":")
    alike = {one.lower().replace("_", "-"): one for one in known}
    return f"{alike.get(name.lower().replace('_', '-'), name)}{colon}{rest}"


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


def whole_number(text: str) -> int | None:
    """Return the integer that a text spells in plain digits; None where it is anything else.

    >>> whole_number("12"), whole_number("²"), whole_number("-1"), whole_number("9" * 5000)
    (12, None, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def convert(subject: str, key: str, value: Any, hint: Any) -> Any:
    """Return a typed text, or a value, as the plain value that an annotation asks for; refuse any other."""
    if hint in (Any, Parameter.empty) or isinstance(hint, str):  # code of one's own that does not say what it takes
        return _read(value, (int, float, bool, str)) if isinstance(value, str) else value
    return accept(subject, key, _read(value, plain_types(hint)) if isinstance(value, str) else value, hint)


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

    >>> from coterie.core.annotations import Fraction
    >>> def ring(n: int, weight: Fraction = 0.5) -> None: ...
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


def counted(number: int, word: str) -> str:
    """Write a number of things.

    >>> counted(1, "round"), counted(1200, "client")
    ('1 round', '1,200 clients')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"
