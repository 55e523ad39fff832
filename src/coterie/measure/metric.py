"""What models are judged by, and what their targets are.

A metric is two functions: what is kept of a sample, and the number of any set of them.

One mechanism measures all of them: the statistics of every test sample are kept, and the value is taken over those of a
client, over all samples, or over resampled ones.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import checked, checked_class
from ..core.custom import import_function, is_own
from ..core.errors import UserError, noted
from ..core.schema import ClientSummary, MetricInfo, TargetKind
from ..core.spec import spelled
from ..core.tensors import Integers
from ..models.losses import ABSOLUTE, CROSS_ENTROPY, REGRESSION, dice, of_kind
from ..models.model import Loss, cross_entropy
from . import formulas as f

KINDS: dict[str | None, str] = {
    "classes": "one class per sample",
    "tokens": "a token at every place",
    "pixels": "a class for every pixel",
    "labels": "several labels per sample, each 0 or 1",
    "masks": "masks of 0 and 1",
    "numbers": "numbers",
    "probabilities": "probabilities of the classes",
    None: "of another shape than the outputs",
}


class LearningTask(NamedTuple):
    """What a model answers, and what it should."""

    kind: TargetKind | None  # None: no built-in metric knows what targets of this shape are
    outputs: torch.Size  # of one sample
    targets: torch.Size
    dtype: torch.dtype  # of what is kept of a sample


def task_of(outputs: object, targets: Tensor, loss: Loss) -> LearningTask:
    """Return the task of a model whose ``outputs`` for some samples these are; ``targets``: of all samples."""
    if not isinstance(outputs, Tensor):
        return LearningTask(None, torch.Size(), targets.shape[1:], torch.float32)
    dtype = torch.float64 if outputs.dtype == torch.float64 else torch.float32
    return LearningTask(_kind(outputs, targets, loss), outputs.shape[1:], targets.shape[1:], dtype)


def _kind(outputs: Tensor, targets: Tensor, loss: Loss) -> TargetKind | None:
    have, wanted, floating = outputs.shape[1:], targets.shape[1:], targets.is_floating_point()
    several = outputs.dim() > 1 and (have[0] > 1 or of_kind(loss, CROSS_ENTROPY))  # one score is that of the only class
    if not floating and outputs.dim() == targets.dim() + 1 and have[1:] == wanted and several:
        return "classes" if targets.dim() == 1 else "tokens" if targets.dim() == 2 else "pixels"
    if have.numel() != wanted.numel():
        return None
    if loss is cross_entropy and floating:
        return "probabilities"
    if not of_kind(loss, REGRESSION) and bool(((targets == 0) | (targets == 1)).all()):
        return "labels" if targets.dim() < 3 else "masks"
    return "numbers"


def natural(task: LearningTask, loss: Loss) -> list[str]:
    """Return the name of the metric that suits a task and a loss; none where no built-in one fits."""
    if task.kind is None:
        return []
    if loss is dice and task.kind in ("pixels", "masks"):
        return ["dice"]
    if task.kind == "numbers":
        return ["mae" if of_kind(loss, ABSOLUTE) else "mse"]
    return ["perplexity" if task.kind == "probabilities" else "accuracy"]


Average = Literal["clients", "samples"]
_TAKEN = ClientSummary.__annotations__.keys() - {"accuracy"}  # what clients.json has beside metrics


@checked_class("class")
@dataclass(frozen=True)
class Metric:
    """A number of any set of samples, made of statistics of every sample."""

    name: str
    each: f.Each  # (outputs, targets) of a batch -> [B, k] floating, written for one client
    value: f.Value  # [N, k] float64 -> one number; NaN where it is not defined
    higher_is_better: bool = True
    average: Average = "clients"  # over clients: each counts alike, or as much as it has samples
    percent: bool = False  # whether it is shown in %
    additive: bool = False  # whether the value depends on the sums alone; then it takes stacked [..., N, k], too

    @property
    def info(self) -> MetricInfo:
        """What config.json tells of it."""
        return {
            "name": self.name,
            "column": self.name.rpartition(":")[2].replace("-", "_"),
            "higher_is_better": self.higher_is_better,
            "average": self.average,
            "percent": self.percent,
        }


@dataclass(frozen=True)
class OwnMetric:
    """A function of one's own of all outputs and targets of a client, and what it says of itself."""

    function: Callable[[Tensor, Tensor], Any]
    name: str
    higher_is_better: bool
    average: Average

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        """Return the number of some outputs and targets."""
        return self.function(outputs, targets)

    def on(self, task: LearningTask) -> Metric:
        """Return the metric: all outputs and targets are kept."""
        split = task.outputs.numel()

        def each(outputs: Tensor, targets: Tensor) -> Tensor:
            return torch.cat([v.reshape(len(v), -1).to(task.dtype) for v in (outputs, targets)], 1)

        def value(statistics: Tensor) -> Tensor:
            outputs = statistics[:, :split].reshape(-1, *task.outputs).to(task.dtype)
            targets = statistics[:, split:].reshape(-1, *task.targets)
            whole = task.kind in ("classes", "tokens", "pixels")
            given = outputs, targets.to(torch.int64 if whole else task.dtype)
            with noted(f"It happened in the metric {self.name}, on {len(outputs)} samples."):
                return _one_number(self.name, self.function(*given))

        return Metric(self.name, each, value, self.higher_is_better, self.average)


