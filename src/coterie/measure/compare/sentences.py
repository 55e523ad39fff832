"""A comparison in sentences: what its numbers are, and who is better, as far as clients and seeds bear it out."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

import numpy as np

from ...core.clients import client_list
from ...core.schema import FINETUNED, MetricInfo, Select
from ...core.units import metrics_of, of_clients, personal_summary, unit, words, written
from ..paired import FEWEST, Numbers, against
from ..selection import BEST_TEST, LAST, OPTIMISTIC, PER_CLIENT, WORDS
from .columns import Cell, Column, MethodRuns, personal_cell, sent, worst
from .meanings import POINTS
from .sites import site_sentences, site_tests

EVERYBODY = -1  # in the place of a number of clients


def protocol(methods: Sequence[MethodRuns], target: float | None, shown: Sequence[Column], mark: str) -> list[str]:
    """Say which rounds, clients and seeds, what each column is and who computed it; ``mark``: that of the best.

    ``target``: what rounds are counted to, where they are.
    """
    best = f" {mark} the best of a column, as far as its digits tell." if len(methods) > 1 else ""
    clients = methods[0].runs[0].config["data"]["clients"]
    configs = (run.config for m in methods for run in m.runs)
    engines = dict.fromkeys(f"{c['engine']} on {c['device']} ({c['engine_reason']})" for c in configs)
    metric = methods[0].metric
    return [
        f"{_unit(metric)} {_which_round(methods)}.{best}",
        *([] if target is None else _apart(methods)),
        _seeds(methods),
        *([] if metric is None else [_personal(methods, metric, clients)]),
        *_undefined(methods, clients),
        *_untold_costs(methods),
        *(f"{c.title[0].upper()}{c.title[1:]}: {c.means}." for c in shown),
        f"Engine: {', '.join(engines)}.",
    ]


def _unit(metric: MetricInfo | None) -> str:
    """Say what the numbers are of, and in which unit."""
    if metric is None:
        return "Nothing is measured of the models, all numbers are"
    name = words(metric)
    if metric["percent"]:
        plural = "All accuracies are" if name == "accuracy" else f"All values of {name} are"
        return f"{plural} in % and those"
    return f"All values of {name} ({'higher' if metric['higher_is_better'] else 'lower'} is better) are those"


def _personal(methods: Sequence[MethodRuns], metric: MetricInfo, clients: int) -> str:
    """Say what the mean of a personal metric is taken over."""
    weighted = ", each as much as it has test samples" if metric["average"] == "samples" else ""
    over = f", mean over {_tested(methods, clients, weighted)}" if clients > 1 else "; there is one client"
    return f"Personal {words(metric)}: each client's own model on its own test samples{over}."


def _tested(methods: Sequence[MethodRuns], clients: int, weighted: str) -> str:
    """Say which clients have test samples: all, or who has none; seeds may deal them to others."""
    summaries = [run.client_summary for m in methods for run in m.runs]
    without = {tuple(i for i, n in enumerate(s.get("test_samples", ())) if not n) for s in summaries}
    counts = sorted({clients - len(some) for some in without})
    if counts == [clients]:
        return f"all {clients} clients{weighted}"
    if len(without) > 1:
        some = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        return f"{some} of {clients} clients{weighted}: in every seed, those without test samples are left out"
    who = client_list(summaries[0].get("names", ()), found := [*without.pop()])
    return f"{counts[0]} of {clients} clients{weighted}: {who} {'has' if len(found) == 1 else 'have'} no test samples"


def _untold_costs(methods: Sequence[MethodRuns]) -> Iterator[str]:
    """Say whose FLOPs and seconds lack what clients do to their models in the end."""
    if tuned := [m.label for m in methods if m.end == FINETUNED]:
        who = "" if len(tuned) == len(methods) else f" of {', '.join(tuned)}"
        yield f"FLOPs and seconds are without the final fine-tuning{who}."


def _undefined(methods: Sequence[MethodRuns], clients: int) -> Iterator[str]:
    """Say on how many clients a metric is not defined, and what that means for its means and tests."""
    for metric in metrics_of(methods[0].runs[0].config):
        found: dict[int, list[str]] = {}
        for m in methods:
            found.setdefault(_undefined_on(m, metric), []).append(m.label)
        for count, labels in sorted(found.items()):
            who = "" if len(found) == 1 else f" with {', '.join(labels)}"
            name = words(metric)
            if count == EVERYBODY:
                yield f"{name} is undefined on every client{who}: there is no mean of it, and no test."
            elif count:
                yield f"{name} is undefined on {count} of {clients} clients{who}: means and tests leave them out."


def _undefined_on(method: MethodRuns, metric: MetricInfo) -> int:
    """Return on how many clients a metric is undefined with a method, the most of all seeds."""
    mixed = [personal_summary(run.summary, metric).get("after_mix") for run in method.runs]
    if any(mixed):
        return max(one.get("undefined", 0) for one in mixed if one is not None)
    # Without any value there is no summary, but the rows have counted the clients.
    counted = any(run.last(f"personal_{metric['column']}_after_mix_undefined") for run in method.runs)
    return EVERYBODY if counted else 0


def _which_round(methods: Sequence[MethodRuns]) -> str:
    """Say which round is reported, and by which rule, with the methods where rules differ."""
    rules: dict[Select, list[MethodRuns]] = {}
    for m in methods:
        rules.setdefault(LAST if (found := m.runs[0].selection) is None else found["rule"], []).append(m)
    said = []
    for rule, some in rules.items():
        of = f" ({', '.join(m.label for m in some)})" if len(rules) > 1 else ""
        said.append(WORDS[rule] + (f": {_rounds(some)}" if rule != PER_CLIENT else "") + of)
    return "; ".join(said)


def _apart(methods: Sequence[MethodRuns]) -> Iterator[str]:
    """Say how many rounds lie between two evaluations, because a target is seen at the second one at the earliest."""
    every = sorted({run.config["evaluate_every"] for m in methods for run in m.runs})
    if every[-1] > 1:
        rounds = f"{every[0]} to {every[-1]}" if len(every) > 1 else str(every[0])
        yield f"Evaluated every {rounds} rounds: a count of rounds to a target is up to {every[-1] - 1} too high."


def _seeds(methods: Sequence[MethodRuns]) -> str:
    """Say what is a mean over seeds, and what the spread is over."""
    counts = sorted({len(m.runs) for m in methods})
    if counts == [1]:
        return "One seed. ±: standard deviation over the clients."
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    alone = "; of a method with one seed, over the clients" if counts[0] == 1 else ""
    means = "Numbers are means over the seeds, unless their line says otherwise"
    return f"{means}. ±: standard deviation over {seeds} (n - 1){alone}."


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
    chosen = [run.selection for m in measured for run in m.runs if run.selection is not None]
    warned = [OPTIMISTIC] if any(found["rule"] == BEST_TEST for found in chosen) else []
    if len(measured) < 2:
        return [*warned, *(f"{m.label}: {_result(m)}." for m in measured), *paired_test(methods)]
    return [
        *warned,
        _winner(measured, {m: m.end for m in measured}),
        *paired_test(methods),
        _winner(measured, dict.fromkeys(measured, "after_train")),
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
    metric = methods[0].metric
    if metric is None:
        return []
    values = _of_clients(methods, metric)
    clients, seeds = values.shape[1], len(methods[0].runs)
    anew = f"every seed deals the samples anew: a client here is {seeds} with the same number"
    anew = anew if methods[0].dealt_anew else ""
    if clients < FEWEST:
        return site_sentences(found, seeds, anew) if (found := site_tests(methods)) else [_too_few(clients, metric)]
    gains = values if metric["higher_is_better"] else -values
    best, most = int(gains.mean(axis=1).argmax()), _most(metric)
    name, pairs = methods[best].label, len(methods) * (len(methods) - 1) // 2
    each = f", each client's mean over {seeds} seeds{f' ({anew})' if anew else ''}" if seeds > 1 else ""
    corrected = f", Holm-corrected for all {pairs} pairs of methods" if pairs > 1 else ""
    return [
        f"Personal {words(metric)} {_ends(methods)}{each}: {name} has the {most} mean of {clients} clients. "
        f"Sign-flip test, two-sided{corrected}.",
        *(f"{name} against {methods[j].label}: {p.said}" for j, p in against(best, gains).items()),
    ]


def _too_few(clients: int, metric: MetricInfo) -> str:
    """Say why there is no test over the clients."""
    if clients == 0:
        return f"No client has a value of {words(metric)} with every method: no test can tell which method is better."
    number = "One client is" if clients == 1 else f"{clients} clients are"
    return f"{number} too few for a paired test that tells which method is better: {FEWEST} needed."


def _ends(methods: Sequence[MethodRuns]) -> str:
    """Say which models those are that clients end with."""
    tuned = any(m.end == FINETUNED for m in methods)
    return f"{POINTS[FINETUNED]} where a method does so, else {POINTS['after_mix']}" if tuned else POINTS["after_mix"]


def _most(metric: MetricInfo) -> str:
    return "highest" if metric["higher_is_better"] else "lowest"


def _of_clients(methods: Sequence[MethodRuns], metric: MetricInfo) -> Numbers:
    """Return [methods, clients] the metric in the end, mean over seeds, of clients who have it everywhere."""
    each = [[of_clients(run.client_summary, metric).get(m.end) or [] for run in m.runs] for m in methods]
    if not all(clients for runs in each for clients in runs):
        return np.empty((len(methods), 0))
    means = np.array(each, dtype=np.float64).mean(axis=1)  # None, of a client without a value, becomes NaN
    known: Numbers = means[:, ~np.isnan(means).any(axis=0)]
    return known


def _result(method: MethodRuns) -> str:
    """Say a single method's metric."""
    parts = [f"{_text(method, c)} {POINTS[p]}" for p in POINTS if (c := personal_cell(method, p)).value is not None]
    return f"personal {_name(method)} {', '.join(parts)}; worst client {_text(method, worst(method))} after aggregation"


