"""Methods and settings as Python hands them over: names, algorithms, and values by the name of a setting."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from .. import algorithms
from ..algorithms import Algorithm
from ..algorithms.settings import settings_by_method
from ..algorithms.variation import variation
from ..core.annotations import Example
from ..core.arguments import accept
from ..core.errors import UserError
from .methods import PlannedMethod

MethodLike = Annotated[str | Algorithm, Example('coterie.algorithms.fedavg() or "fedavg"')]


def labeled(methods: Sequence[str | Algorithm] | Mapping[str, str | Algorithm]) -> dict[str, str | Algorithm]:
    """Return the methods by what they are called; refuse two of one name."""
    if isinstance(methods, Mapping):
        return {str(k): accept("function compare", f"methods[{k!r}]", m, MethodLike) for k, m in methods.items()}
    taken = [variation(m).typed if isinstance(m, str) else m for m in methods]
    labels = [m if isinstance(m, str) else m.name for m in taken]
    if not labels:
        raise UserError("there are no methods to compare: name at least one")
    twice = next((label for i, label in enumerate(labels) if label in labels[:i]), None)
    if twice is not None:
        raise UserError(
            f"{twice} is named twice: give both a name of their own, as in {{'{twice} lr=0.1': algorithm, ...}}"
        )
    return dict(zip(labels, taken, strict=True))


def planned(methods: Mapping[str, str | Algorithm], settings: Mapping[str, Any] | None) -> list[PlannedMethod]:
    """Return the methods of a study; ``settings``: of those by name, such as ``{"lr": 0.1, "fedper.epochs": 2}``."""
    named = {label: variation(m) for label, m in methods.items() if isinstance(m, str)}
    if settings and not named:
        raise UserError("settings are for methods by name, and all of these have their own: leave settings out")
    builders = {v.method: algorithms.builder(v.method) for v in named.values()}
    items = [(*by_method(key), value) for key, value in (settings or {}).items()]
    chosen = settings_by_method(items, builders)
    return [
        PlannedMethod.of(label, m)
        if isinstance(m, Algorithm)
        else PlannedMethod.named(label, named[label].method, chosen[named[label].method], named[label].values)
        for label, m in methods.items()
    ]


def by_method(key: str) -> tuple[str, str]:
    """Take the name of a setting apart; the method is empty for all that have it.

    >>> by_method("fedper.personal"), by_method("lr")
    (('fedper', 'personal'), ('', 'lr'))
    """
    method, _, name = key.rpartition(".")
    return method, name
