"""What the numbers of a recipe are, in a sentence each: no number stands without its protocol."""

from .outcome import BLOCK, GAP, POINTS, WHEN
from .recipe import Recipe

_COUNTED = {
    "comm_gparams": "parameters sent in one direction, in 1e9, over all rounds",
    "flops_1e12": "FLOPs of one sample's forward pass, over all participants of all rounds, in 1e12",
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
_MEAN_MODEL = "the mean of all models on all {} samples"


def protocol(metric: str, recipe: Recipe, method: str) -> str:
    """What a number is: where, when, over whom; ``method``: empty for a number of several.

    >>> from .recipe import load
    >>> protocol("personal_accuracy", load("dfedalt-t1"), "fedavg")
    'personal accuracy in % after local training, best round, all clients, each on test samples in its own proportions'
    >>> protocol("generalization_gap", load("dfedsam-t1"), "dfedsam")
    'generalization gap in points: global accuracy train minus global accuracy val, each of the last round'
    """
    if metric in _COUNTED:
        return _COUNTED[metric]
    kind, _, last = metric.rpartition("_")
    when = WHEN.get(recipe.protocol.over_rounds, "")
    if kind == "speedup_to":
        return f"speed-up: rounds until {last} % of the slowest method that was run and gets there, over its own"
    if metric == GAP:
        return f"generalization gap in points: global accuracy train minus global accuracy val, each of the {when}"
    if kind in ("params", "flops_per_sample"):
        what = "parameters" if kind == "params" else "FLOPs of one sample's forward pass"
        return f"{what} of the form a client of capacity {last} holds, counted"
    if metric.startswith(BLOCK):
        return f"smallest singular value in block {last}, {when}"
    return _of_a_run(metric, recipe, method, when)


def _of_a_run(metric: str, recipe: Recipe, method: str, when: str) -> str:
    entry, whom = recipe.entry(method), recipe.protocol.clients
    if metric.startswith("rounds_to_"):
        of = "personal accuracy" if recipe.protocol.metric in ("personal_accuracy", "rounds_to") else "accuracy"
        goal = metric.rpartition("_")[2]
        return f"rounds until {goal} % {of} {POINTS[entry.point]}, the first one counted as 1, {whom}"
    if metric in ("personal_accuracy", "global_accuracy", "test_accuracy"):
        point = entry.point if metric == "personal_accuracy" else "after_mix"
        return f"{metric.replace('_', ' ')} in % {POINTS[point]}, {when}, {whom}"
    if metric.startswith("global_accuracy_"):
        samples = "training" if metric.endswith("train") else "test"
        return f"global accuracy in % after mixing, {when}, {_MEAN_MODEL.format(samples)}"
    return f"{metric.replace('_', ' ')} after mixing, {when}, {whom}"
