"""One row per round, of what the shards measure, and the summary of a run. Metrics name their protocol."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.annotations import LARGEST
from ..core.schema import (
    FINETUNED,
    TRAIN_AFTER_MIX,
    TRAIN_AFTER_TRAIN,
    VALIDATION,
    Config,
    MetricInfo,
    MetricSummary,
    Row,
    SelectionSummary,
    Summary,
    global_column,
    number,
    personal_column,
)
from ..core.tensors import Integers, Tensors
from ..core.units import metrics_of
from ..data import Federation
from .evaluate import CommonModel
from .metric import Metrics
from .selection import LAST, reported, rule_of

PROTOCOLS = ("after_mix", "after_train")
TARGETS = (50, 60, 70, 80, 90, 95)  # %

Columns = dict[str, float | None]
"""Some columns of a row."""


class Costs(NamedTuple):
    """What a round took, of one shard or one member. A row has the sums, and of ``MOST`` the largest."""

    bytes_sent: int = 0
    parameters_sent: int = 0
    messages_sent: int = 0
    busiest_bytes_up: int = 0  # of the node that sends most
    busiest_bytes_down: int = 0
    flops: int = 0
    forward_flops: int = 0  # of one sample's forward pass, over the cohort
    seconds: float = 0.0
    evaluation_seconds: float = 0.0


MOST = ("busiest_bytes_up", "busiest_bytes_down", "seconds", "evaluation_seconds")


class ShardMeasures(NamedTuple):
    """What the clients of one shard did in a round, and what is measured of them."""

    local_clients: Integers  # whose shard it is
    cohort: Integers  # who of them took part
    loss: Tensor  # [m] of the cohort
    steps: Tensor  # [m]
    costs: Costs  # the messages of all shards are counted by one of them
    distance: float | None  # to the consensus, the mean over the local clients
    values: Tensors | None  # [m, metrics] of all local clients, by protocol
    common: CommonModel | None  # the one that all agree on
    recorded: dict[str, float]


class RoundValues(NamedTuple):
    """What a round has measured of some clients."""

    values: Mapping[str, Tensor | None]  # [n, metrics] by protocol; None: not in this round
    sizes: Mapping[str, Integers]  # [n] how many samples each client has, by protocol
    common: Sequence[tuple[float | None, float | None]] | None = None
    """Each metric of the one model that all agree on: on all samples, and the mean over the clients; None: no model."""


def row_of(
    t: int,
    metrics: Sequence[MetricInfo],
    measured: RoundValues,
    costs: Sequence[Costs],
    *,
    loss: float | None,
    distance: float | None = None,
    recorded: Mapping[str, float] = MappingProxyType({}),
) -> Row:
    """Return the row of round ``t``, counted from 0: of all clients of a simulation, of one member, or of several.

    ``costs``: of every shard or member. ``loss``: the mean training loss. ``distance``: to the consensus.
    """
    columns: Columns = {}
    for i, metric in enumerate(metrics):
        for protocol, each in measured.values.items():
            columns |= metric_row(metric, protocol, None if each is None else each[:, i], measured.sizes[protocol])
        name = global_column(metric)
        columns[name], columns[f"{name}_local"] = (None, None) if measured.common is None else measured.common[i]
    spent = zip(Costs._fields, zip(*costs, strict=True), strict=True)
    row: Any = {  # columns that depend on the protocol and on what is recorded, among those of a Row
        "round": t + 1,
        **columns,
        "train_loss": loss,
        "consensus_distance": None if distance is None else finite(distance),
        **{k: finite(v) for k, v in recorded.items()},
        **{k: max(each) if k in MOST else sum(each) for k, each in spent},
    }
    return row  # type: ignore[no-any-return]


def metric_row(metric: MetricInfo, protocol: str, values: Tensor | None, sizes: Integers) -> Columns:
    """Return mean, spread, worst client and the bound of the worst tenth, over the clients that have a value.

    The weighted mean counts each as much as it has samples. ``sizes``: how many each client has. Who has some and no
    value is counted, where there are any.
    """
    name = personal_column(metric, protocol)
    known = None if values is None else values[~values.isnan()]
    if values is None or known is None or not len(known):
        found = dict.fromkeys(name + end for end in ("", "_std", "_worst", "_p10", "_weighted"))
    else:
        mean, std = known.mean(), known.std(correction=0)
        weights = sizes[~values.isnan().numpy()]
        share = torch.from_numpy(weights / weights.sum())
        weighted = share @ known
        if metric["average"] == "samples":
            mean, std = weighted, (share @ (known - weighted).square()).sqrt()
        higher = metric["higher_is_better"]
        found = {
            name: finite(mean),
            f"{name}_std": finite(std),
            f"{name}_worst": finite(known.min() if higher else known.max()),
            f"{name}_p10": finite(torch.quantile(known, 0.1 if higher else 0.9)),
            f"{name}_weighted": finite(weighted),
        }
    undefined = 0 if values is None else int((values.isnan() & torch.from_numpy(sizes > 0)).sum())
    return found | ({f"{name}_undefined": undefined} if undefined else {})


def finite(value: Tensor | float) -> float | None:
    """Return a number as a file holds it; None for what is not defined or beyond all of them.

    >>> finite(LARGEST), finite(float("inf"))
    (3e+38, None)
    """
    return float(value) if abs(float(value)) <= LARGEST else None


def unmeasured(finetuned: bool, validated: bool) -> dict[str, None]:
    """Return the values of a round without evaluation, by protocol."""
    return dict.fromkeys((*PROTOCOLS, *([FINETUNED] if finetuned else []), *([VALIDATION] if validated else [])))


def joined(
    parts: Sequence[ShardMeasures], t: int, metrics: Metrics, federation: Federation, finetuned: bool
) -> tuple[Tensors | None, Row]:
    """Return every client's values [n, metrics] by protocol, and the row of round ``t``, from what all shards measure.

    ``finetuned``: whether clients fine-tune for the measurement.
    """
    first, clients = parts[0], [len(p.local_clients) for p in parts]
    distance, values, common = first.distance, None, None
    if distance is not None and len(parts) > 1:
        distance = sum((p.distance or 0.0) * n for p, n in zip(parts, clients, strict=True)) / sum(clients)
    unknown = unmeasured(finetuned, bool(federation.validation)) if first.values is None else {}
    owned = dict.fromkeys(first.values or unknown, federation.test) | {VALIDATION: federation.validation}
    owned |= dict.fromkeys((TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN), federation.train)
    sizes = {protocol: np.array([len(own) for own in each], np.int64) for protocol, each in owned.items()}
    if first.values is not None:
        values = {k: whole([(p.local_clients, (p.values or {})[k]) for p in parts]) for k in first.values}
        models = [(p.local_clients, p.common) for p in parts if p.common is not None]
        each = whole([(clients, one.each) for clients, one in models])
        places = torch.cat([one.places for _, one in models]).argsort().numpy()
        together = metrics.value(torch.from_numpy(torch.cat([one.statistics for _, one in models]).numpy()[places]))
        local = (metric_row(m, "", each[:, i], sizes["after_mix"]) for i, m in enumerate(metrics.infos))
        common = [(finite(v), next(iter(columns.values()))) for v, columns in zip(together, local, strict=True)]
    loss, steps = (torch.cat([getattr(p, name) for p in parts]) for name in ("loss", "steps"))
    order = torch.from_numpy(np.argsort(np.concatenate([p.cohort for p in parts])))
    known, further = loss[order][steps[order] > 0], {k: v for p in parts for k, v in p.recorded.items()}
    mean, costs = float(known.mean()) if len(known) else None, [p.costs for p in parts]
    told = RoundValues(unknown if values is None else values, sizes, common)
    return values, row_of(t, metrics.infos, told, costs, loss=mean, distance=distance, recorded=further)


def client_columns(values: Tensors, metrics: Sequence[MetricInfo]) -> dict[str, dict[str, list[float | None]]]:
    """Return every client's metrics by protocol, as clients.json and rows have them."""
    return {
        m["column"]: {protocol: [finite(value) for value in each[:, i]] for protocol, each in values.items()}
        for i, m in enumerate(metrics)
    }


