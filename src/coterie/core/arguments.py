"""Arguments of functions, held against their annotations before anything is done with them.

An annotation says type, choices (``Literal``) and range (``Annotated[float, Range(0, 1)]``) once; typed texts and calls
in Python are refused by it in the same words. NumPy's numbers become Python's at this door, because JSON has no others.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Callable as AnyCallable
from functools import cache, wraps
from inspect import Parameter
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from .annotations import LARGEST, UNIONS, Range, in_python, is_list, leaves, plain_types, shown
from .errors import UserError, did_you_mean, no_option

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

MISFIT = object()


def accept(subject: str, key: str, value: Any, hint: Any, *, required: bool = False) -> Any:
    """Return a value as an annotation has it, NumPy's numbers as Python's; refuse one that it does not allow.

    >>> accept("method fedavg", "lr", 1, float)
    1.0
    >>> accept("function fit", "rounds", "3", int)
    Traceback (most recent call last):
    coterie.core.errors.UserError: rounds='3' does not fit function fit: rounds takes an integer
    """
    found = _fitted(key, value, hint)
    if isinstance(found, float) and not abs(found) <= LARGEST:
        raise UserError(f"{key}={found} is out of range: it must be a finite number, at most {LARGEST:g}")
    if found is MISFIT:
        raise _refusal(subject, key, value, hint, required)
    return found


def _refusal(subject: str, key: str, value: Any, hint: Any, required: bool) -> UserError:
    """Return the sentence about a misfit; in a list, about its first item that is one."""
    members = list(leaves(hint))
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    if isinstance(value, str) and choices:
        near = did_you_mean(value, filter(lambda choice: isinstance(choice, str), choices))
        return UserError(f"{key}={shown(value)} is not a choice: {near or f'use {in_python(hint)}'}")
    if value is None and not required:
        return UserError(f"{key} cannot be none: leave it out, and it has its usual value")
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in (get_args(member)[0] for member in members if is_list(member)):
            for i, one in enumerate(value):
                if _fitted(key, one, item) is MISFIT:
                    return _refusal(subject, f"{key}[{i}]", one, item, required=True)
    return UserError(f"{key}={shown(value)} does not fit {subject}: {key} takes {in_python(hint)}")


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
    if origin in UNIONS:  # an integer is a number as well, but only where it can be nothing else
        each = (_fitted(key, value, m) for m in sorted(args, key=lambda m: plain_types(m) == (float,)))
        return next((found for found in each if found is not MISFIT), MISFIT)
    value = _python_number(value)
    if origin is Literal:
        return next((choice for choice in args if type(choice) is type(value) and choice == value), MISFIT)
    if hint in (int, float, bool, str, None, NoneType):
        return _plain(value, hint)
    if origin is AnyCallable:
        return value if callable(value) else MISFIT
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
    """Return a value of one of Python's plain types; integers are numbers, true and false are not."""
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) <= LARGEST or isinstance(value, float) else MISFIT
    fits = value is None if kind in (None, NoneType) else isinstance(value, kind)
    return value if fits and (kind is bool or not isinstance(value, bool)) else MISFIT


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
    """Return whether a value is of a class; a protocol must be ``runtime_checkable``, and a class is not one."""
    if kind is Path:
        return isinstance(value, PathLike)
    if getattr(kind, "_is_protocol", False) and inspect.isclass(value):
        return False
    return isinstance(value, dict if hasattr(kind, "__total__") else kind)  # a TypedDict is a dict


def checked(kind: str, own: Collection[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function refuse arguments in the words with which typed ones are refused; ``own``: it checks these itself.

    >>> @checked("function")
    ... def wait(seconds: Annotated[float, Range()]) -> float:
    ...     return seconds
    >>> wait(-1)
    Traceback (most recent call last):
    coterie.core.errors.UserError: seconds=-1.0 is out of range: it must be a number at least 0
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _guarded(function, f"{kind} {function.__name__.replace('_', '-')}", own)

    return decorate


def checked_class(
    kind: str, own: Collection[str] = (), *, subject: str = "", types: Callable[[], Mapping[str, Any]] | None = None
) -> Callable[[C], C]:
    """Make a class refuse arguments as ``checked`` makes a function.

    subject: what sentences name instead of the class. types: the types that annotations name and the module does not
    import, asked for at the first call.
    """

    def decorate(cls: C) -> C:
        cls.__init__ = _guarded(cls.__init__, subject or f"{kind} {cls.__name__}", own, types)  # type: ignore[misc]
        return cls

    return decorate


def _guarded(
    function: Callable[P, R],
    subject: str,
    own: Collection[str],
    types: Callable[[], Mapping[str, Any]] | None = None,
) -> Callable[P, R]:
    signature = inspect.signature(function)
    named = {k: p for k, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    any_other = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    @cache
    def hints() -> Mapping[str, Any]:  # when it is called: a class may name itself
        return get_type_hints(function, None, None if types is None else dict(types()), include_extras=True)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for key in () if any_other else kwargs.keys() - named.keys():
            raise no_option(subject, key, [name for name in named if name != "self"])
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{subject}: {error}") from None
        for key, parameter in named.items():
            if key in bound.arguments and key not in own:
                required, hint = parameter.default is Parameter.empty, hints().get(key, Any)
                bound.arguments[key] = accept(subject, key, bound.arguments[key], hint, required=required)
        return function(*bound.args, **bound.kwargs)

    return call
