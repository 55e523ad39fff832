"""Settings of methods as people type them: which a method has, of which types, and what is meant by ``--set``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any, get_type_hints

from ..core.annotations import in_words, plain_types
from ..core.custom import display_name
from ..core.errors import UserError, no_option
from ..core.settings_file import SettingsFile
from ..core.spec import Spec, bind, given_twice, parameters
from .base import Algorithm
from .options import Options

Builder = Callable[..., Algorithm]


def parameters_of(builder: Builder) -> dict[str, Parameter]:
    """Return the keywords of a builder, none of which must be typed: its own, and ``Options`` if it passes them on."""
    own = parameters(builder)
    hints = {k: p.annotation for k, p in own.items() if p.kind is not Parameter.VAR_KEYWORD}
    if len(hints) < len(own):
        hints |= get_type_hints(Options, include_extras=True)
    return {k: Parameter(k, Parameter.KEYWORD_ONLY, default=None, annotation=hint) for k, hint in hints.items()}


def settings_of(builder: Builder) -> dict[str, tuple[type, ...]]:
    """Return the keywords of a builder, each with the plain types it accepts.

    >>> from coterie.algorithms import fedavg
    >>> settings_of(fedavg)["weighting"]
    (<class 'str'>,)
    """
    return {k: plain_types(p.annotation) for k, p in parameters_of(builder).items()}


def describe_settings(builder: Builder) -> dict[str, str]:
    """Return the keywords of a builder, each with what it takes in words.

    >>> from coterie.algorithms import fedavg
    >>> describe_settings(fedavg)["weighting"]
    'size or uniform'
    """
    return {k: in_words(p.annotation) for k, p in parameters_of(builder).items()}


def parse_settings(items: Sequence[str], builders: Mapping[str, Builder]) -> dict[str, dict[str, Any]]:
    """Return what ``KEY=VALUE``, for all methods that have it, and ``METHOD.KEY=VALUE`` set, by method.

    >>> from coterie.algorithms import dfedavg, fedavg
    >>> parse_settings(["lr=0.05", "weighting=uniform", "dfedavg.epochs=2"], {"fedavg": fedavg, "dfedavg": dfedavg})
    {'fedavg': {'lr': 0.05, 'weighting': 'uniform'}, 'dfedavg': {'lr': 0.05, 'epochs': 2}}
    """
    return settings_by_method(map(split_setting, items), builders)


def settings_by_method(
    items: Iterable[tuple[str, str, Any]], builders: Mapping[str, Builder]
) -> dict[str, dict[str, Any]]:
    """Return what (method, key, value) sets, by method; the method is empty for all that have the setting.

    >>> from coterie.algorithms import fedavg
    >>> settings_by_method([("", "lr", 0.05), ("fedavg", "weighting", "uniform")], {"fedavg": fedavg})
    {'fedavg': {'lr': 0.05, 'weighting': 'uniform'}}
    """
    known = {m: settings_of(builder) for m, builder in builders.items()}
    texts: dict[str, dict[str, Any]] = {}
    for typed, key, text in items:
        method = display_name(typed)
        if method and method not in builders:
            raise UserError(f"--set {method}.{key}={text} is for {method}, which is not among {', '.join(builders)}")
        asked = [method] if method else list(builders)
        if not any(key in known[m] for m in asked):
            raise no_option(f"method {' or '.join(asked)}", key, dict.fromkeys(k for m in asked for k in known[m]))
        if key in texts.setdefault(method, {}):
            raise given_twice(" or ".join(asked), key, texts[method][key], text)
        texts[method][key] = text
    values = {}
    for m, builder in builders.items():
        common = {k: text for k, text in texts.get("", {}).items() if k in known[m]}
        values[m] = bind("method", Spec(m, (), common | texts.get(m, {})), parameters_of(builder))
    return values


def file_settings(file: SettingsFile, builders: Mapping[str, Builder]) -> dict[str, dict[str, Any]]:
    """Return what a file sets, by method: those of ``builders``, whose tables must fit them.

    Case, ``-`` and ``_`` do not matter in the name of a method. A text is read as a typed one, so that "none" is None.
    """
    values: dict[str, dict[str, Any]] = {}
    for name, table in file.tables.items():
        method = next((m for m in builders if display_name(m) == display_name(name)), None)
        if method in values:
            raise UserError(f"{file.path} has two tables for {method}: make one of them")
        if method is None:
            continue
        try:
            values[method] = bind("method", Spec(method, (), table), parameters_of(builders[method]))
        except UserError as error:
            raise UserError(f"{file.path}, [{name}]: {error}") from error
    return values


def split_setting(item: str) -> tuple[str, str, str]:
    """Take ``METHOD.KEY=VALUE`` or ``KEY=VALUE`` apart."""
    left, equals, value = item.partition("=")
    if not equals:
        raise UserError(f"--set {item} has no value: write --set KEY=VALUE, as in --set lr=0.05")
    method, _, key = left.strip().rpartition(".")
    return method, key, value.strip()
