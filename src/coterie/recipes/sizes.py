"""Numbers that papers print about models, whoever trains them: parameters and FLOPs of the forms clients can hold."""

from functools import cache
from typing import TYPE_CHECKING

from .recipe import Recipe
from .sources import source

if TYPE_CHECKING:
    from ..algorithms.costs import Row

FORMS = {
    "width-scale": "width",
    "depth-scale": "depth",
    "fedhm": "rank by client",
    "pfedlmt": "rank by client",
    "flanc": "basis",
    "fedlmt": "low rank",
}
"""By method of FedLMT's Table 1: the family of ``coterie capacity`` that its clients hold."""

COUNTED = {"params": "parameters", "flops_per_sample": "flops"}
OF_FULL = "model_size_percent_of_full"


def counted(metric: str) -> bool:
    """Whether a number is one of a model, which nobody has to train.

    >>> counted("params_b2"), counted("params"), counted("global_accuracy")
    (True, True, False)
    """
    return metric == OF_FULL or _parted(metric)[0] in COUNTED


def size(recipe: Recipe, case: int, method: str, metric: str) -> float | None:
    """One count; None where a method has no such form.

    >>> from .recipe import load
    >>> size(load("fedlmt-t1"), 1, "fedlmt", "params_b2")
    1430538
    """
    if metric == OF_FULL:
        return _percent(recipe, case, method)
    kind, level = _parted(metric)
    forms = _forms(recipe, case, method)
    return getattr(forms[level - 1], COUNTED[kind]) if level <= len(forms) else None


def _parted(metric: str) -> tuple[str, int]:
    """A metric and the capacity it ends with, from the smallest, 1, to the whole model, 4."""
    kind, _, level = metric.rpartition("_b")
    return (kind, int(level)) if level.isdigit() else (metric, 4)


def _forms(recipe: Recipe, case: int, method: str) -> "list[Row]":
    """From the smallest; the widest form is the model itself, and FedLMT has none of that size."""
    chosen, family = recipe.cases[case - 1], FORMS[method]
    table = _table(chosen.model, chosen.data)
    whole = [row for row in table if row.family == "full"] if family == "width" else []
    return [*(row for row in table if row.family == family), *whole]


@cache
def _table(model: str, data: str) -> "list[Row]":
    from ..algorithms.costs import capacity_table

    known = source(data)
    return capacity_table(model, known.classes, known.shape)


def _percent(recipe: Recipe, case: int, method: str) -> float:
    """The size of a method's low-rank model, in % of the whole one."""
    import torch

    from ..core.tensors import entries
    from ..submodels import factorize

    settings = recipe.settings(method, case)
    with torch.device("meta"):
        whole = recipe.model(case)
        low = factorize(whole, settings["rank_ratio"], settings["keep_layers"])
    return 100 * entries(low.parameters()) / entries(whole.parameters())
