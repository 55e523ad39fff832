"""Which runs belong side by side: equal clients and models make a set-up, a method with several seeds one row."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..core.schema import Config, Row
from ..measure.compare import MethodRuns
from .collect import Record

T = TypeVar("T")

POINTS = 120  # of a curve at most: more cannot be told apart, and pages stay small


class Curve(NamedTuple):
    """A number over the rounds: the mean over the seeds, and the least and greatest of them."""

    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    bytes: list[float]  # sent until then, mean over the seeds


@dataclass(frozen=True, eq=False)
class Method(MethodRuns):
    """One method in one set-up, with the runs of all its seeds."""

    runs: Sequence[Record]

    @property
    def first(self) -> Record:
        """The run whose clients are drawn where one must be chosen."""
        return self.runs[0]

    @property
    def rounds(self) -> int:
        """How many rounds all its runs have finished."""
        return min(len(run.history) for run in self.runs)

    def curve(self, value: Callable[[Row], float | None]) -> Curve | None:
        """A number of every round in which all seeds have it, thinned out; None where there is no such round."""
        sent = [_running_total(run.history) for run in self.runs]
        known = [t for t in range(self.rounds) if all(value(run.history[t]) is not None for run in self.runs)]
        if not known:
            return None
        shown = thinned(known)
        columns = [[value(run.history[t]) or 0.0 for run in self.runs] for t in shown]
        return Curve(
            [t + 1 for t in shown],
            [_mean(column) for column in columns],
            [min(column) for column in columns],
            [max(column) for column in columns],
            [_mean([total[t] for total in sent]) for t in shown],
        )


@dataclass(frozen=True, eq=False)
class Setup:
    """The clients, their data and their model, and what was run on them."""

    title: str
    methods: Sequence[Method]

    @property
    def config(self) -> Config:
        """Of any of its runs: what they have in common is the set-up."""
        return self.methods[0].first.config

    @property
    def seeds(self) -> int:
        """How many seeds a method has at most."""
        return max(len(m.runs) for m in self.methods)


def setups(records: Sequence[Record]) -> list[Setup]:
    """The records by set-up and method, in the order in which they come."""
    found = []
    for same in grouped(records, lambda r: _key(_common(r))).values():
        methods = _methods(same)
        case = f"case {same[0].case}: " if same[0].case else ""
        found.append(Setup(case + _title(same[0].config), methods))
    return found


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    """Items with equal keys together."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def thinned(places: Sequence[int], most: int = POINTS) -> list[int]:
    """At most so many of them, evenly, with the first and the last.

    >>> thinned(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(places) <= most:
        return list(places)
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]


def _methods(records: Sequence[Record]) -> list[Method]:
    groups = list(grouped(records, lambda r: (r.name, _key(_own(r)))).values())
    apart = [part for group in groups for part in _repetitions(group)]
    labels = _labels([part[0] for part in apart])
    return [Method(label, sorted(part, key=lambda r: r.seed)) for label, part in zip(labels, apart, strict=True)]


def _repetitions(group: list[Record]) -> list[list[Record]]:
    """One seed twice is the same run repeated, not another seed: such runs stand apart."""
    seeds = [r.seed for r in group]
    return [group] if len(set(seeds)) == len(seeds) else [[r] for r in group]


def _labels(firsts: Sequence[Record]) -> list[str]:
    """The methods' names, with what tells those of the same name apart."""
    names = [r.name or str(r.config["method"]) for r in firsts]
    labels = []
    for name, record in zip(names, firsts, strict=True):
        namesakes = [_flat(_own(r)) for n, r in zip(names, firsts, strict=True) if n == name]
        mine = _flat(_own(record))
        differing = [k for k in mine if any(other.get(k) != mine[k] for other in namesakes)]
        told = ", ".join(f"{k}={_short(mine[k])}" for k in differing)
        alone = len(namesakes) == 1 or (told and namesakes.count(mine) == 1)
        where = "" if alone or record.folder is None else f"in {record.folder.name}"
        labels.append(" ".join(filter(None, (name, told, where))))
    return [_numbered(label, labels[:i].count(label)) for i, label in enumerate(labels)]


def _numbered(label: str, before: int) -> str:
    return f"{label} ({before + 1})" if before else label


def _common(record: Record) -> dict[str, Any]:
    """What makes two runs comparable: data, their division and the model, whatever the seed."""
    c = record.config
    unseeded = {k: {n: v for n, v in c[k].items() if n != "seed"} for k in ("data", "model")}
    own = None if "source" in c["data"] else c["fingerprints"]["data"]  # data without a name
    return {**unseeded, "case": record.case, "own": own, "transform": c.get("transform"), "loss": c.get("loss")}


def _own(record: Record) -> dict[str, Any]:
    """What makes two runs of one set-up the same but for the seed."""
    c = record.config
    around = {"rounds": c["rounds"], "first model": c.get("init", "common")}
    missing = {"drop_messages": c.get("drop_messages", 0.0), "offline": c.get("offline", 0.0)}
    return {"method": c["method"], **c["settings"], **around, **missing}


def _title(config: Config) -> str:
    """The set-up in words."""
    data, model = config["data"], config["model"]
    name = data.get("source", "data of its own")
    division = f", divided by {data['partition']}" if "partition" in data else ""
    return f"{name}, {data['clients']} clients{division}, model {model.get('name', model.get('module', '?'))}"


def _flat(value: Mapping[str, Any]) -> dict[str, str]:
    return {k: json.dumps(v, sort_keys=True) for k, v in value.items()}


def _short(text: str) -> str:
    return text.strip('"')


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _running_total(history: Sequence[Row]) -> list[float]:
    totals, total = [], 0.0
    for row in history:
        total += row["bytes_sent"]
        totals.append(total)
    return totals
