"""The cost of whole recipes, from the estimates beside their cases, and the sizes of the clients' models."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ...core.spec import whole_number
from .recipe import Recipe
from .sources import source

if TYPE_CHECKING:
    from ..capacity import CapacityRow

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


class RecipeCost(NamedTuple):
    """What running a recipe, or a part of it, takes."""

    flops: float
    bytes: float


def cost(
    recipe: Recipe,
    cases: Iterable[int] | None = None,
    methods: Iterable[str] | None = None,
    seeds: int | None = None,
    rounds: int | None = None,
) -> RecipeCost:
    """Return the cost of some cases (counted from 1) and methods; None: all, at their published size.

    >>> from .recipe import load
    >>> f"{cost(load('dfedalt-t1'), cases=[1], methods=['dfedalt'], seeds=1).flops:.3g}"
    '2.51e+17'
    """
    chosen, times = None if methods is None else set(methods), seeds or recipe.seeds
    flops = sent = 0.0
    for case in (recipe.cases[number - 1] for number in (recipe.find() if cases is None else cases)):
        share = times * (rounds or case.rounds) / max(1, case.rounds)
        for method, price in case.estimates.items():
            if chosen is None or method in chosen:
                flops, sent = flops + share * price["flops"], sent + share * price["bytes"]
    return RecipeCost(flops, sent)


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
    return (kind, number) if (number := whole_number(level)) is not None else (metric, 4)


@cache
def _capacity_table(model: str, data: str) -> "list[CapacityRow]":
    from ..capacity import capacity_table

    known = source(data)
    return capacity_table(model, known.classes, known.shape)


def _percent_of_full(recipe: Recipe, case: int, method: str) -> float:
    """Return the size of a method's low-rank model, in % of the whole one."""
    import torch

    from ...core.tensors import entries
    from ...submodels import factorize

    settings = recipe.settings(method, case)
    with torch.device("meta"):
        whole = recipe.model(case)
        low = factorize(whole, settings["rank_ratio"], settings["keep_layers"])
    return 100 * entries(low.parameters()) / entries(whole.parameters())