def _name(method: MethodRuns) -> str:
    return "" if method.metric is None else words(method.metric)


def _text(method: MethodRuns, cell: Cell) -> str:
    """Write a number with its unit."""
    return f"{cell.text} {'' if method.metric is None else unit(method.metric)}".rstrip()


def _gain(method: MethodRuns, point: str) -> float:
    """Return the mean of the last round; of a metric that should be low, what it is below zero."""
    return fmean(method.finals(point)) * (1 if method.metric is None or method.metric["higher_is_better"] else -1)


def _winner(methods: Sequence[MethodRuns], points: Mapping[MethodRuns, str]) -> str:
    """Say who is ahead, and by how much; ``points``: when each method is measured."""
    first, second = sorted(methods, key=lambda m: -_gain(m, points[m]))[:2]
    lead, metric = _gain(first, points[first]) - _gain(second, points[second]), first.metric
    assert metric is not None
    cell = personal_cell(first, points[first])
    apart = f"{written(metric)(lead)}{' points' if metric['percent'] else ''}"
    when = f" {POINTS[points[second]]}" if points[second] != points[first] else ""
    ahead = f"{first.label} has the {_most(metric)} personal {words(metric)} {POINTS[points[first]]}"
    doubt = _doubt([m.finals(points[m]) for m in (first, second)], metric, lead)
    if lead == 0:
        return f"{ahead}, {_text(first, cell)}, and {second.label}{when} the same{doubt}."
    return f"{ahead}, {_text(first, cell)}, {apart} ahead of {second.label}{when}{doubt}."


