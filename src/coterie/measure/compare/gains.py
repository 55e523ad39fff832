"""Who gains: each client's difference to training alone, and to one model for all, with an interval of its own."""

from collections.abc import Sequence
from dataclasses import replace
from math import log10
from typing import Literal, NamedTuple

import numpy as np

from ...core.schema import FINETUNED, MetricInfo
from ...core.spec import counted
from ...core.units import client_names, of_clients, scale
from ..paired import CLEAR, Numbers, difference, said_p
from .columns import MethodRuns, RunData

ALONE, COMMON = "training alone", "one model for all"  # what methods are compared with
SURE = 0.95  # of an interval
UNSURE = 0.68  # the error of its ends, in widths by the root of the draws: sqrt(0.025 0.975) / 0.0584 / 3.92 if normal
GAINS = (
    "Who gains: each client's own model on its own test samples against its model of the other method, and an interval "
    "of 95 % by drawing its test samples again (bootstrap); it helps or harms whose interval lies on one side of 0. "
    "The intervals are not corrected for the number of clients. With fewer than 6 clients an exact test of their "
    "answers decides instead, where every answer is right or wrong."
)
Verdict = Literal["helps", "harms", "unclear"]
VERDICTS: tuple[Verdict, ...] = ("helps", "harms", "unclear")


class Gain(NamedTuple):
    """What a client has of a method, in the metric's unit: above 0 it is better off."""

    client: int
    name: str
    difference: float
    low: float
    high: float
    samples: int  # it trains on
    unsure: float = 0.0  # the error of low and high, which are drawn
    p: float | None = None  # of an exact test, corrected for all that was compared; None: the interval tells

    @property
    def verdict(self) -> Verdict:
        """Whether the client is clearly better or worse off."""
        if self.p is not None and self.p >= CLEAR:
            return "unclear"
        low, high = (self.low, self.high) if self.p is None else (self.difference, self.difference)
        return "helps" if low > 0 else "harms" if high < 0 else "unclear"

    @property
    def signed(self) -> str:
        """The difference with its sign.

        >>> Gain(0, "a", 3.25, 1.0, 5.0, 8).signed, Gain(0, "a", 0.0, -1.0, 1.0, 8).signed
        ('+3.25', '0')
        """
        return f"{self.difference:+.3g}" if self.difference else "0"

    @property
    def said(self) -> str:
        """The client with its difference, and how sure that is."""
        sure = " to ".join(self.ends) if self.p is None else said_p(self.p)
        return f"{self.name} ({self.signed}, {sure})"

    @property
    def ends(self) -> tuple[str, str]:
        """The interval, with no more digits than are sure."""
        if not self.unsure:
            return f"{self.low:+.3g}", f"{self.high:+.3g}"
        places = -round(log10(self.unsure))
        low, high = (f"{round(end, places) + 0.0:+.{max(0, places)}f}" for end in (self.low, self.high))  # 0, not -0
        return low, high


class Gains(NamedTuple):
    """What all clients have of a method, those first who gain most."""

    label: str  # of the method
    reference: str  # the label of the other one
    means: str  # what that one stands for
    each: list[Gain]
    seeds: int = 1  # whose clients these are, where every seed deals the samples to other ones

    def count(self, verdict: Verdict) -> int:
        """Return how many clients it is so for."""
        return sum(gain.verdict == verdict for gain in self.each)

    @property
    def counts(self) -> str:
        """How many clients the method helps and harms, and how many fare alike with both."""
        ties = sum(gain.difference == 0 for gain in self.each)
        tied = f", {counted(ties, 'tie')}" if ties else ""
        return f"{self.label} helps {self.count('helps')}, harms {self.count('harms')}{tied}"

    @property
    def exact(self) -> bool:
        """Whether exact tests of the clients' answers tell whom it helps, in the place of intervals."""
        return any(gain.p is not None for gain in self.each)

    @property
    def total(self) -> float:
        """The sum of all differences, by which methods are ranked."""
        return sum(gain.difference for gain in self.each)


def gain_sentences(found: Sequence[Gains]) -> list[str]:
    """Say whom every method helps and harms, one line per method they are compared with, the best method first.

    Against training alone, a second line says who has most and least of the best method.
    """
    said = []
    for means in dict.fromkeys(one.means for one in found):
        ranked = sorted((one for one in found if one.means == means), key=lambda one: -one.total)
        clients, seeds = len(ranked[0].each), ranked[0].seeds
        anew = f" (those of {seeds} seeds, which deal the samples anew)" if seeds > 1 else ""
        how = "exact test" if ranked[0].exact else "interval"
        whose = f"of {counted(clients, 'client')}{anew}, each by its own {how}"
        said.append(f"Against {means} ({ranked[0].reference}), {whose}: {'; '.join(one.counts for one in ranked)}.")
        if means == ALONE and not ranked[0].exact:
            said.append(_ends(ranked[0]))
    return said


