"""The cost of whole recipes, from the estimates beside their cases, and the sizes of the clients' models."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ...core.spec import parse, whole_number
from .recipe import Recipe
from .sources import source
from .speeds import Platform, RunSize, Speed, estimate_time, evaluated_samples, known_speeds, participants

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


class CaseCost(NamedTuple):
    """What running a recipe takes; the time is of the runs that are like a measured one."""

    flops: float
    bytes: float
    seconds: float
    untimed: float  # FLOPs of the runs whose time nobody can tell

    def time(self) -> str:
        """Return the time as people say it: a lower bound where some runs have none, and a dash where none has.

        >>> [CaseCost(2.0, 0.0, *known).time() for known in ((5400.0, 0.0), (60.0, 1.0), (0.0, 2.0))]
        ['1.5 h', '> 1 min', '-']
        """
        return "-" if not self.seconds else f"{'> ' if self.untimed else ''}{duration(self.seconds)}"


class Extent(NamedTuple):
    """How much of the published size is run, and how; None: all of it, with any engine."""

    seeds: int | None = None
    rounds: int | None = None
    evaluate_every: int = 1
    engine: str | None = None

    def admits(self, speed: Speed) -> bool:
        """Return whether a speed was measured with the engine that is asked for."""
        return self.engine in (None, "auto") or parse(speed.engine).name == parse(self.engine or "").name


def cost(
    recipe: Recipe,
    cases: Iterable[int] | None = None,
    methods: Iterable[str] | None = None,
    platform: Platform | None = None,
    extent: Extent = Extent(),  # noqa: B008
) -> CaseCost:
    """Return the cost of all seeds of some cases (counted from 1) and methods; None: all, and no time.

    >>> from .recipe import load
    >>> one = cost(load("dfedalt-t1"), cases=[1], methods=["dfedalt"], extent=Extent(seeds=1))
    >>> f"{one.flops:.3g}", one.time()
    ('2.51e+17', '-')
    """
    chosen, seeds = None if methods is None else set(methods), extent.seeds or recipe.seeds
    speeds = [speed for speed in known_speeds() if extent.admits(speed)]
    total = CaseCost(0.0, 0.0, 0.0, 0.0)
    for number in recipe.find() if cases is None else cases:
        case = recipe.cases[number - 1]
        share = (extent.rounds or case.rounds) / max(1, case.rounds)
        for method, price in case.estimates.items():
            if chosen is None or method in chosen:
                size = run_size(recipe, number, method, extent)
                told = None if platform is None else estimate_time(speeds, size, platform)
                one = CaseCost(size.training, share * price["bytes"], sum(told or ()), 0.0 if told else size.training)
                total = CaseCost(*(done + seeds * more for done, more in zip(total, one, strict=True)))
    return total


def run_size(recipe: Recipe, number: int, method: str, extent: Extent = Extent()) -> RunSize:  # noqa: B008
    """Return what one run of a method in a case has to do."""
    case, settings = recipe.cases[number - 1], recipe.settings(method, number)
    price, rounds, known = case.estimates[method], extent.rounds or case.rounds, source(case.data)
    forward, looks = price["forward"], -(-rounds // extent.evaluate_every)
    samples = evaluated_samples(case.data, settings, case.clients, recipe.record)
    return RunSize(
        model=parse(case.model).name,
        method=recipe.entry(method).builder,
        cohort=participants(settings, case.clients),
        batch=settings.get("batch_size") or known.train / case.clients,
        forward=forward,
        training=price["flops"] * rounds / case.rounds,
        evaluation=None if samples is None else looks * samples * forward,
        tuning=3 * forward * looks * (settings.get("finetune_epochs") or 0) * known.train,
    )


def duration(seconds: float) -> str:
    """Write a time as people say it.

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
