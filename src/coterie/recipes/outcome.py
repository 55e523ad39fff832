"""The numbers of one run as the papers print them."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any

from .recipe import PublishedCell, Recipe

Rows = Sequence[Mapping[str, Any]]
"""The history of a run."""

POINTS = {
    "after_mix": "after mixing",
    "after_train": "after local training",
    "after_finetune": "after fine-tuning",
}
_CHOICES: dict[str, Callable[[Sequence[float]], float]] = {
    "best": max,
    "smallest": min,
    "final": lambda values: values[-1],
    "steady": lambda values: fmean(values[-max(1, len(values) // 5) :]),
    "first": max,  # rounds to a target are counted apart; the accuracy beside them is the best one
}
WHEN = {
    "best": "best round",
    "smallest": "smallest of all rounds",
    "final": "last round",
    "steady": "mean of the last fifth of the rounds",
    "first": "best round",
}


def measured(metric: str) -> bool:
    """Whether one run tells the number.

    >>> measured("rounds_to_80"), measured("min_singular_value_block_3"), measured("speedup_to_80")
    (True, True, False)
    """
    return metric in _SUMS or metric == GAP or metric.startswith(("rounds_to_", BLOCK)) or metric in _FIELDS


GAP = "generalization_gap"
BLOCK = "min_singular_value_block_"
# Sums over all rounds: the field of a row, and the unit; parameters are printed for one of the two directions.
_SUMS = {"comm_gparams": ("parameters_sent", 2e9), "flops_1e12": ("forward_flops", 1e12)}
# The field of a row and the factor that makes the printed unit of it; {point}: where the method's accuracy is taken.
_FIELDS = {
    "personal_accuracy": ("personal_accuracy_{point}", 100.0),
    "global_accuracy": ("global_accuracy_local", 100.0),  # one model for all, on each client's own samples
    "test_accuracy": ("global_accuracy", 100.0),  # on all samples
    "global_accuracy_val": ("global_accuracy", 100.0),
    "global_accuracy_train": ("global_accuracy_train", 100.0),
    "perplexity": ("perplexity_chunks", 1.0),
    "min_singular_value": ("smallest_singular_value", 1.0),
    "gradient_norm": ("gradient_norm", 1.0),
    "sharpness": ("sharpness", 1.0),
}


def value(metric: str, recipe: Recipe, entry: PublishedCell, rows: Rows) -> float | None:
    """One number of one run; None where it was not reached or not measured."""
    if metric in _SUMS:
        summed, unit = _SUMS[metric]
        return float(sum(row[summed] for row in rows)) / unit
    if metric == GAP:
        train, val = (value(f"global_accuracy_{part}", recipe, entry, rows) for part in ("train", "val"))
        return None if train is None or val is None else train - val
    if metric.startswith("rounds_to_"):
        return _rounds_to(float(metric.rpartition("_")[2]), entry, rows)
    field, factor = _FIELDS.get(metric) or (metric.replace("min", "smallest", 1), 1.0)
    known = [v for row in rows if (v := _field(row, field.format(point=entry.point))) is not None]
    return factor * _CHOICES[recipe.protocol.over_rounds](known) if known else None


def _field(row: Mapping[str, Any], field: str) -> float | None:
    if field == "gradient_norm":  # the theorems for m of n have m/n G_v, of which runs with another m are no measure
        return sqrt(row["gradient_norm_shared"] + row["gradient_norm_personal"])
    found: float | None = row.get(field)
    return found


def _rounds_to(target: float, entry: PublishedCell, rows: Rows) -> float | None:
    field = f"personal_accuracy_{entry.point}"
    share = target / 100  # 100 times an accuracy could fall short of it by rounding
    reached = (row["round"] for row in rows if row.get(field) is not None and row[field] >= share)
    return next(reached, None)
