"""Folders of several members of one federation, which ran as peers: together they are one run of as many clients."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import topology
from ..core.annotations import shown
from ..core.errors import UserError
from ..core.schema import FINETUNED, ClientSummary, Graph, MetricInfo, PeerOrigin, Row, number, personal_column
from ..core.spec import parse
from ..core.tensors import Integers
from ..core.units import metrics_of
from ..measure import PROTOCOLS, metric_row, summarize
from ..measure.paired import FEWEST
from ..measure.rows import Columns, Costs, RoundValues, finite, row_of
from ..measure.selection import LAST, PER_CLIENT, rule_of
from ..training.results import graph_of
from .record import Record

AGREED = ("method", "rounds", "seed", "model", "loss", "metrics", "init", "precision")  # the same at all members
EACH_ITS_OWN = ("engine", "engine_reason", "device", "machine")  # shown side by side

Parts = Mapping[str, Record]
"""The runs of some members by name, in the order of the members."""


def join_members(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Return the records, those of one federation's members as one, and sentences on who is missing.

    A finished run of one client that is no peer's, such as one of ``local``, belongs to the member who has these very
    samples: such runs are joined as well, so that each member's gain can be told.
    """
    groups: dict[str, list[tuple[Record, PeerOrigin]]] = {}
    found, notes = list(records), list[str]()
    for record in records:
        if (origin := _origin(record, records)) is not None:
            groups.setdefault(_key(record, origin), []).append((record, origin))
    for group in groups.values():
        parts, (first, origin) = _by_member(group), group[0]
        if "peer" in first.config:
            _check_one_federation([record for record, _ in group])
            notes += _sentences(parts, origin)
        elif len(parts) < len(group):  # repetitions, which stand apart
            continue
        found[found.index(first)] = _joined(parts, origin)
        found = [record for record in found if record not in parts.values()]
    return found, notes


def _origin(record: Record, records: Sequence[Record]) -> PeerOrigin | None:
    """Return whose run it is, by what it says or by its samples; None: no member's."""
    if "peer" in record.config:
        return record.config["peer"]
    if record.config["data"]["clients"] != 1 or not record.finished:
        return None
    peers = [r.config for r in records if "peer" in r.config]
    same = [c["peer"] for c in peers if c["fingerprints"]["data"] == record.config["fingerprints"]["data"]]
    return same[0] if len({origin["name"] for origin in same}) == 1 else None


def _key(record: Record, origin: PeerOrigin) -> str:
    """Return what records have in common that make one."""
    return json.dumps([origin["federation"], None if "peer" in record.config else _agreed(record)], sort_keys=True)


def _by_member(group: Sequence[tuple[Record, PeerOrigin]]) -> Parts:
    ordered = sorted(group, key=lambda each: each[1]["number"])
    return {origin["name"]: record for record, origin in ordered}


def _check_one_federation(runs: Sequence[Record]) -> None:
    """Refuse two folders of one member, and folders of federations that have no more than the name in common."""
    seen: dict[str, Record] = {}
    for run in runs:
        origin = run.config["peer"]
        first = seen.setdefault(origin["name"], run)
        if first is not run:
            raise UserError(
                f"{_where(first)} and {_where(run)} are both of {origin['name']} in the federation "
                f"{origin['federation']}: give one of them"
            )
        if apart := list(_differences(_agreed(runs[0]), _agreed(run))):
            raise UserError(
                f"{_where(runs[0])} and {_where(run)} have not trained together, though both name the federation "
                f"{origin['federation']} ({'; '.join(apart)}): give folders of one federation"
            )


def _where(record: Record) -> str:
    return f"the run of {record.config['peer']['name']}" if record.folder is None else str(record.folder)


def _agreed(record: Record) -> dict[str, Any]:
    """Return what must be the same at all members."""
    config: Mapping[str, Any] = record.config
    settings = {f"settings.{k}": v for k, v in config["settings"].items()}
    prepared = {f"transform.{k}": (config["transform"] or {}).get(k) for k in ("mean", "std")}
    first = {"first model": config["fingerprints"]["model"]}
    members = {"members": config["peer"]["members"]} if "peer" in config else {}
    return {k: config.get(k) for k in AGREED} | settings | prepared | first | members


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*one, *other)):
        if one.get(key) != other.get(key):
            yield f"{key}: {shown(one.get(key))} and {shown(other.get(key))}"


def _joined(parts: Parts, origin: PeerOrigin) -> Record:
    """Return one run of as many clients as there are parts."""
    runs = list(parts.values())
    config: Any = {k: v for k, v in runs[0].config.items() if k != "peer"}
    config |= {k: " and ".join(dict.fromkeys(str(run.config.get(k)) for run in runs)) for k in EACH_ITS_OWN}
    alone = {"member": origin["name"]} if len(runs) == 1 else {}
    config["data"] = {"clients": len(runs), "federation": origin["federation"], **alone}
    config["fingerprints"] = {**config["fingerprints"], "data": _fingerprint(runs)}
    history, latest = joined_rows(runs)
    apart = None
    if any(rule_of(run.config) != LAST for run in runs):  # each member has chosen by itself
        config["select"] = PER_CLIENT
        latest, apart = ends(runs, latest)
    return replace(
        runs[0],
        config=config,
        history=history,
        summary=summarize(config, history, apart),
        client_summary=joined_clients(parts, origin, latest),
        finished=all(run.finished for run in runs),
        folder=None,
        loaded=None,
        parts=tuple(runs),
    )


def _fingerprint(runs: Sequence[Record]) -> str:
    """Return a short hash of all members' samples."""
    each = [run.config["fingerprints"]["data"] for run in runs]
    return each[0] if len(each) == 1 else hashlib.blake2b(" ".join(each).encode(), digest_size=8).hexdigest()


def _sentences(parts: Parts, origin: PeerOrigin) -> Iterator[str]:
    """Say whose folders are missing, and who has not run all rounds."""
    missing = [name for name in origin["members"] if name not in parts]
    if missing:
        lacking = "folder of {} is" if len(missing) == 1 else "folders of {} are"
        yield (
            f"Federation {origin['federation']}: all numbers are those of {_listed(list(parts))}; the "
            f"{lacking.format(_listed(missing))} not here."
        )
    behind = {name: run for name, run in parts.items() if not run.finished}
    if behind:
        rounds = _listed([f"{name} has {len(run.history)} of {run.config['rounds']}" for name, run in behind.items()])
        yield f"Federation {origin['federation']}: of the rounds, {rounds}; a member counts with its latest model."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


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
        rows = [(i, run.history[t]) for i, run in enumerate(runs) if t < len(run.history)]
        new = {
            (m["column"], protocol, i): value
            for m in metrics
            for protocol in protocols
            for i, row in rows
            if (value := _value(row, personal_column(m, protocol))) is not None
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
    protocols = dict.fromkeys(protocol for _, protocol in latest)
    found: Latest = {
        (m["column"], p): [run.last(personal_column(m, p)) for run in runs] for m in metrics for p in protocols
    }
    columns: Columns = {}
    for protocol in protocols:
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
    whole, place = graph_of(graph, graph(0 if graph.fixed else t), t), {old: new for new, old in enumerate(present)}
    edges = [[place[j], place[i], w] for j, i, w in whole["edges"] or () if j in place and i in place]
    return {**whole, "messages": len(edges), "edges": edges}
