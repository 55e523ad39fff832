"""Settings as people type them: which a method has, and of which kind."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..core.errors import UserError, nearest
from .base import Algorithm
from .options import Options

Builder = Callable[..., Algorithm]

_LISTS: dict[Any, type[int] | type[float]] = {tuple[int, ...]: int, tuple[float, ...]: float}
_KINDS: dict[Any, str] = {
    tuple[int, ...]: "whole numbers with commas",
    tuple[float, ...]: "numbers with commas",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "none",
}


def settings_of(builder: Builder) -> dict[str, tuple[type, ...]]:
    """The keywords of a builder, each with the plain types it accepts.

    >>> from coterie.algorithms import fedavg
    >>> settings_of(fedavg)["weighting"]
    (<class 'str'>,)
    """
    return {k: _plain_types(hint) for k, hint in _declared(builder).items()}


def takes(builder: Builder) -> dict[str, str]:
    """The keywords of a builder, each with what it takes in words; where there are few choices, those.

    >>> from coterie.algorithms import fedavg
    >>> takes(fedavg)["weighting"]
    'size or uniform'
    """
    return {k: _choices(hint) or spelled(_plain_types(hint)) for k, hint in _declared(builder).items()}


def _declared(builder: Builder) -> dict[str, Any]:
    """The annotations of the builder's own keywords, and of those that all methods have if it passes them on."""
    hints, parameters = get_type_hints(builder), inspect.signature(builder).parameters.values()
    own = {p.name: hints[p.name] for p in parameters if p.kind is not p.VAR_KEYWORD}
    return own | (get_type_hints(Options) if len(own) < len(parameters) else {})


def _choices(hint: Any) -> str:
    return " or ".join(map(str, get_args(hint))) if get_origin(hint) is Literal else ""


def _plain_types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is Literal:
        return tuple(dict.fromkeys(type(choice) for choice in get_args(hint)))
    if hint in _KINDS:
        return (hint,)
    return tuple(dict.fromkeys(t for member in get_args(hint) for t in _plain_types(member)))


def spelled(kinds: Iterable[type]) -> str:
    """What a setting takes, in words.

    >>> spelled((int, NoneType))
    'a whole number or none'
    """
    return " or ".join(_KINDS[k] for k in kinds) or "nothing that can be typed"


def typed(builder: Builder, method: str, items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Texts turned into the values a builder takes.

    >>> from coterie.algorithms import fedavg
    >>> typed(fedavg, "fedavg", [("lr", "0.05"), ("clip", "none")])
    {'lr': 0.05, 'clip': None}
    """
    known = settings_of(builder)
    values = {}
    for key, text in items:
        if key not in known:
            raise UserError(f"{method} has no setting {key!r}: {nearest(key, known)}")
        values[key] = _value(method, key, text, known[key])
    return values


def meant(items: Sequence[str], builders: Mapping[str, Builder]) -> dict[str, dict[str, Any]]:
    """What ``KEY=VALUE``, for all methods that have it, and ``METHOD.KEY=VALUE`` set, by method.

    >>> from coterie.algorithms import dfedavg, fedavg
    >>> meant(["lr=0.05", "weighting=uniform", "dfedavg.epochs=2"], {"fedavg": fedavg, "dfedavg": dfedavg})
    {'fedavg': {'lr': 0.05, 'weighting': 'uniform'}, 'dfedavg': {'lr': 0.05, 'epochs': 2}}
    """
    known = {m: settings_of(builder) for m, builder in builders.items()}
    values: dict[str, dict[str, Any]] = {m: {} for m in builders}
    apart = [parts_of(item) for item in items]
    for method, key, text in sorted(apart, key=lambda parts: bool(parts[0])):  # what is for one method comes last
        if method and method not in builders:
            raise UserError(f"--set {method}.{key}={text} is for {method}, which is not among {', '.join(builders)}")
        having = [m for m in ([method] if method else builders) if key in known[m]]
        if not having:
            valid = set.union(*(set(known[m]) for m in ([method] if method else builders)))
            raise UserError(f"no setting {key!r} in {method or ', '.join(builders)}: {nearest(key, valid)}")
        for m in having:
            values[m] |= typed(builders[m], m, [(key, text)])
    return values


def parts_of(item: str) -> tuple[str, str, str]:
    """``METHOD.KEY=VALUE`` or ``KEY=VALUE`` taken apart."""
    left, equals, value = item.partition("=")
    if not equals:
        raise UserError(f"--set {item} has no value: write --set KEY=VALUE, as in --set lr=0.05")
    method, _, key = left.strip().rpartition(".")
    return method, key, value.strip()


def _value(method: str, key: str, text: str, kinds: tuple[type, ...]) -> Any:
    """The first of the accepted kinds that the text spells."""
    word = text.strip()
    for several, one in _LISTS.items():
        if several in kinds and ("," in word or one not in kinds):  # one number alone may be a list of its own
            try:
                return tuple(one(part) for part in word.split(","))
            except ValueError:
                pass
    if NoneType in kinds and word.lower() == "none":
        return None
    if bool in kinds and word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(word)
            except ValueError:
                continue
    if str in kinds:
        return word
    raise UserError(f"{key}={text!r} does not fit {method}: {key} takes {spelled(kinds)}")
