"""The page in a few sentences. A lead that clients or seeds do not bear out is called so."""

from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np

from ..measure.paired import FEWEST, Numbers, against
from ..text import scaled
from .groups import Method, Setup
from .headline import POINTS, accuracy, finals, worst

ALONE = "local"  # the method without any exchange


def verdict(setup: Setup) -> list[str]:
    """Who won, for whom, and at what cost."""
    measured = [m for m in setup.methods if finals(m, "after_mix")]
    if len(measured) < 2:
        return [f"{m.label}: {_result(m)}." for m in measured]
    ranked = sorted(measured, key=lambda m: -fmean(finals(m, "after_mix")))
    return [
        *(_winner(measured, point) for point in ("after_mix", "after_train")),
        _left_behind(measured),
        *_client_by_client(ranked),
        _price(ranked[0], measured),
    ]


def _result(method: Method) -> str:
    """A single method's accuracies."""
    parts = [f"{c.text} % {POINTS[p]}" for p in POINTS if (c := accuracy(method, p)).value is not None]
    return f"personal accuracy {', '.join(parts)}; worst client {worst(method).text} % after mixing"


def _winner(methods: Sequence[Method], point: str) -> str:
    first, second = sorted(methods, key=lambda m: -fmean(finals(m, point)))[:2]
    lead = fmean(finals(first, point)) - fmean(finals(second, point))
    ahead = f"{first.label} has the highest personal accuracy {POINTS[point]}, {accuracy(first, point).text} %"
    return f"{ahead}, {lead:.1f} points before {second.label}{_doubt(first, second, point, lead)}."


def _doubt(first: Method, second: Method, point: str, lead: float) -> str:
    """What a lead is worth."""
    each = [finals(m, point) for m in (first, second)]
    if min(map(len, each)) < 2:
        return "; one seed does not tell whether that would last"
    spread = max(map(pstdev, each))
    return f"; the seeds differ by ±{spread:.1f}, so this may be chance" if lead < 2 * spread else ""


def _left_behind(methods: Sequence[Method]) -> str:
    values = {m.label: worst(m).value or 0.0 for m in methods}
    best, least = max(values, key=lambda k: values[k]), min(values, key=lambda k: values[k])
    return (
        f"The worst client after mixing fares best with {best} ({values[best]:.1f} %) "
        f"and worst with {least} ({values[least]:.1f} %)."
    )


def _client_by_client(ranked: Sequence[Method]) -> list[str]:
    """The best method against the next, and against training alone, over the same clients."""
    accuracies = _of_clients(ranked)
    if accuracies is None or accuracies.shape[1] < FEWEST:
        return []
    beside = [j for j, m in enumerate(ranked) if j == 1 or (j and m.first.config["method"] == ALONE)]
    found, pairs = against(0, accuracies), len(ranked) * (len(ranked) - 1) // 2
    corrected = f", Holm-corrected for all {pairs} pairs of methods" if pairs > 1 else ""
    told = "; ".join(f"{ranked[0].label} against {ranked[j].label}: {found[j].said}" for j in beside)
    return [f"Client by client after mixing (sign-flip test, two-sided{corrected}): {told}."]


def _of_clients(methods: Sequence[Method]) -> Numbers | None:
    """[methods, clients] each client's accuracy after mixing, mean over the seeds; None unless all have the same."""
    if len({tuple(run.seed for run in m.runs) for m in methods}) > 1:
        return None
    each = [[run.census.get("accuracy", {}).get("after_mix") for run in m.runs] for m in methods]
    if not all(known for runs in each for known in runs):
        return None
    means = np.array(each, dtype=np.float64).mean(axis=1)  # None, of a client without test samples, becomes NaN
    known: Numbers = means[:, ~np.isnan(means).any(axis=0)]
    return known


def _price(winner: Method, methods: Sequence[Method]) -> str:
    def sent(method: Method) -> float:
        return fmean(run.summary["bytes_sent"] for run in method.runs)

    least = min((m for m in methods if sent(m) > 0), key=sent, default=winner)
    beside = f"; of all that exchange anything, {least.label} sent least, {scaled(sent(least), 'B')}"
    return f"{winner.label} sent {scaled(sent(winner), 'B')}{'' if least is winner else beside}."
