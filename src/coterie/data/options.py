"""Arguments typed by people, checked against the signature of the function they are meant for."""

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from numbers import Integral, Real

from ..core.errors import UserError
from ..core.spec import Call, Scalar

_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def bind(kind: str, call: Call, function: Callable[..., object], filled: Collection[str]) -> dict[str, Scalar]:
    """Every argument of ``function`` but the ``filled`` ones, from what was typed and else from its defaults.

    The result is complete, so that a stored description does not change its meaning when a default does.

    >>> def ring(n: int, weight: float = 0.5) -> None: ...
    >>> bind("shape", Call("ring", (), {"weight": 1}), ring, filled=["n"])
    {'weight': 1.0}
    >>> bind("shape", Call("ring", (), {"size": 1}), ring, filled=["n"])
    Traceback (most recent call last):
    coterie.core.errors.UserError: shape 'ring' has no option 'size': it takes weight (number)
    """
    takes = {name: p for name, p in signature(function).parameters.items() if name not in filled}
    typed = _named(kind, call, takes)
    return {name: _value(kind, call.name, name, takes, typed) for name in takes}


def _named(kind: str, call: Call, takes: Mapping[str, Parameter]) -> dict[str, Scalar]:
    """The typed values by name: plain ones fill the parameters in order."""
    if len(call.args) > len(takes):
        extra = call.args[len(takes)]
        raise UserError(f"{kind} {call.name!r} has no place for {extra!r}: it takes {_listed(takes)}")
    typed = dict(zip(takes, call.args, strict=False))
    for name, value in call.options.items():
        if name not in takes:
            raise UserError(f"{kind} {call.name!r} has no option {name!r}: it takes {_listed(takes)}")
        if name in typed:
            raise UserError(f"{kind} {call.name!r} is given {name} twice: keep one of the two")
        typed[name] = value
    return typed


def _listed(takes: Mapping[str, Parameter]) -> str:
    return ", ".join(f"{name} ({_KINDS[p.annotation]})" for name, p in takes.items()) or "no options"


def _value(kind: str, name: str, option: str, takes: Mapping[str, Parameter], typed: Mapping[str, Scalar]) -> Scalar:
    wanted = takes[option].annotation
    value = typed.get(option, takes[option].default)
    if value is Parameter.empty:
        raise UserError(f"{kind} {name!r} needs {option} ({_KINDS[wanted]}), as in {name}:{option}=VALUE")
    cast = _cast(value, wanted)
    if cast is None:
        raise UserError(f"{option} of {kind} {name!r} cannot be {value!r}: it takes {_listed(takes)}")
    return cast


def _cast(value: object, wanted: type) -> Scalar | None:
    """The value as a plain ``wanted``, so that it can be written as JSON; None where it is something else."""
    if isinstance(value, bool) or wanted is bool:
        return value if isinstance(value, bool) and wanted is bool else None
    if wanted is int:
        return int(value) if isinstance(value, Integral) else None
    if wanted is float:
        return float(value) if isinstance(value, Real) else None
    return value if isinstance(value, str) else None