def whole(parts: Sequence[tuple[Integers, Tensor]]) -> Tensor:
    """Put together what the clients of all shards have: [n, ...] in the order of the clients."""
    order = np.argsort(np.concatenate([clients for clients, _ in parts]))
    return torch.cat([values for _, values in parts])[torch.from_numpy(order)]


def summarize(config: Config, history: Sequence[Row], apart: Columns | None = None) -> Summary:
    """Return what a run comes to: its metrics by protocol, totals of what it sent and spent.

    ``apart``: the columns of the clients' models where each client has those of a round of its own.
    """
    metrics, row = metrics_of(config), reported(config, history)
    chosen: Any = {**(row or {}), **(apart or {})}
    found: Any = {  # with keys that have the names of metrics, among those of a Summary
        "method": config["method"],
        "rounds": len(history),
        "seed": config["seed"],
        "engine": config["engine"],
        **{k: v for m in metrics for k, v in _metric(history, m, chosen).items()},
        "train_loss": history[-1]["train_loss"] if history else None,
        "consensus_distance": history[-1]["consensus_distance"] if history else None,
        "bytes_sent": sum(row["bytes_sent"] for row in history),
        "parameters_sent": sum(row["parameters_sent"] for row in history),
        "flops": sum(row["flops"] for row in history),
        "seconds": sum(row["seconds"] for row in history),
        "busiest_bytes_up": max((row["busiest_bytes_up"] for row in history), default=0),
        "busiest_bytes_down": max((row["busiest_bytes_down"] for row in history), default=0),
        "rounds_to": {str(t): rounds_to(history, m, t / 100) for m in metrics[:1] if m["percent"] for t in TARGETS},
    }
    if rule_of(config) != LAST:
        found["selection"] = _selection(config, history, row, apart)
    summary: Summary = found
    return summary


