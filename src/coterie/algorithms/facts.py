"""What a method says of itself that is no setting: what suits it, which models it needs, what is proved of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..core.errors import unknown

Kind = Literal["small", "text", "papers"]
"""A kind of set-up that the commands assume: small data; text, which is small as well; the papers' own data sets."""
Presets = Mapping[Kind, Mapping[str, Any]]
"""Settings by kind of set-up."""


@dataclass(frozen=True)
class Facts:
    """What others need to know of a method before it is bound.

    Args:
        presets: By kind of set-up, settings in place of those that the commands suggest to every method.
        staged: Whether it trains only networks that are built in stages; the commands choose one then.
        theorem: The theorem of ``coterie.theory`` that speaks of it.
        form: The smaller form of a model that its clients hold, as ``coterie capacity`` counts it.
    """

    presets: Presets = field(default_factory=dict)
    staged: bool = False
    theorem: str | None = None
    form: str | None = None

    def __post_init__(self) -> None:
        for kind in self.presets:
            if kind not in get_args(Kind):
                raise unknown("kind of set-up", kind, get_args(Kind))


def facts(builder: Callable[..., Any]) -> Facts:
    """The facts of a method; a function that was not made with ``method`` says nothing.

    >>> from coterie.algorithms import dpsgd
    >>> facts(dpsgd).presets["small"]
    {'epochs': 1}
    """
    found: Facts = getattr(builder, "facts", Facts())
    return found
