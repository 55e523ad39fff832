"""One method with settings of its own in a comparison, typed as ``dfedalt@lr=0.1``, so that it may be there twice."""

from collections.abc import Sequence
from typing import NamedTuple

from ..core.custom import display_name, is_own
from ..core.errors import UserError
from . import Algorithm, builder
from .settings import Builder


class Variation(NamedTuple):
    """A method, and the settings that are typed behind its name."""

    method: str
    settings: tuple[str, ...]  # each as KEY=VALUE

    @property
    def typed(self) -> str:
        """The text in its usual form, which tells it from the others of a command."""
        return f"{self.method}@{','.join(self.settings)}" if self.settings else self.method


def variation(text: str) -> Variation:
    """Take ``METHOD@KEY=VALUE,KEY=VALUE`` apart; a value may have commas.

    >>> variation("DFedAlt@lr=0.1,epochs=1,2")
    Variation(method='dfedalt', settings=('lr=0.1', 'epochs=1,2'))
    """
    name, at, rest = text.partition("@")
    if not at or is_own(text):
        return Variation(display_name(text), ())
    items: list[str] = []
    for part in (part.strip() for part in rest.split(",")):
        if "=" in part:
            items.append(part)
        elif items and part:
            items[-1] += f",{part}"
        else:
            raise UserError(f"{text} has no setting behind @: write {name}@KEY=VALUE, as in {name}@lr=0.1")
    return Variation(display_name(name), tuple(items))


def builder_of(text: str) -> Builder:
    """Return the builder of a method that may have settings behind its name."""
    return builder(variation(text).method)


def check_different(typed: Sequence[str], chosen: Sequence[Algorithm]) -> None:
    """Refuse a method that is named twice with the same settings: its rows would be the same run."""
    settings = [
        (variation(text).method, dict(algorithm.settings)) for text, algorithm in zip(typed, chosen, strict=True)
    ]
    for (method, own), text in zip(settings, typed, strict=True):
        if settings.count((method, own)) > 1:
            raise UserError(
                f"{text} is named twice with the same settings: name it once, or change one, as in {method}@lr=0.1"
            )