def _one_number(name: str, found: Any) -> Tensor:
    """Return what a function of one's own returns; refuse what is no number."""
    try:
        number = torch.as_tensor(found, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the metric {name} returns a {type(found).__name__}: return one number, or NaN") from error
    if number.numel() != 1:
        raise UserError(f"the metric {name} returns {tuple(number.shape)} numbers: return one, such as their mean")
    return number.reshape(())


@checked("function", own=["function"])
def metric(
    function: Callable[[Tensor, Tensor], Any],
    name: str | None = None,
    *,
    higher_is_better: bool = True,
    average: Average = "clients",
) -> OwnMetric:
    """Make a metric of a function of all outputs and targets of a client, which returns one number, or NaN.

    Args:
        function: function(outputs, targets): tensors on the CPU with all samples of a client, or of all clients.
        name: As columns have it; the function's own unless it is given.
        higher_is_better: Which of two values is the better one.
        average: "clients": each counts alike in a mean; "samples": as much as it has test samples.
    """
    try:
        inspect.signature(function).bind("outputs", "targets")
    except TypeError as error:
        raise UserError(f"the metric {function} does not take (outputs, targets): give a function of both") from error
    except ValueError:
        pass  # functions written in C may have no signature
    found = str(name or getattr(function, "__name__", type(function).__name__))
    if not found.replace("-", "_").isidentifier() or found in _TAKEN:
        raise UserError(f"{found!r} is no name for a metric: give one, as in coterie.measure.metric(function, 'error')")

    return OwnMetric(function, found, higher_is_better, average)


Formula = tuple[f.Each, f.Value]


class Family(NamedTuple):
    """A built-in metric, for all tasks that it knows."""

    formulas: Mapping[TargetKind, Formula]
    higher_is_better: bool = True
    percent: bool = False
    additive: bool = False

    def on(self, name: str, task: LearningTask) -> Metric:
        """Return the metric of that name; refuse a task that it does not fit."""
        if task.kind is None or task.kind not in self.formulas:
            fit = " or ".join(KINDS[kind] for kind in self.formulas)
            others = [other for other, family in BUILT_IN.items() if task.kind in family.formulas]
            instead = f"choose {' or '.join(others)}" if others else "give a function of (outputs, targets)"
            raise UserError(f"the metric {name} is for {fit}, and the targets are {KINDS[task.kind]}: {instead}")
        each, value = self.formulas[task.kind]
        return Metric(name, each, value, self.higher_is_better, percent=self.percent, additive=self.additive)


_PLACES: tuple[TargetKind, ...] = ("classes", "tokens", "pixels")


def _overlap(value: f.Value) -> dict[TargetKind, Formula]:
    return {"pixels": (f.overlapping_classes, value), "masks": (f.overlapping_masks, value)}


def _scores(value: f.Value) -> dict[TargetKind, Formula]:
    return {"classes": (f.scored_classes, value), "labels": (f.scored_labels, value)}


_LABELS: tuple[TargetKind, ...] = ("labels", "masks")
_RIGHT: dict[TargetKind, Formula] = {
    **dict.fromkeys(_PLACES, (f.right_classes, f.ratio)),
    **dict.fromkeys(_LABELS, (f.right_labels, f.ratio)),
}
_F1: dict[TargetKind, Formula] = {
    **dict.fromkeys(_PLACES, (f.answers, f.mean_f1)),
    "labels": (f.scored_labels, f.label_f1),
}
_SURPRISE: dict[TargetKind, Formula] = {
    **dict.fromkeys(_PLACES, (f.cross_entropies, f.exp_ratio)),
    "probabilities": (f.cross_entropies, f.exp_ratio),
}
BUILT_IN: dict[str, Family] = {
    "accuracy": Family(_RIGHT, percent=True, additive=True),
    "balanced-accuracy": Family(dict.fromkeys(_PLACES, (f.answers, f.mean_recall)), percent=True),
    "macro-f1": Family(_F1),
    "auroc": Family(_scores(f.area)),
    "average-precision": Family(_scores(f.precision)),
    "mse": Family({"numbers": (f.squared_errors, f.ratio)}, higher_is_better=False, additive=True),
    "mae": Family({"numbers": (f.absolute_errors, f.ratio)}, higher_is_better=False, additive=True),
    "r2": Family({"numbers": (f.paired_numbers, f.determination)}),
    "perplexity": Family(_SURPRISE, higher_is_better=False, additive=True),
    "dice": Family(_overlap(f.dice), additive=True),
    "iou": Family(_overlap(f.iou), additive=True),
}

MetricLike = str | Metric | OwnMetric | Callable[[Tensor, Tensor], Any]


def resolve(given: MetricLike, task: LearningTask) -> Metric:
    """Return the metric that is meant, for this task."""
    if isinstance(given, Metric):
        return given
    if isinstance(given, str) and is_own(given):
        found = import_function(given, "metric")
        return replace(found if isinstance(found, OwnMetric) else metric(found), name=given).on(task)
    if isinstance(given, str):
        given = spelled(given, BUILT_IN)
        if given not in BUILT_IN:
            known = ", ".join(BUILT_IN)
            raise UserError(f"there is no metric {given!r}: choose {known}, or module:function of your own")
        return BUILT_IN[given].on(given, task)
    return (given if isinstance(given, OwnMetric) else metric(given)).on(task)


@dataclass(frozen=True)
class Metrics:
    """The metrics of a run, measured together in one pass; the first one decides."""

    each: tuple[Metric, ...]
    task: LearningTask
    widths: tuple[int, ...]  # numbers that each keeps of a sample
    width: int  # numbers that all of them keep
    infos: tuple[MetricInfo, ...] = field(hash=False)  # what is told of each
    silent: bool = field(default=False, compare=False)  # whether all values are NaN, as while an engine rehearses

    @classmethod
    def of(cls, given: Sequence[MetricLike], task: LearningTask, outputs: Tensor, targets: Tensor) -> "Metrics":
        """Return metrics for a task, tried on the first samples."""
        if given and not isinstance(outputs, Tensor):
            kind = type(outputs).__name__
            raise UserError(f"the model answers with a {kind}, and metrics take a tensor: let the model return one")
        found = tuple(resolve(one, task) for one in given)
        names = [m.info["column"] for m in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"the metric {twice} is given twice: leave one out, or give it another name")
        kept = [m.each(outputs.to(task.dtype), targets) for m in found]
        for m, statistics in zip(found, kept, strict=True):
            if statistics.dim() != 2 or len(statistics) != len(targets):
                shape = tuple(statistics.shape)
                raise UserError(
                    f"each of the metric {m.name} returns {shape} for {len(targets)} samples: return [B, k]"
                )
        widths = tuple(v.shape[1] for v in kept)
        return cls(found, task, widths, sum(widths), tuple(m.info for m in found))

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return [B, width] what is kept of the samples of a batch."""
        answered = outputs.to(self.task.dtype)
        return torch.cat([m.each(answered, targets).to(self.task.dtype) for m in self.each], 1)

    def value(self, statistics: Tensor) -> Tensor:
        """Return [metrics] the values of one set of samples, of [N, width]."""
        return self.values(statistics, np.array([len(statistics)]))[0]

    def values(self, statistics: Tensor, sizes: Integers) -> Tensor:
        """Return [m, metrics] the values of sets of so many samples, whose statistics lie one after another."""
        if self.silent:
            return torch.full((len(sizes), len(self.each)), torch.nan, dtype=torch.float64)
        exact, columns = statistics.to(torch.float64), []
        owner = torch.from_numpy(np.arange(len(sizes)).repeat(sizes))
        for m, kept in zip(self.each, torch.split(exact, list(self.widths), 1), strict=True):
            if m.additive:
                sums = torch.zeros(len(sizes), kept.shape[1], dtype=torch.float64).index_add_(0, owner, kept)
                columns.append(m.value(sums[:, None]))
            else:
                own = (m.value(part) if len(part) else torch.nan for part in torch.split(kept, sizes.tolist()))
                columns.append(torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in own]))
        return torch.stack(columns, 1)
