"""Arguments of functions, held against their annotations before anything is done with them.

An annotation says type, choices (``Literal``) and range (``Annotated[float, Range(0, 1)]``) once; typed texts and calls
in Python are refused by it in the same words. NumPy's numbers become Python's at this door, because JSON has no others.
"""

import inspect
import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Callable as AnyCallable
from functools import cache, wraps
from inspect import Parameter
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import UserError, no_option

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

LARGEST = 3e38  # the largest number that single precision holds
MOST = 10**9  # of anything that is counted: rounds, steps, clients, widths
MISFIT = object()
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
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 60


class Range(NamedTuple):
    """The numbers that an annotation allows, as in ``Annotated[float, Range(0, 1)]``."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False  # whether ``low`` itself is outside
    below: bool = False  # whether ``high`` itself is outside

    def check(self, name: str, value: Any) -> None:
        """Refuse a number outside; of several numbers each one."""
        for one in value if isinstance(value, list | tuple) else (value,):
            if not self.holds(one):
                raise UserError(f"{name}={shown(one)} is out of range: it must be a number {self}")
            if isinstance(one, int) and one > MOST:
                raise UserError(f"{name}={shown(one)} is out of range: it must be at most {MOST:,}")

    def holds(self, one: float) -> bool:
        """Return whether a number is inside."""
        inside = self.low <= one <= min(self.high, LARGEST)
        return inside and not (self.above and one == self.low) and not (self.below and one == self.high)

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
    """Say which texts an annotation takes; where there are few choices, those.

    >>> in_words(int | None), in_words(Literal["size", "uniform"])
    ('a whole number or none', 'size or uniform')
    """
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return " or ".join(_WORDS[t] for t in plain_types(hint)) or "nothing that can be typed"


def in_python(hint: Any) -> str:
    """Say which values an annotation takes.

    >>> in_python(str | Path | None), in_python(Sequence[Literal["a", "b"]]), in_python(Callable[[int], float])
    ('a text or a Path or none', 'a list of (a or b)', 'a function of 1 argument')
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return in_python(args[0])
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(map(in_python, args)))
    if plain_types(hint):
        return in_words(hint)
    if origin is AnyCallable:
        count = "" if args[0] is ... else f" of {len(args[0])} argument{'s' * (len(args[0]) != 1)}"
        return f"a function{count}"
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return f"a list of {' and '.join(f'({in_python(a)})' for a in args if a is not ...)}"
    name: str = getattr(origin or hint, "__name__", str(hint))
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def shown(value: Any) -> str:
    """Write a value in as many characters as a sentence bears."""
    return " ".join(_SHOWN.repr(value).split())


def accept(subject: str, key: str, value: Any, hint: Any, *, required: bool = False) -> Any:
    """Return a value as an annotation has it, NumPy's numbers as Python's; refuse one that it does not allow.

    >>> accept("method fedavg", "lr", 1, Positive)
    1.0
    >>> accept("function fit", "rounds", "3", PositiveInt)
    Traceback (most recent call last):
    coterie.core.errors.UserError: rounds='3' does not fit function fit: rounds takes a whole number
    """
    found = _fitted(key, value, hint)
    if isinstance(found, float) and not abs(found) <= LARGEST:
        raise UserError(f"{key}={found} is out of range: it must be a finite number, at most {LARGEST:g}")
    if found is not MISFIT:
        return found
    if get_origin(hint) is Literal and value is not None:
        raise UserError(f"{key}={shown(value)} is not a choice: use {in_words(hint)}")
    if value is None and not required:
        raise UserError(f"{key} cannot be none: leave it out, and it has its usual value")
    raise UserError(f"{key}={shown(value)} does not fit {subject}: {key} takes {in_python(hint)}")


