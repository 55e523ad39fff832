"""Which members of a federation took part in which rounds: a timeline, their numbers one by one, and a table."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ..core.schema import MetricInfo, Row, personal_column
from ..core.spec import scaled
from ..core.units import digits, metrics_of, unit, words
from ..measure.compare import Cell
from ..store.folder import LOG
from .charts import (
    COLORS,
    INK,
    LOSS,
    MARKED,
    Chart,
    Figure,
    Measure,
    axis,
    faint,
    line,
    line_style,
    metric_measures,
    titled,
)
from .groups import Setup, thin
from .record import Record
from .tables import cell, head


@dataclass(frozen=True)
class MemberLog:
    """The rounds of one member, counted from 1; those of which the log was deleted are in none of it."""

    missed: dict[int, tuple[str, ...]] = field(default_factory=dict)  # whom a round went on without; (): nobody
    mass: dict[int, float] = field(default_factory=dict)  # after a round
    begun: list[int] = field(default_factory=list)  # the rounds that a process of it began with


def read_log(folder: Path | None) -> MemberLog:
    """Return what the logs in a folder tell; lines that are no events of rounds are passed over."""
    found = MemberLog()
    for event in () if folder is None else _events(folder):
        match event:
            case {"event": "begins", "round": int(round)}:
                found.begun.append(round)
            case {"event": "round", "round": int(round), "missed": [*names]}:
                found.missed[round] = tuple(map(str, names))
                if isinstance(event.get("mass"), float):
                    found.mass[round] = event["mass"]
    return found


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """Return all lines that are whole, the oldest first."""
    for path in (*sorted(folder.glob(f"{LOG}.[0-9]"), reverse=True), folder / LOG):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has just been renamed, or nobody may read it: the page does without
            continue
        for written in text.splitlines():
            try:
                event = json.loads(written)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


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


class RoundSpan(NamedTuple):
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

    def round_spans(self) -> list[RoundSpan]:
        """Return all its rounds, as few spans as possible."""
        left_out = set(self.left_out)

        def of(round: int) -> tuple[str, tuple[str, ...]]:
            missing = self.log.missed.get(round)
            if round in left_out:
                return LEFT_OUT, ()
            return (UNTOLD, ()) if missing is None else (WITHOUT if missing else TOGETHER, missing)

        groups = [(key, list(rounds)) for key, rounds in groupby(range(1, len(self.record.history) + 1), key=of)]
        return [RoundSpan(rounds[0], rounds[-1], *key) for key, rounds in groups]


def attendances(setup: Setup) -> list[Attendance]:
    """Return the members whose folders make a set-up; none where it is no federation's."""
    parts = [part for m in setup.methods for run in m.runs for part in run.parts if "peer" in part.config]
    return [Attendance(part.config["peer"]["name"], part, read_log(part.folder)) for part in parts]


def timeline(members: Sequence[Attendance]) -> Chart:
    """Draw a bar per member along the rounds."""
    round_spans = [(member.name, span) for member in members for span in member.round_spans()]
    traces = [_bars(kind, [each for each in round_spans if each[1].kind == kind]) for kind in BARS]
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


def _bars(kind: str, round_spans: Sequence[tuple[str, RoundSpan]]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [name for name, _ in round_spans],
        "base": [span.first - 0.5 for _, span in round_spans],
        "x": [span.last - span.first + 1 for _, span in round_spans],
        "customdata": [_told(name, span) for name, span in round_spans],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": BARS[kind],
    }


def _told(name: str, span: RoundSpan) -> str:
    """Say what a bar is.

    >>> _told("aachen", RoundSpan(5, 8, WITHOUT, ("bergen", "elche")))
    '<b>aachen</b><br>rounds 5 to 8: without bergen, elche'
    """
    what = f"without {', '.join(span.missing)}" if span.missing else span.kind
    return f"<b>{name}</b><br>round{'s' if span.last > span.first else ''} {spans([span[:2]])}: {what}"


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


FEW = 3  # ranges of rounds, or names, that a cell has room for
HIGH, LOW = "best-high", "best-low"
ABSENT = Cell(None, "-")


class MemberColumn(NamedTuple):
    """A column of the table; ``of``: what it says of a member by name, and by its rounds where its folder is here."""

    title: str
    below: str
    kind: str
    of: Callable[[str, Attendance | None], Cell]


