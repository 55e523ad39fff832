"""One method with settings of its own in a comparison, typed as ``dfedalt@lr=0.1``, so that it may be there twice."""

from typing import Any, NamedTuple

from ..core.custom import display_name, is_own
from ..core.errors import UserError
from . import builder
from .settings import parse_settings


class Variation(NamedTuple):
    """A method, and the settings that are typed behind its name."""

    method: str
    settings: tuple[str, ...]  # each as KEY=VALUE

    @property
    def typed(self) -> str:
        """The text in its usual form, which tells it from the others of a command."""
        return f"{self.method}@{','.join(self.settings)}" if self.settings else self.method

    @property
    def values(self) -> dict[str, Any]:
        """The settings as values of the types that the method takes."""
        return parse_settings(self.settings, {self.method: builder(self.method)})[self.method]


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