def _ends(one: Gains) -> str:
    """Say who has most and least of a method."""
    most, least = (f"{g.name} {g.signed} ({' to '.join(g.ends)})" for g in (one.each[0], one.each[-1]))
    if len(one.each) == 1:
        return f"{one.label} against {one.reference}: {most}."
    return f"{one.label} against {one.reference}, client by client: most {most}, least {least}."


def gains(methods: Sequence[MethodRuns]) -> list[Gains]:
    """Return what the clients have of each method against training alone and one model for all, if these were run."""
    kinds = {m: _kind(m) for m in methods}
    references = [(means, m) for means in (ALONE, COMMON) for m in [m for m in methods if kinds[m] == means][:1]]
    return [
        Gains(m.label, other.label, means, each, len(m.runs) if m.dealt_anew else 1)
        for means, other in references
        for m in methods
        if m is not other and kinds[m] != ALONE and (each := _gains_of_all(m, other))
    ]


def _gains_of_all(method: MethodRuns, other: MethodRuns) -> list[Gain]:
    """Return every client's gain, also that of every seed's own clients: the mean of different ones is nobody's."""
    if not method.dealt_anew or len(method.runs) != len(other.runs):
        return client_gains(method, other)
    found: list[Gain] = []
    for a, b in zip(method.runs, other.runs, strict=True):
        of_seed = client_gains(replace(method, runs=[a]), replace(other, runs=[b]))
        if not of_seed:
            return []
        found += [gain._replace(name=f"{gain.name} of seed {a.seed}") for gain in of_seed]
    return sorted(found, key=lambda gain: -gain.difference)


def _kind(method: MethodRuns) -> str | None:
    """Return which of the two a method is, by what its clients ended with, if it is one of them."""
    ends = [run.client_summary for run in method.runs]
    if not all("personal_parameters" in end and "parameters" in end for end in ends):
        return None
    silent = not any(run.summary["bytes_sent"] for run in method.runs)
    if silent and all(end["personal_parameters"] == end["parameters"] for end in ends):
        return ALONE
    metric = method.metric
    tuned = metric is not None and any(FINETUNED in of_clients(end, metric) for end in ends)
    together = all(run.summary["consensus_distance"] == 0 for run in method.runs)
    return COMMON if together and not tuned and not any(any(end["personal_parameters"]) for end in ends) else None


def in_one_place(method: MethodRuns) -> bool:
    """Tell whether a method had all samples in one place, so that it is not federated."""
    return bool(method.runs[0].config.get("in_one_place"))


def client_gains(method: MethodRuns, other: MethodRuns) -> list[Gain]:
    """Return every client's gain, mean over the seeds; [] unless both have the same clients, seeds and draws."""
    metric, pairs = method.metric, list(zip(method.runs, other.runs, strict=False))
    if metric is None or other.metric != metric or len(method.runs) != len(other.runs):
        return []
    if not all(_comparable(a, b, metric) for a, b in pairs):
        return []
    sign = scale(metric) * (1 if metric["higher_is_better"] else -1)
    draws = min(_drawn(run).shape[1] for pair in pairs for run in pair)  # the first ones are the same
    mine, others = zip(*pairs, strict=True)
    mean = sign * difference(*(np.mean([_values(run, metric) for run in runs], axis=0) for runs in (mine, others)))
    drawn = sign * difference(*(np.mean([_drawn(run)[:, :draws] for run in runs], axis=0) for runs in (mine, others)))
    names, samples = client_names(clients := method.runs[0].client_summary), clients["train_samples"]
    found = []
    for i in np.flatnonzero(~np.isnan(mean) & (~np.isnan(drawn)).any(axis=1)):
        low, high = np.nanquantile(drawn[i], [(1 - SURE) / 2, (1 + SURE) / 2])
        unsure = UNSURE * float(high - low) / np.sqrt((~np.isnan(drawn[i])).sum())
        found.append(Gain(int(i), names[i], float(mean[i]) + 0.0, float(low), float(high), samples[i], float(unsure)))
    return sorted(found, key=lambda gain: (-gain.difference, gain.client))


def _comparable(a: RunData, b: RunData, metric: MetricInfo) -> bool:
    """Whether two runs have the same test samples in the same hands, and the same draws of them."""
    same = a.seed == b.seed and a.config["fingerprints"]["data"] == b.config["fingerprints"]["data"]
    rows = {rows for run in (a, b) for rows in (len(_values(run, metric)), len(_drawn(run)))}
    return same and len(rows) == 1 and rows != {0}


def _drawn(run: RunData) -> Numbers:
    """Return [n, draws] the metric over test samples drawn again; [0] where a run has none."""
    return np.array(run.client_summary.get("resampled", []), dtype=np.float64)


def _values(run: RunData, metric: MetricInfo) -> Numbers:
    """Return the metric of the model that each client ends with: fine-tuned, where the method tunes it."""
    known = of_clients(run.client_summary, metric)
    return np.array(known.get(FINETUNED) or known.get("after_mix") or [], dtype=np.float64)
