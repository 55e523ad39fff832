"""Which members of a federation took part in which rounds: a timeline, their numbers one by one, and a table."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from ..core.schema import Row
from ..core.units import metrics_of
from .charts import COLORS, INK, LOSS, MARKED, Chart, Figure, Measure, axis, faint, line, line_style, metric_measures
from .groups import Setup, thin
from .member_log import MemberLog, read_log
from .record import Record

ROW = 30  # pixels that a member takes
TOGETHER, WITHOUT, LEFT_OUT, UNTOLD = "with all neighbors", "without a neighbor", "left out", "not in the log any more"
BARS: Mapping[str, Mapping[str, Any]] = {
    TOGETHER: {"color": COLORS[5]},
    WITHOUT: {"color": COLORS[1], "pattern": {"shape": "/", "size": 6, "solidity": 0.15, "fillmode": "overlay"}},
    LEFT_OUT: {"color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 1}},
    UNTOLD: {"color": faint(INK)},
}
SPENT = (Measure("seconds per round", "seconds", unit="s"), Measure("bytes sent per round", "bytes_sent", unit="B"))
MASS = "mass"


class Stretch(NamedTuple):
    """Rounds in a row that went alike for a member."""

    first: int
    last: int
    kind: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Attendance:
    """One member whose folder is here, round by round."""

    name: str
    record: Record
    log: MemberLog

    @property
    def run(self) -> list[Row]:
        """The rounds that it took part in; those that it left out took no time."""
        return [row for row in self.record.history if row["seconds"]]

    @property
    def left_out(self) -> list[int]:
        """The rounds that others ran without it, counted from 1."""
        return [row["round"] for row in self.record.history if not row["seconds"]]

    @property
    def without(self) -> Counter[str]:
        """How many rounds went on without each of its neighbors."""
        return Counter(name for names in self.log.missed.values() for name in names)

    @property
    def again(self) -> list[int]:
        """The rounds that it ran first after its process was started again."""
        ran = [row["round"] for row in self.run]
        return [next((t for t in ran if t >= begun), begun) for begun in self.log.begun[1:]]

    def stretches(self) -> list[Stretch]:
        """Return all its rounds, as few stretches."""
        left_out = set(self.left_out)

        def of(round: int) -> tuple[str, tuple[str, ...]]:
            missing = self.log.missed.get(round)
            if round in left_out:
                return LEFT_OUT, ()
            return (UNTOLD, ()) if missing is None else (WITHOUT if missing else TOGETHER, missing)

        groups = [(key, list(rounds)) for key, rounds in groupby(range(1, len(self.record.history) + 1), key=of)]
        return [Stretch(rounds[0], rounds[-1], *key) for key, rounds in groups]


def attendances(setup: Setup) -> list[Attendance]:
    """Return the members whose folders make a set-up; none where it is no federation's."""
    parts = [part for m in setup.methods for run in m.runs for part in run.parts if "peer" in part.config]
    return [Attendance(part.config["peer"]["name"], part, read_log(part.folder)) for part in parts]


def timeline(members: Sequence[Attendance]) -> Chart:
    """Draw a bar per member along the rounds."""
    stretches = [(member.name, stretch) for member in members for stretch in member.stretches()]
    traces = [_bars(kind, [each for each in stretches if each[1].kind == kind]) for kind in BARS]
    traces.append(_beginnings(members))
    rounds = max(len(member.record.history) for member in members)
    along = {"type": "category", "ticksuffix": " ", "showgrid": False}
    layout = {
        "barmode": "overlay",
        "bargap": 0.35,
        "xaxis": _rounds(rounds, range=[0.5, rounds + 0.5]),
        "yaxis": {"categoryorder": "array", "categoryarray": [m.name for m in members][::-1], **along},
        "showlegend": True,
    }
    caption = (
        "A round goes without a neighbor whose message did not come until the deadline: its weight stays with the "
        "member, and its share of push-sum comes later. A round is left out where the others ran it while the member "
        "was away or too slow; it kept its model, and went on in their round. Point at a bar for its rounds and names."
    )
    figure = {"data": [trace for trace in traces if trace["y"]], "layout": layout}
    return Chart("attendance", "Who took part", caption, {"": figure}, height=150 + ROW * len(members))


