"""The numbers of one run as the papers print them, each with its protocol in one sentence."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any, cast

from ...core.schema import Config, Row
from .recipe import Recipe, RecipeMethod

Rows = Sequence[Mapping[str, Any]]
"""The history of a run."""

POINTS = {
    "after_mix": "after aggregation",
    "after_train": "after local training",
    "after_finetune": "after fine-tuning",
}
_CHOICES: dict[str, Callable[[Sequence[float]], float]] = {
    "best": max,
    "smallest": min,
    "final": lambda values: values[-1],
    "steady": lambda values: fmean(values[-max(1, len(values) // 5) :]),
    "first": max,  # rounds to a target are counted elsewhere; the accuracy beside them is the best one
}
WHEN = {
    "best": "best round",
    "smallest": "smallest of all rounds",
    "final": "last round",
    "steady": "mean of the last fifth of the rounds",
    "first": "best round",
    "best-validation": "round that is best on the clients' validation samples",
    "best-test": "round that is best on the test samples, which is optimistic",
}
BY_SAMPLES = ("best-validation", "best-test")  # the round is chosen by samples, not by the number itself
GAP = "generalization_gap"
BLOCK = "min_singular_value_block_"
# Sums over all rounds: the field of a row, and the unit; parameters are printed for one of the two directions.
_SUMS = {"comm_gparams": ("parameters_sent", 2e9), "flops_1e12": ("forward_flops", 1e12)}
# The field of a row and the factor that converts it to the printed unit; {point}: where the method is evaluated.
_FIELDS = {
    "personal_accuracy": ("personal_accuracy_{point}", 100.0),
    "global_accuracy": ("global_accuracy_local", 100.0),  # one model for all, on each client's own samples
    "test_accuracy": ("global_accuracy", 100.0),  # on all samples
    "global_accuracy_val": ("global_accuracy", 100.0),
    "global_accuracy_train": ("global_accuracy_train", 100.0),
    "personal_accuracy_train": ("personal_accuracy_train_after_train", 100.0),
    "perplexity": ("perplexity_chunks", 1.0),
    "min_singular_value": ("smallest_singular_value", 1.0),
    "gradient_norm": ("gradient_norm", 1.0),
    "sharpness": ("sharpness", 1.0),
}
_PROTOCOLS = {
    "comm_gparams": "parameters sent in one direction, in 1e9, over all rounds",
    "flops_1e12": "FLOPs of one sample's forward pass, over the clients of all rounds, in 1e12",
    "model_size_percent_of_full": "parameters of the low-rank model in % of the whole one, counted",
    "speedup_mean": "speed-up, the mean over all cases",
    "accuracy_margin_over_DFedAvgM": "how far it is ahead of dfedavgm in the same case, in points",
    "personal_accuracy_gap_ring_full": "personal accuracy on the full graph minus that on the ring, in points, "
    "clients with few classes",
    "personal_accuracy_margin_min": "the smallest lead of dfedalt or dfedsalt over any other method, in points, on any "
    "graph, Dirichlet split",
    "personal_accuracy_margin_max": "the largest lead of dfedalt or dfedsalt over any other method, in points, on any "
    "graph, Dirichlet split",
}


def comes_from_one_run(metric: str) -> bool:
    """Return whether one run alone gives the number.

    >>> [comes_from_one_run(m) for m in ("rounds_to_80", "min_singular_value_block_3", "speedup_to_80")]
    [True, True, False]
    """
    return metric in _SUMS or metric == GAP or metric.startswith(("rounds_to_", BLOCK)) or metric in _FIELDS


def value(metric: str, recipe: Recipe, entry: RecipeMethod, rows: Rows) -> float | None:
    """Return one number of one run; None where it was not reached or not measured."""
    if metric in _SUMS:
        summed, unit = _SUMS[metric]
        return float(sum(row[summed] for row in rows)) / unit
    if metric == GAP:
        parts = ("personal_accuracy_train", "global_accuracy_val")
        train, val = (value(part, recipe, entry, rows) for part in parts)
        return None if train is None or val is None else train - val
    if metric.startswith("rounds_to_"):
        return _rounds_to(float(metric.rpartition("_")[2]), entry, rows)
    field, factor = _FIELDS.get(metric) or (metric.replace("min", "smallest", 1), 1.0)
    over = recipe.protocol.over_rounds
    looked_at, choice = (_chosen(over, rows), "final") if over in BY_SAMPLES else (rows, over)
    known = [v for row in looked_at if (v := _number(row, field.format(point=entry.point))) is not None]
    return factor * _CHOICES[choice](known) if known else None


def _chosen(rule: str, rows: Rows) -> Rows:
    """Return the row whose models ``fit`` would deploy by that rule; none where nothing was scored."""
    from ...measure.selection import reported

    found = reported(cast("Config", {"select": rule}), cast("Sequence[Row]", rows))
    return [] if found is None else [found]


def _number(row: Mapping[str, Any], field: str) -> float | None:
    if field == "gradient_norm":  # the theorems for m of n have m/n G_v, of which runs with another m are no measure
        return sqrt(row["gradient_norm_shared"] + row["gradient_norm_personal"])
    number: float | None = row.get(field)
    return number


def _rounds_to(target: float, entry: RecipeMethod, rows: Rows) -> float | None:
    field = f"personal_accuracy_{entry.point}"
    share = target / 100  # 100 times an accuracy could fall short of it by rounding
    return next((row["round"] for row in rows if row.get(field) is not None and row[field] >= share), None)


def protocol(metric: str, recipe: Recipe, method: str) -> str:
    """Say what a number is: where, when, over whom; ``method`` is empty for a number of several methods.

    >>> from .recipe import load
    >>> protocol("personal_accuracy", load("dfedalt-t1"), "fedavg")
    'personal accuracy in % after local training, best round, all clients, each on test samples in its own proportions'
    >>> protocol("generalization_gap", load("dfedsam-t1"), "dfedsam")
    'generalization gap in points: personal accuracy train minus global accuracy val, each of the last round'
    """
    if metric in _PROTOCOLS:
        return _PROTOCOLS[metric]
    kind, _, last = metric.rpartition("_")
    when = WHEN.get(recipe.protocol.over_rounds, "")
    if kind == "speedup_to":
        return f"speed-up: rounds until {last} % of the slowest method that was run and gets there, over its own"
    if metric == GAP:
        return f"generalization gap in points: personal accuracy train minus global accuracy val, each of the {when}"
    if kind in ("params", "flops_per_sample"):
        what = "parameters" if kind == "params" else "FLOPs of one sample's forward pass"
        return f"{what} of the form a client of capacity {last} holds, counted"
    if metric.startswith(BLOCK):
        return f"smallest singular value in block {last}, {when}"
    return _protocol_of_one_run(metric, recipe, method, when)


def _protocol_of_one_run(metric: str, recipe: Recipe, method: str, when: str) -> str:
    entry, whom = recipe.entry(method), recipe.protocol.clients
    if metric.startswith("rounds_to_"):
        of = "personal accuracy" if recipe.protocol.metric in ("personal_accuracy", "rounds_to") else "accuracy"
        goal = metric.rpartition("_")[2]
        return f"rounds until {goal} % {of} {POINTS[entry.point]}, the first one counted as 1, {whom}"
    if metric in ("personal_accuracy", "global_accuracy", "test_accuracy"):
        point = entry.point if metric == "personal_accuracy" else "after_mix"
        return f"{metric.replace('_', ' ')} in % {POINTS[point]}, {when}, {whom}"
    if metric == "personal_accuracy_train":
        return (
            f"personal accuracy in % after local training, {when}, of each client's model on its own training samples"
        )
    if metric.startswith("global_accuracy_"):
        samples = "training" if metric.endswith("train") else "test"
        return f"global accuracy in % after aggregation, {when}, of the averaged model on all {samples} samples"
    return f"{metric.replace('_', ' ')} after aggregation, {when}, {whom}"
