"""Settings as people type them: which a method has, and of which kind."""

import inspect
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any, get_args, get_type_hints

from ..errors import RequestError
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
    hints = get_type_hints(builder)
    own = [k for k, p in inspect.signature(builder).parameters.items() if p.kind is p.KEYWORD_ONLY]
    declared = {k: hints[k] for k in own} | get_type_hints(Options)
    return {k: _plain_types(hint) for k, hint in declared.items()}


def _plain_types(hint: Any) -> tuple[type, ...]:
    members = get_args(hint) or (hint,)
    return tuple(t for t in members if t in _KINDS)


def spelled(kinds: Iterable[type]) -> str:
    """What a setting takes, in words.

    >>> spelled((int, NoneType))
    'a whole number or none'
    """
    return " or ".join(_KINDS[k] for k in kinds)


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
            raise RequestError(f"{method} has no setting {key!r}: it has {', '.join(sorted(known))}")
        values[key] = _value(method, key, text, known[key])
    return values


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
    raise RequestError(f"{key}={text!r} does not fit {method}: {key} takes {spelled(kinds)}")
