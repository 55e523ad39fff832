"""The page in a few sentences. A lead that the seeds do not bear out is called so."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from .groups import Method, Setup
from .headline import POINTS, accuracy, finals, scaled, worst

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
        *_beside_alone(ranked[0], measured),
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


def _beside_alone(winner: Method, methods: Sequence[Method]) -> list[str]:
    """How many clients are better off than if they had trained alone."""
    alone = next((m for m in methods if m.first.config["method"] == ALONE), None)
    if alone is None or alone is winner:
        return []
    together, apart = ({r.seed: r.census.get("accuracy", {}).get("after_mix") for r in m.runs} for m in (winner, alone))
    pairs = [
        (a, b)
        for seed, each in together.items()
        if each and apart.get(seed)
        for a, b in zip(each, apart[seed] or [], strict=True)
        if a is not None and b is not None
    ]
    if not pairs:
        return []
    better, worse = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    whose = " of all seeds" if len(winner.runs) > 1 else ""
    return [f"With {winner.label}, {better} of {len(pairs)} clients{whose} do better than alone, {worse} do worse."]


def _price(winner: Method, methods: Sequence[Method]) -> str:
    def sent(method: Method) -> float:
        return fmean(run.summary["bytes_sent"] for run in method.runs)

    least = min((m for m in methods if sent(m) > 0), key=sent, default=winner)
    beside = f"; of all that exchange anything, {least.label} sent least, {scaled(sent(least), 'B')}"
    return f"{winner.label} sent {scaled(sent(winner), 'B')}{'' if least is winner else beside}."