def _doubt(each: Sequence[Sequence[float]], metric: MetricInfo, lead: float) -> str:
    """Say what a lead is worth; ``each``: the two methods, seed by seed."""
    if min(map(len, each)) < 2:
        return "; one seed does not tell whether that holds up"
    spread = max(map(stdev, each))
    return f"; the seeds differ by ±{written(metric)(spread)}, so this may be chance" if lead < 2 * spread else ""


def _left_behind(methods: Sequence[MethodRuns]) -> str:
    """Say with which methods the worst client is best and worst off; all that were evaluated have one."""
    cells = {m.label: worst(m) for m in methods}
    ranked = sorted(cells, key=lambda label: cells[label].value or 0.0)
    metric = methods[0].metric
    low, high = ranked[0], ranked[-1]
    best, least = (high, low) if metric is None or metric["higher_is_better"] else (low, high)
    best_text, least_text = (_text(methods[0], cells[label]) for label in (best, least))
    if best_text == least_text:
        return f"The worst client after aggregation is equally well off with every method ({best_text})."
    worst_client = f"The worst client after aggregation is best off with {best} ({best_text})"
    return f"{worst_client} and worst off with {least} ({least_text})."


def _price(methods: Sequence[MethodRuns]) -> str:
    """Say what the best sent, and who sent least of all that exchange anything."""
    winner = max(methods, key=lambda m: _gain(m, m.end))
    cells = {m: sent(m) for m in methods}
    exchanging = [m for m in methods if cells[m].value]
    least = min(exchanging, key=lambda m: cells[m].value or 0.0, default=winner)
    beside = f"; of all that exchange anything, {least.label} sent least, {cells[least].text}"
    return f"{winner.label} sent {cells[winner].text}{'' if least is winner else beside}."
