"""Which runs belong side by side: equal clients and models make a set-up, a method with several seeds one row."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from ..core.schema import Config, Row
from ..core.units import metrics_of
from ..measure.compare import MethodRuns
from ..training.settings import options
from .record import Record
from .titles import setup_title

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
        """The number of rounds that all its runs have finished."""
        return min(len(run.history) for run in self.runs)

    def curve(self, value: Callable[[Row], float | None]) -> Curve | None:
        """Return a number of every round in which all seeds have it, thinned out; None where there is no such round."""
        columns: dict[int, list[float]] = {}  # by round: the number of every seed
        for t in range(self.rounds):
            column = [v for run in self.runs if (v := value(run.history[t])) is not None]
            if len(column) == len(self.runs):
                columns[t] = column
        if not columns:
            return None
        shown = thin(list(columns))
        sent = [list(accumulate(row["bytes_sent"] for row in run.history)) for run in self.runs]
        return Curve(
            [t + 1 for t in shown],
            [fmean(columns[t]) for t in shown],
            [min(columns[t]) for t in shown],
            [max(columns[t]) for t in shown],
            [fmean(total[t] for total in sent) for t in shown],
        )


@dataclass(frozen=True, eq=False)
class Setup:
    """The clients, their data and their model, and what was run on them."""

    title: str
    methods: Sequence[Method]

    @property
    def config(self) -> Config:
        """The configuration of one of its runs: what they have in common is the set-up."""
        return self.methods[0].first.config

    @property
    def seeds(self) -> int:
        """The largest number of seeds that a method has."""
        return max(len(m.runs) for m in self.methods)


def setups(records: Sequence[Record]) -> list[Setup]:
    """Return the records by set-up and method, in the order in which they come."""
    return [
        Setup((f"case {same[0].case}: " if same[0].case else "") + setup_title(same[0].config), _methods(same))
        for same in group_by(records, lambda r: _key(_common(r))).values()
    ]


def group_by(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    """Return items with equal keys together."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def thin(places: Sequence[int], most: int = POINTS) -> list[int]:
    """Return at most so many of the places, evenly spread, with the first and the last.

    >>> thin(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(places) <= most:
        return list(places)
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]


def _methods(records: Sequence[Record]) -> list[Method]:
    """Return the methods of one set-up; one seed twice is the same run repeated, and such runs stand apart."""
    parts: list[list[Record]] = []
    for group in group_by(records, lambda r: (_name(r), _key(_own(r)))).values():
        parts += [group] if len({r.seed for r in group}) == len(group) else [[r] for r in group]
    labels = _labels([part[0] for part in parts])
    return [Method(label, sorted(part, key=lambda r: r.seed)) for label, part in zip(labels, parts, strict=True)]


def _labels(firsts: Sequence[Record]) -> list[str]:
    """Return one label per method; equal ones are numbered."""
    namesakes = group_by(firsts, _name)
    labels = [_label(record, namesakes[_name(record)]) for record in firsts]
    before = [labels[:i].count(label) for i, label in enumerate(labels)]
    return [f"{label} ({n + 1})" if n else label for label, n in zip(labels, before, strict=True)]


def _name(record: Record) -> str:
    return record.name or str(record.config["method"])


def _label(record: Record, namesakes: Sequence[Record]) -> str:
    """Return a method's name with the settings that tell it from its namesakes, and its folder where none does."""
    mine, *every = (_own(r) for r in (record, *namesakes))
    settings = difference(mine, every)
    alone = len(every) == 1 or (settings and sum(_key(other) == _key(mine) for other in every) == 1)
    folder = "" if alone or record.folder is None else f"in {record.folder.name}"
    return " ".join(filter(None, (_name(record), settings, folder)))


def difference(mine: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """Return the settings in which one of several differs from any other.

    >>> difference({"lr": 0.1, "topology": "ring"}, [{"lr": 0.1, "topology": "ring"}, {"lr": 0.2, "topology": "ring"}])
    'lr=0.1'
    """
    different = [k for k in mine if any(_key(other.get(k)) != _key(mine[k]) for other in every)]
    return ", ".join(f"{k}={_key(mine[k]).strip(chr(34))}" for k in different)


def _common(record: Record) -> dict[str, Any]:
    """Return what makes two runs comparable: data, their division and the model, whatever the seed."""
    c = record.config
    unseeded = {k: {n: v for n, v in c[k].items() if n != "seed"} for k in ("data", "model")}
    own = None if "source" in c["data"] else c["fingerprints"]["data"]  # data without a name
    return {
        **unseeded,
        "case": record.case,
        "own": own,
        "transform": c.get("transform"),
        "loss": c.get("loss"),
        "metric": metrics_of(c)[:1],
    }


APART = ("seed", "device", "evaluate_every", "record")  # options that may differ between two runs of one set-up


def _own(record: Record) -> dict[str, Any]:
    """Return what makes two runs of one set-up the same but for the seed."""
    c = record.config
    kept = {f.name: c.get(f.name, f.default) for f in options("saved") if f.name not in APART}
    around = {"rounds": c["rounds"], "first model": kept.pop("init")}
    return {"method": c["method"], **c["settings"], **around, **kept}


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
