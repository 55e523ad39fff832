"""The cost of whole recipes, from the estimates beside their cases, and the sizes of the clients' models."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from .recipe import Recipe
from .sources import source

if TYPE_CHECKING:
    from ..algorithms.costs import CapacityRow

SPEED = 8.8e13  # multiply-adds per second: a DFedAlt round of 100 ResNet-18 in 5.7 s on one H200 in bf16
SPEED_OF = "one H200 in bf16 at 88e12 multiply-adds a second, as measured with ResNet-18"

FORMS = {
    "width-scale": "width",
    "depth-scale": "depth",
    "fedhm": "rank by client",
    "pfedlmt": "rank by client",
    "flanc": "basis",
    "fedlmt": "low rank",
}
"""By method of FedLMT's Table 1: the family of ``coterie capacity`` that its clients hold."""

_COUNTS = {"params": "parameters", "flops_per_sample": "flops"}
_OF_FULL = "model_size_percent_of_full"


class CaseCost(NamedTuple):
    """What running a recipe takes."""

    flops: float
    bytes: float

    @property
    def seconds(self) -> float:
        """The time at the speed that is stated with it."""
        return self.flops / SPEED


def cost(recipe: Recipe, cases: Iterable[int] | None = None, methods: Iterable[str] | None = None) -> CaseCost:
    """Return the cost of all seeds of some cases (counted from 1) and methods; None: all.

    >>> from .recipe import load
    >>> f"{cost(load('dfedalt-t1'), cases=[1], methods=['dfedalt']).seconds / 3:.0f} s per seed"
    '2856 s per seed'
    """
    chosen = None if methods is None else set(methods)
    each = [
        price
        for number in (recipe.find() if cases is None else cases)
        for method, price in recipe.cases[number - 1].estimates.items()
        if chosen is None or method in chosen
    ]
    return CaseCost(*(recipe.seeds * sum(price[k] for price in each) for k in ("flops", "bytes")))


def duration(seconds: float) -> str:
    """Write a time as people say it; small models never reach the assumed speed, so short times are not told.

    >>> duration(8), duration(5400), duration(400_000)
    ('< 1 min', '1.5 h', '4.6 d')
    """
    for length, unit in ((2 * 86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / min(length, 86_400):.2g} {unit}"
    return "< 1 min"


def is_size(metric: str) -> bool:
    """Return whether a number is one of a model, which nobody has to train.

    >>> is_size("params_b2"), is_size("params"), is_size("global_accuracy")
    (True, True, False)
    """
    return metric == _OF_FULL or _split_level(metric)[0] in _COUNTS


def size(recipe: Recipe, case: int, method: str, metric: str) -> float | None:
    """Return one count; None where a method has no such form.

    >>> from .recipe import load
    >>> size(load("fedlmt-t1"), 1, "fedlmt", "params_b2")
    1430538
    """
    if metric == _OF_FULL:
        return _percent_of_full(recipe, case, method)
    kind, level = _split_level(metric)
    chosen, family = recipe.cases[case - 1], FORMS[method]
    table = _capacity_table(chosen.model, chosen.data)
    # From the smallest; the widest form is the model itself, and FedLMT has none of that size.
    whole = [row for row in table if row.family == "full"] if family == "width" else []
    forms = [*(row for row in table if row.family == family), *whole]
    return getattr(forms[level - 1], _COUNTS[kind]) if level <= len(forms) else None


def _split_level(metric: str) -> tuple[str, int]:
    """Return a metric and the capacity it ends with, from the smallest, 1, to the whole model, 4."""
    kind, _, level = metric.rpartition("_b")
    return (kind, int(level)) if level.isdigit() else (metric, 4)


@cache
def _capacity_table(model: str, data: str) -> "list[CapacityRow]":
    from ..algorithms.costs import capacity_table

    known = source(data)
    return capacity_table(model, known.classes, known.shape)


def _percent_of_full(recipe: Recipe, case: int, method: str) -> float:
    """Return the size of a method's low-rank model, in % of the whole one."""
    import torch

    from ..core.tensors import entries
    from ..submodels import factorize

    settings = recipe.settings(method, case)
    with torch.device("meta"):
        whole = recipe.model(case)
        low = factorize(whole, settings["rank_ratio"], settings["keep_layers"])
    return 100 * entries(low.parameters()) / entries(whole.parameters())
