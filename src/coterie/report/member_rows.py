"""What members' runs say of their one client each, as one run says it of several: rows, and clients at the end."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import topology
from ..core.errors import UserError
from ..core.schema import FINETUNED, ClientSummary, MetricInfo, Row, number
from ..core.schema_parts import Graph, PeerOrigin
from ..core.spec import parse
from ..core.units import metrics_of
from ..data.batches import Integers
from ..measure import PROTOCOLS, metric_row
from ..measure.paired import FEWEST
from ..measure.rows import Columns, Costs, RoundValues, finite, row_of
from ..training.client_summary import graph_of
from .record import Record

Latest = dict[tuple[str, str], list[float | None]]
"""By column and protocol, what each member's model had when it was last measured; NaN: undefined, None: never."""


def joined_rows(runs: Sequence[Record]) -> tuple[list[Row], Latest]:
    """Return the rows of all runs together, and what each had at the end.

    A member that was away in a round has kept its model, and counts with what that had when it was last measured.
    """
    metrics, sizes = metrics_of(runs[0].config), _samples(runs, "test_samples")
    tuned = any(f"personal_{m['column']}_{FINETUNED}" in row for m in metrics for run in runs for row in run.history)
    protocols = (*PROTOCOLS, *([FINETUNED] if tuned else []))
    latest: Latest = {(m["column"], protocol): [None] * len(runs) for m in metrics for protocol in protocols}
    history: list[Row] = []
    for t in range(max(len(run.history) for run in runs)):
        rows = [(i, run.history[t]) for i, run in enumerate(runs) if t < len(run.history)]
        new = {
            (column, protocol, i): value
            for column, protocol in latest
            for i, row in rows
            if (value := _value(row, f"personal_{column}_{protocol}")) is not None
        }
        for (column, protocol, i), value in new.items():
            latest[column, protocol][i] = value
        fresh = {protocol for _, protocol, _ in new}
        told = {p: _together(metrics, p, latest, sizes) for p in protocols}
        values = {p: each if p in fresh else None for p, (each, _) in told.items()}
        known = {p: counted for p, (_, counted) in told.items()}
        losses = [row["train_loss"] for _, row in rows if row["train_loss"] is not None]
        costs = [Costs(*(row[k] for k in Costs._fields)) for _, row in rows]  # type: ignore[literal-required]
        loss = fmean(losses) if losses else None
        history.append(row_of(t, metrics, RoundValues(values, known), costs, loss=loss))
    return history, latest


def _together(metrics: Sequence[MetricInfo], protocol: str, latest: Latest, sizes: Integers) -> tuple[Tensor, Integers]:
    """Return [n, metrics] what members have, NaN for nothing, and their samples: none for who was never measured."""
    each = [latest[m["column"], protocol] for m in metrics]
    known = [any(values[i] is not None for values in each) for i in range(len(sizes))]
    numbers = [[math.nan if v is None else v for v in values] for values in each]
    together = torch.tensor(numbers, dtype=torch.float64).view(len(each), len(sizes)).T
    return together, np.where(known, sizes, 0)


def ends(runs: Sequence[Record], latest: Latest) -> tuple[Latest, Columns]:
    """Return what the models have that the members end with, each by its own rule, and the columns of these models."""
    sizes, metrics = _samples(runs, "test_samples"), metrics_of(runs[0].config)
    found: Latest = {key: [run.last(f"personal_{key[0]}_{key[1]}") for run in runs] for key in latest}
    columns: Columns = {}
    for protocol in {protocol: None for _, protocol in latest}:
        values, known = _together(metrics, protocol, found, sizes)
        for i, m in enumerate(metrics):
            columns |= metric_row(m, protocol, values[:, i], known)
    return found, columns


def _value(row: Row, name: str) -> float | None:
    """Return what a row of one client has measured; NaN: it is undefined, None: nothing."""
    return math.nan if number(row, f"{name}_undefined") else number(row, name)


def joined_clients(parts: Mapping[str, Record], origin: PeerOrigin, latest: Latest) -> ClientSummary:
    """Return what is known of all members; of those that have not finished less is."""
    runs = list(parts.values())
    every: list[Mapping[str, Any]] = [run.client_summary for run in runs]
    lists = ["parameters", "personal_parameters", "resampled", "rounds", *(["right"] if len(runs) < FEWEST else [])]
    labels = [summary.get("labels") for summary in every]
    alike = None not in labels and len({len(counts[0]) for counts in labels if counts}) == 1
    found: Any = {
        "round": max(len(run.history) for run in runs),
        "names": list(parts),
        **{key: _samples(runs, key).tolist() for key in ("train_samples", "test_samples")},
        **{key: _chained(each[key] for each in every) for key in lists if all(key in each for each in every)},
        "labels": _chained(counts for counts in labels if counts) if alike else None,
        "graph": _graph(runs[0], origin, [origin["members"].index(name) for name in parts]),
    }
    if "resampled" in found:  # members with many test samples draw them less often
        shortest = min(map(len, found["resampled"]))
        found["resampled"] = [drawn[:shortest] for drawn in found["resampled"]]
    for (column, protocol), values in latest.items():
        found.setdefault(column, {})[protocol] = [None if value is None else finite(value) for value in values]
    return found  # type: ignore[no-any-return]


def _chained(lists: Iterable[Sequence[Any]]) -> list[Any]:
    return [each for one in lists for each in one]


def _samples(runs: Sequence[Record], key: str) -> Integers:
    """Return how many samples each member has; who runs as a peer says so from the beginning."""
    told: list[Mapping[str, Any]] = [run.config.get("peer", {}) for run in runs]
    return np.array([of[key] if key in of else run.client_summary[key][0] for of, run in zip(told, runs, strict=True)])  # type: ignore[literal-required]


def _graph(run: Record, origin: PeerOrigin, present: Sequence[int]) -> Graph | None:
    """Return who was to hear whom among those whose folders are here, as the settings say it."""
    settings, t = run.config["settings"], len(run.history) - 1
    text = settings.get("topology") if "peer" in run.config else None
    if not isinstance(text, str) or parse(text).name not in topology.BUILDERS or settings.get("fresh_graph"):
        return None  # a report runs nobody's code; of several graphs per round none is the one
    try:
        graph = topology.build(text, len(origin["members"]), run.seed)
    except UserError:
        return None
    found, place = graph_of(graph, graph(0 if graph.fixed else t), t), {old: new for new, old in enumerate(present)}
    edges = [[place[j], place[i], w] for j, i, w in found["edges"] or () if j in place and i in place]
    return {**found, "messages": len(edges), "edges": edges}