def _fitted(key: str, value: Any, hint: Any) -> Any:
    """Return a value as an annotation has it, or MISFIT; refuse what is of its type and outside its range."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, Parameter.empty) or isinstance(hint, TypeVar | str):
        return value
    if origin is Annotated:
        found = _fitted(key, value, args[0])
        for bound in hint.__metadata__ if found is not MISFIT and found is not None else ():
            if isinstance(bound, Range):  # code of one's own may say other things there
                bound.check(key, found)
        return found
    if origin in _UNIONS:  # a whole number is a number as well, but only where it can be nothing else
        each = (_fitted(key, value, m) for m in sorted(args, key=lambda m: plain_types(m) == (float,)))
        return next((found for found in each if found is not MISFIT), MISFIT)
    value = _python_number(value)
    if origin is Literal:
        return next((choice for choice in args if type(choice) is type(value) and choice == value), MISFIT)
    if hint in (int, float, bool, str, None, NoneType):
        return _plain(value, hint)
    if origin is AnyCallable:
        return value if callable(value) and _takes(value, args[0]) else MISFIT
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return _sequence(key, value, origin, args)
    return value if _is_a(value, origin or hint) else MISFIT


def _python_number(value: Any) -> Any:
    """Return NumPy's numbers, truth values among them, as Python's; anything else as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _plain(value: Any, kind: Any) -> Any:
    """Return a value of one of Python's plain types; whole numbers are numbers, true and false are not."""
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) <= LARGEST or isinstance(value, float) else MISFIT
    fits = value is None if kind in (None, NoneType) else isinstance(value, kind)
    return value if fits and (kind is bool or not isinstance(value, bool)) else MISFIT


def _takes(function: Any, arguments: Any) -> bool:
    """Return whether a function can be called with as many arguments, as far as Python knows."""
    if arguments is ...:
        return True
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # built in
        return True
    return True


def _sequence(key: str, value: Any, kind: type, args: tuple[Any, ...]) -> Any:
    """Return a list or a tuple whose items fit; it is the one that was given unless an item or its type changes."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return MISFIT
    hints = args if kind is tuple and ... not in args else args[:1] * len(value)
    if len(hints) != len(value):
        return MISFIT
    found = [_fitted(key, one, hint) for one, hint in zip(value, hints, strict=True)]
    if any(one is MISFIT for one in found):
        return MISFIT
    same = (kind is not tuple or isinstance(value, tuple)) and all(a is b for a, b in zip(found, value, strict=True))
    return value if same else tuple(found)


def _is_a(value: Any, kind: Any) -> bool:
    """Return whether a value is of a class; of a protocol, whether it has all that the protocol names."""
    if kind is Path:
        return isinstance(value, PathLike)
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in _members(kind))
    return isinstance(value, dict if hasattr(kind, "__total__") else kind)  # a TypedDict is a dict


def _members(protocol: type) -> Iterator[str]:
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False):
            yield from (k for k in (*vars(base), *inspect.get_annotations(base)) if not k.startswith("_"))


def checked(kind: str, own: Collection[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function refuse arguments in the words with which typed ones are refused; ``own``: it checks these itself.

    >>> @checked("function")
    ... def wait(seconds: NonNegative) -> float:
    ...     return seconds
    >>> wait(-1)
    Traceback (most recent call last):
    coterie.core.errors.UserError: seconds=-1.0 is out of range: it must be a number at least 0
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _guarded(function, f"{kind} {function.__name__.replace('_', '-')}", own)

    return decorate


def checked_class(kind: str, own: Collection[str] = ()) -> Callable[[C], C]:
    """Make a class refuse arguments as ``checked`` makes a function."""

    def decorate(cls: C) -> C:
        cls.__init__ = _guarded(cls.__init__, f"{kind} {cls.__name__}", own)  # type: ignore[misc]
        return cls

    return decorate


def _guarded(function: Callable[P, R], subject: str, own: Collection[str]) -> Callable[P, R]:
    signature = inspect.signature(function)
    named = {k: p for k, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    any_other = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    @cache
    def hints() -> Mapping[str, Any]:  # when it is called: a class may name itself
        return get_type_hints(function, include_extras=True)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for key in () if any_other else kwargs.keys() - named.keys():
            raise no_option(subject, key, named)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}: {error}") from None
        for key, parameter in named.items():
            if key in bound.arguments and key not in own:
                required, hint = parameter.default is Parameter.empty, hints().get(key, Any)
                bound.arguments[key] = accept(subject, key, bound.arguments[key], hint, required=required)
        return function(*bound.args, **bound.kwargs)

    return call