def members_table(members: Sequence[Attendance]) -> str:
    """Return a row per member, of those as well whose folders are not here."""
    columns, here = list(_columns(members)), {member.name: member for member in members}
    heads = "".join(head(column.title, column.below, column.kind) for column in columns)
    rows = "".join(_row(name, here.get(name), columns) for name in members[0].record.config["peer"]["members"])
    return f"""<section class="members"><h3>Members</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Members of the federation">
<table class="sortable"><thead><tr>{head("member", "", "text")}{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>
<p class="caption">Each member's own numbers, as the folders here tell them. In means over all members, one that was
away counts with its latest model. <span class="said" aria-live="polite"></span></p></section>"""


def _row(name: str, member: Attendance | None, columns: Sequence[MemberColumn]) -> str:
    absent = "" if member else "<small>its folder is not here</small>"
    cells = "".join(cell(column.of(name, member)) for column in columns)
    return f'<tr><th scope="row">{escape(name)}{absent}</th>{cells}</tr>'


def _columns(members: Sequence[Attendance]) -> Iterator[MemberColumn]:
    """Return the columns; those of a metric and of push-sum's mass where there are such."""
    config = members[0].record.config
    yield MemberColumn("training samples", "", HIGH, _of_folder(_samples))
    for metric in metrics_of(config)[:1]:
        kind = HIGH if metric["higher_is_better"] else LOW
        title = titled(words(metric), unit(metric))
        yield MemberColumn(title, "after aggregation", kind, _of_folder(lambda m, metric=metric: _measured(m, metric)))  # type: ignore[misc]
    yield MemberColumn("rounds run", f"of {config['rounds']}", HIGH, _of_folder(lambda m: _count(len(m.run))))
    yield MemberColumn("rounds left out", "run by the others", LOW, _of_folder(_left_out))
    yield MemberColumn("rounds without a neighbor", "who was not heard", LOW, _of_folder(_without))
    yield MemberColumn("missed by others", "rounds without it", LOW, lambda name, _: _missed(name, members))
    yield MemberColumn("started again", "", LOW, _of_folder(lambda m: _count(len(m.again))))
    yield MemberColumn("sent", "bytes", LOW, _of_folder(_sent))
    if any(member.log.mass for member in members):
        yield MemberColumn("mass", "after its last round", HIGH, _of_folder(_mass))


def _of_folder(told: Callable[[Attendance], Cell]) -> Callable[[str, Attendance | None], Cell]:
    return lambda name, member: ABSENT if member is None else told(member)


def _count(count: int, *parts: str) -> Cell:
    return Cell(count, f"{count:,}", parts=parts)


def _samples(member: Attendance) -> Cell:
    return _count(member.record.config["peer"]["train_samples"])


def _measured(member: Attendance, metric: MetricInfo) -> Cell:
    value = member.record.last(personal_column(metric, "after_mix"))
    return ABSENT if value is None else Cell(value, digits(metric, value))


def _left_out(member: Attendance) -> Cell:
    ranges = [(s.first, s.last) for s in member.round_spans() if s.kind == LEFT_OUT]
    told = [spans([each]) for each in ranges] if len(ranges) <= FEW else [f"{len(ranges)} times"]
    return _count(len(member.left_out), *told)


def _without(member: Attendance) -> Cell:
    """Return how many rounds lacked somebody, and whom; nothing without a log."""
    if not member.log.missed:
        return ABSENT
    return _count(sum(map(bool, member.log.missed.values())), *_named(member.without))


def _missed(name: str, members: Sequence[Attendance]) -> Cell:
    """Return how often others went on without a member, and who."""
    by = Counter({m.name: m.without[name] for m in members if m.without[name]})
    return _count(by.total(), *_named(by)) if any(m.log.missed for m in members if m.name != name) else ABSENT


def _named(counts: Counter[str]) -> list[str]:
    """Return whom it was most often."""
    most = [f"{name} {count:,}" for name, count in counts.most_common(FEW)]
    return [*most, *([f"{len(counts) - FEW} more"] if len(counts) > FEW else [])]


def _sent(member: Attendance) -> Cell:
    sent = sum(row["bytes_sent"] for row in member.record.history)
    return Cell(sent, scaled(sent, "B"))


def _mass(member: Attendance) -> Cell:
    if not member.log.mass:
        return ABSENT
    value = member.log.mass[max(member.log.mass)]
    return Cell(value, f"{value:.4g}")
