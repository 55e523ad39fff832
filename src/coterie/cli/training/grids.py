"""The values to try of settings, as they are typed: KEY=VALUE,VALUE for all methods, METHOD.KEY=VALUE,VALUE for one."""

from collections.abc import Mapping, Sequence

from ...algorithms.settings import Builder, settings_of, split_setting
from ...core.custom import display_name
from ...core.errors import UserError, no_option
from ...core.spec import given_twice
from ..common.options import RunOptions
from ..request import settings_from_file

Grids = dict[str, dict[str, list[str]]]
"""By method: the values of each of its settings."""


def typed_grids(items: Sequence[str], option: str, builders: Mapping[str, Builder], set: Sequence[str]) -> Grids:
    """Return the values to try by method; refuse settings that no method has, and those that ``set`` has already.

    Values that have commas themselves are separated by semicolons, as in ``epochs=1,2;3``.

    >>> from coterie.algorithms import dfedavg, fedavg
    >>> typed_grids(["lr=0.1,0.2", "fedavg.epochs=1,2;3"], "--tune", {"fedavg": fedavg, "dfedavg": dfedavg}, [])
    {'fedavg': {'lr': ['0.1', '0.2'], 'epochs': ['1,2', '3']}, 'dfedavg': {'lr': ['0.1', '0.2']}}
    """
    grids: Grids = {method: {} for method in builders}
    known = {method: settings_of(builder) for method, builder in builders.items()}
    for item in items:
        method, key, values = _typed_values(item, option)
        if method and method not in builders:
            raise UserError(f"{option} {item} is for {method}, which is not among {', '.join(builders)}")
        asked = [method] if method else list(builders)
        having = [m for m in asked if key in known[m]]
        if not having:
            raise no_option(f"method {' or '.join(asked)}", key, dict.fromkeys(k for m in asked for k in known[m]))
        for m in having:
            if key in grids[m]:
                raise given_twice(option, key, listed(grids[m][key]), listed(values))
            if any(split_setting(typed)[:2] in (("", key), (m, key)) for typed in set):
                raise UserError(f"--set and {option} both have {key}: leave one of them out")
            grids[m][key] = values
    return grids


def _typed_values(item: str, option: str) -> tuple[str, str, list[str]]:
    """Take METHOD.KEY=VALUE,VALUE apart; the method is empty where none is named."""
    left, equals, text = (part.strip() for part in item.partition("="))
    method, _, key = left.rpartition(".")
    values = [value.strip() for value in text.split(";" if ";" in text else ",") if value.strip()]
    if not equals or not values:
        raise UserError(f"{option} {item} has no values: write {option} KEY=VALUE,VALUE, as in {option} lr=0.01,0.1")
    if len(set(values)) < len(values):
        raise UserError(f"{option} {item} has a value twice: leave one out")
    return display_name(method), key, values


def check_not_in_file(grids: Grids, option: str, methods: Sequence[str], options: RunOptions) -> None:
    """Refuse to try values of a setting that a file of settings has for any method."""
    for key in dict.fromkeys(key for grid in grids.values() for key in grid):
        if options.settings and any(key in own for own in settings_from_file(options, methods).values()):
            raise UserError(f"{options.settings.path} and {option} both have {key}: leave it out of one of them")


def listed(values: Sequence[str]) -> str:
    """Return values as they are typed.

    >>> listed(["0.1", "0.2"]), listed(["1,2", "3"]), listed(["1,2"])
    ('0.1,0.2', '1,2;3', '1,2;')
    """
    if not any("," in value for value in values):
        return ",".join(values)
    return ";".join(values) if len(values) > 1 else f"{values[0]};"
