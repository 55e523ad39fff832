"""Which method is better, in sentences that claim no more than clients and seeds bear out."""

from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np

from ..paired import FEWEST, Numbers, against
from .columns import POINTS, accuracy, sent, worst
from .runs import MethodRuns


def verdict(methods: Sequence[MethodRuns]) -> list[str]:
    """Who won, what a paired test says to it, for whom, and at what cost."""
    measured = [m for m in methods if m.finals("after_mix")]
    if len(measured) < 2:
        return [*(f"{m.label}: {_result(m)}." for m in measured), *paired_test(methods)]
    return [
        _winner(measured, "after_mix"),
        *paired_test(methods),
        _winner(measured, "after_train"),
        _left_behind(measured),
        _price(measured),
    ]


def paired_test(methods: Sequence[MethodRuns]) -> list[str]:
    """What the test is, then the best method against every other; nothing where there is nothing to compare."""
    if len(methods) < 2:
        return []
    if not all(run.finished for m in methods for run in m.runs):
        return ["A paired test over the clients needs finished runs: there is none yet."]
    if len({tuple(run.seed for run in m.runs) for m in methods}) > 1:
        return ["A paired test over the clients needs the same seeds for all methods: there is none here."]
    accuracies = _of_clients(methods)
    clients, seeds = accuracies.shape[1], len(methods[0].runs)
    if clients < FEWEST:
        return [f"{clients} clients are too few for a paired test that tells which method is better: {FEWEST} needed."]
    best = int(accuracies.mean(axis=1).argmax())
    name, pairs = methods[best].label, len(methods) * (len(methods) - 1) // 2
    each = f", each client's mean over {seeds} seeds" if seeds > 1 else ""
    corrected = f", Holm-corrected for all {pairs} pairs of methods" if pairs > 1 else ""
    return [
        f"Personal accuracy after mixing{each}: {name} has the highest mean of {clients} clients. "
        f"Sign-flip test, two-sided{corrected}.",
        *(f"{name} against {methods[j].label}: {p.said}" for j, p in against(best, accuracies).items()),
    ]


def _of_clients(methods: Sequence[MethodRuns]) -> Numbers:
    """[methods, clients] each client's accuracy after mixing, mean over the seeds, of those who have it everywhere."""
    each = [[run.client_summary.get("accuracy", {}).get("after_mix") or [] for run in m.runs] for m in methods]
    if not all(clients for runs in each for clients in runs):
        return np.empty((len(methods), 0))
    means = np.array(each, dtype=np.float64).mean(axis=1)  # None, of a client without test samples, becomes NaN
    known: Numbers = means[:, ~np.isnan(means).any(axis=0)]
    return known


def _result(method: MethodRuns) -> str:
    """A single method's accuracies."""
    parts = [f"{c.text} % {POINTS[p]}" for p in POINTS if (c := accuracy(method, p)).value is not None]
    return f"personal accuracy {', '.join(parts)}; worst client {worst(method).text} % after mixing"


def _winner(methods: Sequence[MethodRuns], point: str) -> str:
    first, second = sorted(methods, key=lambda m: -fmean(m.finals(point)))[:2]
    lead = fmean(first.finals(point)) - fmean(second.finals(point))
    ahead = f"{first.label} has the highest personal accuracy {POINTS[point]}, {accuracy(first, point).text} %"
    return f"{ahead}, {lead:.1f} points ahead of {second.label}{_doubt(first, second, point, lead)}."


def _doubt(first: MethodRuns, second: MethodRuns, point: str, lead: float) -> str:
    """What a lead is worth."""
    each = [m.finals(point) for m in (first, second)]
    if min(map(len, each)) < 2:
        return "; one seed does not tell whether that would last"
    spread = max(map(pstdev, each))
    return f"; the seeds differ by ±{spread:.1f}, so this may be chance" if lead < 2 * spread else ""


def _left_behind(methods: Sequence[MethodRuns]) -> str:
    """Of the methods whose worst client is known in all seeds, as it is of all that were evaluated."""
    cells = {m.label: worst(m) for m in methods}
    ranked = sorted(cells, key=lambda label: cells[label].value or 0.0)
    return (
        f"The worst client after mixing fares best with {ranked[-1]} ({cells[ranked[-1]].text} %) "
        f"and worst with {ranked[0]} ({cells[ranked[0]].text} %)."
    )


def _price(methods: Sequence[MethodRuns]) -> str:
    """What the best sent, and who sent least of all that exchange anything."""
    winner = max(methods, key=lambda m: fmean(m.finals("after_mix")))
    cells = {m: sent(m) for m in methods}
    exchanging = [m for m in methods if cells[m].value]
    least = min(exchanging, key=lambda m: cells[m].value or 0.0, default=winner)
    beside = f"; of all that exchange anything, {least.label} sent least, {cells[least].text}"
    return f"{winner.label} sent {cells[winner].text}{'' if least is winner else beside}."
