"""What members' runs say of their one client each, as one run says it of several: rows, and clients at the end."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch

from .. import topology
from ..core.errors import UserError
from ..core.schema import FINETUNED, ClientSummary, Graph, MetricInfo, PeerOrigin, Row, number, personal_column
from ..core.spec import parse
from ..core.units import metrics_of
from ..data.batches import Integers
from ..measure import PROTOCOLS, metric_row, unmeasured
from ..measure.paired import FEWEST
from ..measure.rows import Columns, finite
from ..training.client_summary import graph_of
from .record import Record

SUMS = ("bytes_sent", "parameters_sent", "messages_sent", "flops", "forward_flops")
MOST = ("busiest_bytes_up", "busiest_bytes_down", "seconds", "evaluation_seconds")

Latest = dict[tuple[str, str], list[float | None]]
"""By column and protocol, what each member's model had when it was last measured; NaN: undefined, None: never."""


def joined_rows(runs: Sequence[Record]) -> tuple[list[Row], Latest]:
    """Return the rows of all runs together, and what each had at the end.

    A member that was away in a round has kept its model, and counts with what that had when it was last measured.
    """
    metrics, sizes = metrics_of(runs[0].config), _samples(runs, "test_samples")
    tuned = any(personal_column(m, FINETUNED) in row for m in metrics for run in runs for row in run.history)
    protocols = (*PROTOCOLS, *([FINETUNED] if tuned else []))
    latest: Latest = {(m["column"], protocol): [None] * len(runs) for m in metrics for protocol in protocols}
    history: list[Row] = []
    for t in range(max(len(run.history) for run in runs)):
        each = [run.history[t] if t < len(run.history) else None for run in runs]
        found = unmeasured(metrics, tuned, validated=False)
        for m in metrics:
            for protocol in protocols:
                found |= _measured(m, protocol, each, latest[m["column"], protocol], sizes)
        row: Any = {"round": t + 1, **found, **_spent([row for row in each if row is not None])}
        history.append(row)
    return history, latest


def _measured(
    metric: MetricInfo, protocol: str, rows: Sequence[Row | None], latest: list[float | None], sizes: Integers
) -> Columns:
    """Note what a round has measured, and return its columns; none where it has measured nothing."""
    name = personal_column(metric, protocol)
    new = {i: value for i, row in enumerate(rows) if row is not None and (value := _value(row, name)) is not None}
    for i, value in new.items():
        latest[i] = value
    known = [i for i, value in enumerate(latest) if value is not None]
    values = torch.tensor([latest[i] for i in known], dtype=torch.float64)
    return metric_row(metric, protocol, values, sizes[known]) if new else {}


def ends(runs: Sequence[Record], latest: Latest) -> tuple[Latest, Columns]:
    """Return what the models have that the members end with, each by its own rule, and the columns of these models."""
    sizes, columns = _samples(runs, "test_samples"), Columns()
    found: Latest = {}
    for m in metrics_of(runs[0].config):
        for protocol in (protocol for column, protocol in latest if column == m["column"]):
            values = [run.last(personal_column(m, protocol)) for run in runs]
            found[m["column"], protocol] = values
            known = [i for i, value in enumerate(values) if value is not None]
            columns |= metric_row(
                m, protocol, torch.tensor([values[i] for i in known], dtype=torch.float64), sizes[known]
            )
    return found, columns


def _value(row: Row, name: str) -> float | None:
    """Return what a row of one client has measured; NaN: it is undefined, None: nothing."""
    return math.nan if number(row, f"{name}_undefined") else number(row, name)


def _spent(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a round took, of all members together or of the one that has most."""
    losses = [row["train_loss"] for row in rows if row["train_loss"] is not None]
    return {
        "train_loss": fmean(losses) if losses else None,
        "consensus_distance": None,  # nobody has all models
        **{key: sum(row[key] for row in rows) for key in SUMS},
        **{key: max(row[key] for row in rows) for key in MOST},
    }


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
        **{key: _together(each[key] for each in every) for key in lists if all(key in each for each in every)},
        "labels": _together(counts for counts in labels if counts) if alike else None,
        "graph": _graph(runs[0], origin, [origin["members"].index(name) for name in parts]),
    }
    if "resampled" in found:  # members with many test samples draw them less often
        shortest = min(map(len, found["resampled"]))
        found["resampled"] = [drawn[:shortest] for drawn in found["resampled"]]
    for (column, protocol), values in latest.items():
        found.setdefault(column, {})[protocol] = [None if value is None else finite(value) for value in values]
    return found  # type: ignore[no-any-return]


def _together(lists: Iterable[Sequence[Any]]) -> list[Any]:
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
    whole, place = graph_of(graph, graph(0 if graph.fixed else t), t), {old: new for new, old in enumerate(present)}
    edges = [[place[j], place[i], w] for j, i, w in whole["edges"] or () if j in place and i in place]
    return {**whole, "messages": len(edges), "edges": edges}
