"""A comparison in sentences: first the answer and whether it is chance, above the table; then the rest, below it."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ...core.schema import FINETUNED, MetricInfo
from ...core.units import of_clients, unit, words, written
from ..paired import FEWEST, Numbers, against, fewest, said_p
from ..selection import BEST_TEST, OPTIMISTIC
from .columns import Cell, MethodRuns, personal_cell, sent, worst
from .gains import ALONE, Gains, gain_sentences, in_one_place
from .meanings import POINTS
from .sites import Pairs, how_tested, site_tests


class Lead(NamedTuple):
    """The best method against another, as a test tells it."""

    said: str  # for how many clients it is better, or for which
    p: str = ""  # of the test over clients; empty: every client has a test of its own
    clear: bool = False  # whether the best is better by more than chance


class Leads(NamedTuple):
    """The best method against all others."""

    best: str
    how: str  # which test it is, or why there is none
    against: Mapping[str, Lead]  # by the label of the other; {} without a test
    unable: str = ""  # why no result of this test could be clear


def leads(methods: Sequence[MethodRuns], pairs: Pairs, best: int) -> Leads:
    """Test the best method against every other; ``pairs``: the tests of few clients.

    Units are clients, each with its mean over the seeds. A seed draws data, first model and batches alike for all
    methods, so what seeds set apart cancels between the methods. Clients of one seed share what is trained, so that as
    many pairs of clients and seeds they would not be independent.
    """
    label = methods[best].label
    why = _untestable(methods)
    metric = methods[0].metric
    if why or metric is None:
        return Leads(label, why, {})
    values, seeds = _of_clients(methods, metric), len(methods[0].runs)
    anew = f"every seed deals the samples anew: a client here is {seeds} with the same number"
    anew = anew if methods[0].dealt_anew else ""
    if values.shape[1] >= FEWEST:
        gains = values if metric["higher_is_better"] else -values
        each = {methods[j].label: Lead(p.counts, said_p(p.p), p.clear) for j, p in against(best, gains).items()}
        return Leads(label, _how(methods, metric, values.shape[1], anew), each, _unable(len(methods), values.shape[1]))
    if sites := site_tests(methods, pairs, best):
        return Leads(label, how_tested(sites, seeds, anew), {one.other: Lead(one.said) for one in sites})
    return Leads(label, too_few(values.shape[1], metric), {})


def _untestable(methods: Sequence[MethodRuns]) -> str:
    """Say why runs cannot be tested against each other; empty: they can."""
    if not all(run.finished for m in methods for run in m.runs):
        return "A paired test over the clients needs finished runs: there is none yet."
    if len({tuple(run.seed for run in m.runs) for m in methods}) > 1:
        return "A paired test over the clients needs the same seeds for all methods: there is none here."
    return ""


def _unable(methods: int, clients: int) -> str:
    """Say that so few clients can tell nothing of so many methods; empty where they can."""
    needed = fewest(methods * (methods - 1) // 2)
    return f"no test of {methods} methods can tell, because that takes {needed} clients" if clients < needed else ""


def _how(methods: Sequence[MethodRuns], metric: MetricInfo, clients: int, anew: str) -> str:
    """Say what is tested, and how."""
    seeds, pairs = len(methods[0].runs), len(methods) * (len(methods) - 1) // 2
    tuned = any(m.end == FINETUNED for m in methods)
    ends = f"{POINTS[FINETUNED]} where a method does so, else {POINTS['after_mix']}" if tuned else POINTS["after_mix"]
    each = f", each client's mean over {seeds} seeds{f' ({anew})' if anew else ''}" if seeds > 1 else ""
    corrected = f", Holm-corrected for all {pairs} pairs of methods" if pairs > 1 else ""
    return f"Sign-flip test, two-sided{corrected}: personal {words(metric)} {ends} of {clients} clients{each}."


def too_few(clients: int, metric: MetricInfo) -> str:
    """Say why there is no test over the clients."""
    if clients == 0:
        return f"No client has a value of {words(metric)} with every method: no test can tell which method is better."
    number = "One client is" if clients == 1 else f"{clients} clients are"
    return f"{number} too few for a paired test that tells which method is better: {FEWEST} needed."


def _of_clients(methods: Sequence[MethodRuns], metric: MetricInfo) -> Numbers:
    """Return [methods, clients] the metric in the end, mean over seeds, of clients who have it everywhere."""
    each = [[of_clients(run.client_summary, metric).get(m.end) or [] for run in m.runs] for m in methods]
    if not all(clients for runs in each for clients in runs):
        return np.empty((len(methods), 0))
    means = np.array(each, dtype=np.float64).mean(axis=1)  # None, of a client without a value, becomes NaN
    defined: Numbers = means[:, ~np.isnan(means).any(axis=0)]
    return defined


OWN = "each by its own test samples"  # which tell less than all clients together


def ranked(methods: Sequence[MethodRuns]) -> list[MethodRuns]:
    """Return the methods that were measured, by the model that each of them ends with, the best first."""
    return sorted((m for m in methods if m.finals(m.end)), key=_goodness, reverse=True)


def answer(methods: Sequence[MethodRuns], gains: Sequence[Gains], tests: Leads | None) -> list[str]:
    """Say what stands above the table: the answer, whether the lead is chance, and what makes it optimistic."""
    order = ranked(methods)
    chosen = [run.selection for m in order for run in m.runs if run.selection is not None]
    warned = [OPTIMISTIC] if any(found["rule"] == BEST_TEST for found in chosen) else []
    if not order and len(methods) > 1 and methods[0].metric is not None:
        return [too_few(0, methods[0].metric)]
    if len(order) < 2 or tests is None:
        return [*(f"{m.label}: {_result(m)}." for m in order), *warned]
    return [_for_whom(order, gains) or _highest(order), _lead(order[0], order[1], tests), *warned]


def details(methods: Sequence[MethodRuns], gains: Sequence[Gains], tests: Leads | None) -> list[str]:
    """Say what stands below the table: the other tests, what the best costs, and for whom every method is better."""
    order = ranked(methods)
    return [*_tests(order, tests), *(_price(order) if len(order) > 1 else ()), *gain_sentences(gains)]


def _for_whom(order: Sequence[MethodRuns], gains: Sequence[Gains]) -> str:
    """Say how many clients the best federated method helps and harms; empty where no method trained them alone."""
    alone = {one.label: one for one in gains if one.means == ALONE}
    first, *others = sorted(order, key=in_one_place)
    if first.label in alone:
        return f"{_counts(alone[first.label])}, against {_reference(alone[first.label])}, {OWN}."
    nearest = next((alone[m.label] for m in others if m.label in alone), None)
    if nearest is None or first.label != nearest.reference:
        return ""
    if in_one_place(order[0]):
        return f"{_counts(nearest)}, against {_reference(nearest)}, {OWN}."
    return f"{_reference(nearest)[0].upper()}{_reference(nearest)[1:]} is best on average: {_counts(nearest)}, {OWN}."


def _counts(one: Gains) -> str:
    """Say how many clients a method helps and harms.

    >>> _counts(Gains("fedper", "local", ALONE, []))
    'fedper helps none of 0 clients and harms none'
    """
    helped, harmed = (one.count(verdict) or "none" for verdict in ("helps", "harms"))
    clients = len(one.each)
    return f"{one.label} helps {helped} of {clients} client{'' if clients == 1 else 's'} and harms {harmed}"


def _reference(one: Gains) -> str:
    """Name the method by which every client trains alone."""
    seeds = f"; the clients of {one.seeds} seeds" if one.seeds > 1 else ""
    return f"{one.means} ({one.reference}{seeds})"


def _highest(order: Sequence[MethodRuns]) -> str:
    """Say which method has the best mean."""
    best, metric = order[0], _metric(order[0])
    most = "highest" if metric["higher_is_better"] else "lowest"
    return f"{best.label} has the {most} personal {words(metric)} {POINTS[best.end]}, {_mean(best)}."


def _lead(best: MethodRuns, second: MethodRuns, tests: Leads) -> str:
    """Say how far the best is ahead of the next, and whether that is chance, by one test."""
    metric = _metric(best)
    write, lead = written(metric), _goodness(best) - _goodness(second)
    level = write(lead) == write(0.0)
    apart = "level with" if level else f"{write(lead)}{' points' if metric['percent'] else ''} ahead of"
    federated = ", not federated" if in_one_place(best) else ""
    ahead = f"{best.label} ({_mean(best)}{federated}) is {apart} {second.label} ({_mean(second)}), the next"
    outcome = tests.against.get(second.label)
    if outcome is None:
        return " ".join(filter(None, (f"{ahead}.", tests.how)))
    if not outcome.p:
        return f"{ahead}. By each client's own test samples: {outcome.said}."
    doubt = "there is no clear difference" if level else tests.unable or "that may be chance"
    result = f"{outcome.said} (paired test, {outcome.p})"
    return f"{ahead}. Over all clients {'that is more than chance' if outcome.clear else doubt}: {result}."


def _tests(order: Sequence[MethodRuns], tests: Leads | None) -> Iterator[str]:
    """Yield the best method against the others but the next, and what the test is, in one paragraph."""
    if tests is None or not tests.against:
        return
    others = {m.label: tests.against[m.label] for m in order[2:] if m.label in tests.against}
    each = {label: f"{lead.said} ({lead.p})" if lead.p else lead.said for label, lead in others.items()}
    against = "; ".join(f"against {label}: {said}" for label, said in each.items())
    yield " ".join(filter(None, (against and f"{tests.best} {against}.", tests.how)))


def _result(method: MethodRuns) -> str:
    """Say a single method's metric."""
    parts = [f"{_text(method, c)} {POINTS[p]}" for p in POINTS if (c := personal_cell(method, p)).value is not None]
    lowest = _text(method, worst(method))
    return f"personal {words(_metric(method))} {', '.join(parts)}; worst client {lowest} after aggregation"


def _metric(method: MethodRuns) -> MetricInfo:
    """Return the metric that decides, of a method that was measured."""
    assert method.metric is not None
    return method.metric


def _mean(method: MethodRuns) -> str:
    """Write the mean of the models that a method ends with."""
    return _text(method, personal_cell(method, method.end))


def _text(method: MethodRuns, cell: Cell) -> str:
    """Write a number with its unit."""
    return f"{cell.text} {unit(_metric(method))}".rstrip()


def _goodness(method: MethodRuns) -> float:
    """Return the mean in the end; of a metric that should be low, what it is below zero."""
    return fmean(method.finals(method.end)) * (1 if _metric(method)["higher_is_better"] else -1)


def _price(order: Sequence[MethodRuns]) -> Iterator[str]:
    """Yield what the best sent, where another method that exchanges anything sent less."""
    cells = {m.label: sent(m) for m in order}
    exchanging = [label for label in cells if cells[label].value]
    least, best = min(exchanging, key=lambda label: cells[label].value or 0.0, default=""), order[0].label
    if best in exchanging and cells[least].text != cells[best].text:
        yield f"{best} sent {cells[best].text}; of all that exchange anything, {least} sent least, {cells[least].text}."
