"""Paces: by what factor all rates change from step to step of a round, beside what they do from round to round."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Annotated, Any

from ..core.annotations import Fraction, PositiveInt, Range
from ..core.custom import import_function, own_name
from ..core.errors import UserError, noted, unknown
from ..core.spec import bind, parameters, parse, spelled
from ..engines.base import Pace

PaceLike = str | Callable[[int, int], float]
"""A text, or a function of the round and of the step in it, both counted from 0, that returns a factor of the rates."""


def exponential(k: int, factor: Annotated[float, Range(0, 1, above=True)]) -> float:
    """Multiply the rates by ``factor`` after each step.

    >>> exponential(2, factor=0.5)
    0.25
    """
    return factor**k


def milestones(k: int, every: PositiveInt, gamma: Annotated[float, Range(0, 1, above=True)] = 0.1) -> float:
    """Multiply the rates by ``gamma`` after every ``every`` steps.

    >>> milestones(7, every=3, gamma=0.5)
    0.25
    """
    return gamma ** (k // every)


def cosine(k: int, steps: PositiveInt, end: Fraction = 0.0) -> float:
    """Follow half a cosine from 1 to ``end`` over ``steps`` steps; later steps stay there.

    >>> cosine(0, steps=4), cosine(2, steps=4), cosine(9, steps=4)
    (1.0, 0.5, 0.0)
    """
    return end + (1 - end) / 2 * (1 + math.cos(math.pi * min(k, steps) / steps))


def warmup(k: int, steps: PositiveInt) -> float:
    """Rise in equal steps, so that the step after the first ``steps`` has the whole rate.

    >>> warmup(0, steps=3), warmup(3, steps=3), warmup(9, steps=3)
    (0.25, 1.0, 1.0)
    """
    return min(1.0, (k + 1) / (steps + 1))


PACES: Mapping[str, Callable[..., float]] = {
    "exponential": exponential,
    "milestones": milestones,
    "cosine": cosine,
    "warmup": warmup,
}


def pace_of(given: PaceLike | None, t: int) -> Pace | None:
    """Return the pace of round ``t``; a text may name a function of one's own, which takes the round and the step.

    >>> pace_of("exponential:0.5", t=3)(1), pace_of(lambda t, k: t + k, t=3)(1)
    (0.5, 4.0)
    """
    if given is None:
        return None
    if not isinstance(given, str):
        return partial(_checked, _of_round_and_step(given), t)
    spec = parse(spelled(given, PACES))
    if spec.name in PACES:
        takes = parameters(PACES[spec.name], filled=("k",))
        return partial(PACES[spec.name], **bind("lr_schedule", spec, takes))
    name = own_name(given)
    if name is None:
        raise unknown("lr_schedule", spec.name, PACES)
    options = dict.fromkeys(spec.options, Parameter.empty)
    if len(spec.args) > 1 or options:
        raise UserError(f"{given} has options, and {name} takes the round and the step alone: leave the options out")
    return partial(_checked, _of_round_and_step(import_function(name, "lr_schedule")), t)


def _checked(function: Callable[[int, int], float], t: int, k: int) -> float:
    """Return the factor of a function of one's own; refuse what no rate can be multiplied by."""
    with noted(f"It happened in the function of lr_schedule, with round={t} and step={k}."):
        result = function(t, k)
    try:
        factor = float(result)
    except (TypeError, ValueError):
        factor = math.nan
    if not 0 <= factor < math.inf:
        raise UserError(
            f"lr_schedule returned {result!r} for round {t} and step {k}: return a factor of the rates that is a "
            "number of 0 or more"
        )
    return factor


def _of_round_and_step(function: Callable[..., Any]) -> Callable[[int, int], float]:
    """Return a function of one's own; refuse one that does not take the round and the step."""
    try:
        signature(function).bind(0, 0)
    except TypeError as error:
        raise UserError(
            f"the function of lr_schedule cannot be called with the round and the step ({error}): give it these two "
            "parameters, as in def schedule(round, step)"
        ) from error
    except ValueError:  # built in, and says nothing of what it takes
        pass
    return function
