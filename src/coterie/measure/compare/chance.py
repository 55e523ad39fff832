"""Whether the lead of the best method is more than chance: one test for each pair of methods."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...core.schema import FINETUNED, MetricInfo
from ...core.units import of_clients, words
from ..paired import FEWEST, Numbers, against, fewest, said_p
from .columns import MethodRuns
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
