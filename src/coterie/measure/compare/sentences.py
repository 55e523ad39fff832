"""A comparison in sentences: what its numbers are, and who is better, as far as clients and seeds bear it out."""

from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np

from ..paired import FEWEST, Numbers, against
from .columns import POINTS, Column, MethodRuns, accuracy, sent, worst


def protocol(methods: Sequence[MethodRuns], shown: Sequence[Column], mark: str) -> list[str]:
    """Say which rounds, clients and seeds, what each column is and who computed it; ``mark``: that of the best."""
    best = f" {mark} the best of a column, as far as its digits tell." if len(methods) > 1 else ""
    clients = methods[0].runs[0].config["data"]["clients"]
    configs = (run.config for m in methods for run in m.runs)
    engines = dict.fromkeys(f"{c['engine']} on {c['device']} ({c['engine_reason']})" for c in configs)
    return [
        f"All accuracies are in % and those of the last evaluated round: {_rounds(methods)}.{best}",
        _seeds(methods),
        f"Personal accuracy: each client's own model on its own test samples, mean over all {clients} clients.",
        *(f"{c.title[0].upper()}{c.title[1:]}: {c.means}." for c in shown),
        f"Engine: {', '.join(engines)}.",
    ]


def _seeds(methods: Sequence[MethodRuns]) -> str:
    """Say what is a mean over seeds, and what the spread is over."""
    counts = sorted({len(m.runs) for m in methods})
    if counts == [1]:
        return "One seed. ±: standard deviation over the clients."
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    alone = "; of a method with one seed, over the clients" if counts[0] == 1 else ""
    means = "Numbers are means over the seeds, unless their line says otherwise"
    return f"{means}. ±: standard deviation over {seeds}{alone}."


def _rounds(methods: Sequence[MethodRuns]) -> str:
    """Return the rounds, with the methods where they differ."""
    by_round: dict[str, list[str]] = {}
    for m in methods:
        first, last = min(run.evaluated for run in m.runs), max(run.evaluated for run in m.runs)
        unfinished = "" if all(run.finished for run in m.runs) else " (unfinished)"
        rounds = f"round {last}" if first == last else f"rounds {first} to {last}"
        by_round.setdefault(rounds, []).append(m.label + unfinished)
    if len(by_round) == 1 and all(run.finished for m in methods for run in m.runs):
        return next(iter(by_round))
    return "; ".join(f"{rounds} of {', '.join(labels)}" for rounds, labels in by_round.items())


def verdict(methods: Sequence[MethodRuns]) -> list[str]:
    """Say who won, what a paired test makes of it, for whom, and at what cost."""
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
    """Say what the test is, then the best method against every other; nothing where there is nothing to compare."""
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
    """Return [methods, clients] the accuracy after mixing, mean over seeds, of clients who have it everywhere."""
    each = [[run.client_summary.get("accuracy", {}).get("after_mix") or [] for run in m.runs] for m in methods]
    if not all(clients for runs in each for clients in runs):
        return np.empty((len(methods), 0))
    means = np.array(each, dtype=np.float64).mean(axis=1)  # None, of a client without test samples, becomes NaN
    known: Numbers = means[:, ~np.isnan(means).any(axis=0)]
    return known


def _result(method: MethodRuns) -> str:
    """Say a single method's accuracies."""
    parts = [f"{c.text} % {POINTS[p]}" for p in POINTS if (c := accuracy(method, p)).value is not None]
    return f"personal accuracy {', '.join(parts)}; worst client {worst(method).text} % after mixing"


def _winner(methods: Sequence[MethodRuns], point: str) -> str:
    first, second = sorted(methods, key=lambda m: -fmean(m.finals(point)))[:2]
    lead = fmean(first.finals(point)) - fmean(second.finals(point))
    ahead = f"{first.label} has the highest personal accuracy {POINTS[point]}, {accuracy(first, point).text} %"
    return f"{ahead}, {lead:.1f} points ahead of {second.label}{_doubt(first, second, point, lead)}."


def _doubt(first: MethodRuns, second: MethodRuns, point: str, lead: float) -> str:
    """Say what a lead is worth."""
    each = [m.finals(point) for m in (first, second)]
    if min(map(len, each)) < 2:
        return "; one seed does not tell whether that would last"
    spread = max(map(pstdev, each))
    return f"; the seeds differ by ±{spread:.1f}, so this may be chance" if lead < 2 * spread else ""


def _left_behind(methods: Sequence[MethodRuns]) -> str:
    """Say with which methods the worst client fares best and worst; all that were evaluated have one."""
    cells = {m.label: worst(m) for m in methods}
    ranked = sorted(cells, key=lambda label: cells[label].value or 0.0)
    return (
        f"The worst client after mixing fares best with {ranked[-1]} ({cells[ranked[-1]].text} %) "
        f"and worst with {ranked[0]} ({cells[ranked[0]].text} %)."
    )


def _price(methods: Sequence[MethodRuns]) -> str:
    """Say what the best sent, and who sent least of all that exchange anything."""
    winner = max(methods, key=lambda m: fmean(m.finals("after_mix")))
    cells = {m: sent(m) for m in methods}
    exchanging = [m for m in methods if cells[m].value]
    least = min(exchanging, key=lambda m: cells[m].value or 0.0, default=winner)
    beside = f"; of all that exchange anything, {least.label} sent least, {cells[least].text}"
    return f"{winner.label} sent {cells[winner].text}{'' if least is winner else beside}."
