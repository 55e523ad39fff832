"""The values to try of settings, by method."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..algorithms.settings import Builder, parameters_of, settings_of
from ..core.errors import UserError, no_option
from ..core.spec import Spec, bind, given_twice

ValueGrid = Mapping[str, Mapping[str, Any]]
"""By setting: its values, by what they are written down as."""
Grids = Mapping[str, ValueGrid]
"""By method."""
Tried = tuple[str, str, Mapping[str, Any]]
"""A method, which is empty for all that have the setting; the setting; its values, by what they are written down as."""


def grids_of(
    items: Iterable[Tried], builders: Mapping[str, Builder], option: str, fixed: Collection[tuple[str, str]]
) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the values to try by method; refuse settings that no method has, and those that are fixed already.

    option: what people know the values by. fixed: (method, setting), where an empty method stands for all of them.

    >>> from coterie.algorithms import dfedavg, fedavg
    >>> items = [("", "lr", {"0.1": 0.1}), ("fedavg", "epochs", {"1,2": (1, 2)})]
    >>> grids_of(items, {"fedavg": fedavg, "dfedavg": dfedavg}, "--tune", [])
    {'fedavg': {'lr': {'0.1': 0.1}, 'epochs': {'1,2': (1, 2)}}, 'dfedavg': {'lr': {'0.1': 0.1}}}
    """
    grids: dict[str, dict[str, Mapping[str, Any]]] = {method: {} for method in builders}
    known = {method: settings_of(builder) for method, builder in builders.items()}
    for method, key, values in items:
        if method and method not in builders:
            typed = f"{method}.{key}={listed(list(values))}"
            raise UserError(f"{option} {typed} is for {method}, which is not among {', '.join(builders)}")
        asked = [method] if method else list(builders)
        having = [m for m in asked if key in known[m]]
        if not having:
            raise no_option(f"method {' or '.join(asked)}", key, dict.fromkeys(k for m in asked for k in known[m]))
        for m in having:
            if key in grids[m]:
                raise given_twice(option, key, listed(list(grids[m][key])), listed(list(values)))
            if ("", key) in fixed or (m, key) in fixed:
                raise UserError(f"--set and {option} both have {key}: leave one of them out")
            takes = parameters_of(builders[m])
            grids[m][key] = {text: bind("method", Spec(m, (), {key: v}), takes)[key] for text, v in values.items()}
    return grids


def handed_values(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return values of Python by what they are written down as; ``name``: what people know them by."""
    written = {written_down(name, value): value for value in values}
    if not values or len(written) < len(values):
        why = "has a value twice: leave one out" if values else "has no values: give at least one"
        raise UserError(f"{name} {why}")
    return written


def written_down(name: str, value: Any) -> str:
    """Return a plain value as people type it.

    >>> [written_down("grid", value) for value in (0.1, (1, 2), None, True, "ring")]
    ['0.1', '1,2', 'none', 'true', 'ring']
    """
    if isinstance(value, list | tuple):
        return ",".join(written_down(name, one) for one in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float | str):
        raise UserError(f"{name} has a {type(value).__name__}, which cannot be written down: give a number or a string")
    return str(value)


def listed(values: Sequence[str]) -> str:
    """Return values as they are typed.

    >>> listed(["0.1", "0.2"]), listed(["1,2", "3"]), listed(["1,2"])
    ('0.1,0.2', '1,2;3', '1,2;')
    """
    if not any("," in value for value in values):
        return ",".join(values)
    return ";".join(values) if len(values) > 1 else f"{values[0]};"