def _bars(kind: str, stretches: Sequence[tuple[str, Stretch]]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [name for name, _ in stretches],
        "base": [stretch.first - 0.5 for _, stretch in stretches],
        "x": [stretch.last - stretch.first + 1 for _, stretch in stretches],
        "customdata": [_told(name, stretch) for name, stretch in stretches],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": BARS[kind],
    }


def _told(name: str, stretch: Stretch) -> str:
    """Say what a bar is.

    >>> _told("aachen", Stretch(5, 8, WITHOUT, ("bergen", "elche")))
    '<b>aachen</b><br>rounds 5 to 8: without bergen, elche'
    """
    what = f"without {', '.join(stretch.missing)}" if stretch.missing else stretch.kind
    return f"<b>{name}</b><br>round{'s' if stretch.last > stretch.first else ''} {spans([stretch[:2]])}: {what}"


def spans(ranges: Iterable[tuple[int, int]]) -> str:
    """Write ranges of rounds.

    >>> spans([(3, 3), (5, 8)])
    '3, 5 to 8'
    """
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges)


def _beginnings(members: Sequence[Attendance]) -> dict[str, Any]:
    """Mark where a member's process was started again."""
    found = [(member.name, round) for member in members for round in member.again]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "started again",
        "x": [round for _, round in found],
        "y": [name for name, _ in found],
        "marker": {"symbol": "triangle-right", "size": 11, "color": INK},
        "hovertemplate": "<b>%{y}</b><br>started again, and back in round %{x}<extra></extra>",
    }


def one_by_one(members: Sequence[Attendance]) -> Chart:
    """Draw a line per member: its metric, its loss, what its rounds took, and its mass; none where it was away."""
    metrics = metrics_of(members[0].record.config)
    measures = [*(metric_measures(metrics[0])[:2] if metrics else ()), LOSS, *SPENT]
    views = {m.title: _lines(members, m, [_values(member, m) for member in members]) for m in measures}
    views[MASS] = _lines(members, Measure(MASS, ""), [member.log.mass for member in members])
    told = (
        " Mass is how much a member's model counts in push-sum's averages: with what is on its way, all members' adds "
        "up to their number."
    )
    caption = f"One line per member, with gaps where it left out rounds.{told if views[MASS]['data'] else ''}"
    drawn = {title: figure for title, figure in views.items() if figure["data"]}
    return Chart("members", "Members over rounds", caption, drawn)


def _values(member: Attendance, measure: Measure) -> dict[int, float]:
    return {row["round"]: value for row in member.run if (value := measure(row)) is not None}


def _lines(members: Sequence[Attendance], measure: Measure, values: Sequence[Mapping[int, float]]) -> Figure:
    """Draw what each member has of a measure, by round."""
    unit = f" {measure.unit}" if measure.unit else ""
    shown = "%{y:.3~s}B" if measure.unit == "B" else f"%{{y:.4~g}}{unit}"
    hover = f"<b>%{{fullData.name}}</b><br>round %{{x}}: {shown}<extra></extra>"
    traces = []
    for place, (member, known) in enumerate(zip(members, values, strict=True)):
        if known:
            x = sorted({*thin(sorted(known)), *member.left_out})
            drawn = line(member.name, line_style(place), x, [known.get(t) for t in x], hovertemplate=hover)
            if len(x) > MARKED and member.left_out:  # between two gaps may be one round, which has no line
                drawn |= {"mode": "lines+markers", "marker": {"size": 3}}
            traces.append(drawn)
    prefixed = {"tickformat": "~s", "ticksuffix": "B"} if measure.unit == "B" else {}
    along = axis(measure.axis or measure.title, rangemode="tozero" if measure in SPENT else "normal", **prefixed)
    rounds = max(len(member.record.history) for member in members)
    return {"data": traces, "layout": {"xaxis": _rounds(rounds, rangemode="tozero"), "yaxis": along}}


def _rounds(count: int, **more: Any) -> dict[str, Any]:
    """Return the axis of the rounds, without half ones."""
    return axis("round", tickformat=",d", **({"dtick": 1} if count <= MARKED // 2 else {}), **more)