def _selection(config: Config, history: Sequence[Row], row: Row | None, apart: Columns | None) -> SelectionSummary:
    """Say how the models were chosen that a run ends with, and in which round."""
    if apart is not None:
        return {"rule": rule_of(config), "round": None, "row": apart}
    return {"rule": rule_of(config), "round": len(history) if row is None else row["round"]}


def _metric(history: Sequence[Row], metric: MetricInfo, chosen: Row) -> dict[str, Any]:
    """Return one metric of a summary: of the clients' own models by protocol, and of the one they agree on."""
    further = (FINETUNED, VALIDATION, TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN)
    more = [p for p in further if any(personal_column(metric, p) in row for row in history)]
    return {
        f"personal_{metric['column']}": {p: _over_rounds(history, metric, p, chosen) for p in (*PROTOCOLS, *more)},
        **{k: _told(history, k, chosen) for k in (global_column(metric), f"{global_column(metric)}_local")},
    }


def _told(history: Sequence[Row], name: str, chosen: Row) -> float | None:
    """Return a number of the chosen round, or of the last one that has it."""
    rows = (chosen, *reversed(history))
    return next((v for row in rows if (v := number(row, name)) is not None), None)


def _over_rounds(rows: Sequence[Row], metric: MetricInfo, protocol: str, chosen: Row) -> MetricSummary | None:
    """Return a personal metric over the evaluated rounds; None where no client has a value."""
    name = personal_column(metric, protocol)
    final, worst, std = (_told(rows, k, chosen) for k in (name, f"{name}_worst", f"{name}_std"))
    if final is None or worst is None or std is None:
        return None
    means = [v for row in rows if (v := number(row, name)) is not None]
    last = means[-max(1, round(len(means) / 10)) :]
    found: MetricSummary = {
        "final": final,
        "best": max(means) if metric["higher_is_better"] else min(means),
        "last_tenth": sum(last) / len(last),
        "worst": worst,
        "std": std,
    }
    if (weighted := _told(rows, f"{name}_weighted", chosen)) is not None:
        found["weighted"] = weighted
    evaluated = next(row for row in (chosen, *reversed(rows)) if number(row, name) is not None)
    if undefined := number(evaluated, f"{name}_undefined"):
        found["undefined"] = int(undefined)
    return found


def rounds_to(rows: Sequence[Row], metric: MetricInfo, target: float) -> int | None:
    """Return the first measured round whose mean metric after aggregation reaches the target, or falls to it."""
    sign = 1 if metric["higher_is_better"] else -1
    known = ((row["round"], number(row, personal_column(metric, "after_mix"))) for row in rows)
    return next((t for t, value in known if value is not None and sign * value >= sign * target), None)
