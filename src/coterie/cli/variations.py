"""One method with settings of its own in a comparison, typed as ``dfedalt@lr=0.1``, so that it may be there twice."""

from collections.abc import Sequence
from typing import NamedTuple

from .. import algorithms
from ..algorithms import Algorithm
from ..algorithms.settings import Builder
from ..core.custom import display_name, is_own
from ..core.errors import UserError
from ..report.groups import difference


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
    return algorithms.builder(variation(text).method)


def row_labels(typed: Sequence[str], chosen: Sequence[Algorithm]) -> list[str]:
    """Return what the rows of a table are called: methods that are there twice by the settings that differ."""
    names = [variation(text).method for text in typed]
    alike = [[dict(b.settings) for n, b in zip(names, chosen, strict=True) if n == name] for name in names]
    told = [difference(dict(a.settings), every) for a, every in zip(chosen, alike, strict=True)]
    labels = [" ".join(filter(None, pair)) for pair in zip(names, told, strict=True)]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(
                f"{label} is named twice with the same settings: name it once, or change one, as in {label}@lr=0.1"
            )
    return labels
