"""The table of a federation's members: how good each is, and what became of its rounds."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from ..core.schema import MetricInfo, personal_column
from ..core.spec import scaled
from ..core.units import digits, metrics_of, unit, words
from ..measure.compare import Cell
from .attendance import LEFT_OUT, Attendance, spans
from .charts import titled
from .tables import cell, head

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
    ranges = [(s.first, s.last) for s in member.stretches() if s.kind == LEFT_OUT]
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
