"""What clients get that were kept out of training, beside those that took part."""

from collections.abc import Sequence
from statistics import fmean

from ...core.units import with_unit
from .columns import MethodRuns

NEWCOMERS = (
    "Newcomers: clients that were kept out of training. As received: the model that all agree on after the last round; "
    "trained: after the newcomer has trained its own part of it, or tuned all of it where no part is its own."
)


def newcomer_sentences(methods: Sequence[MethodRuns]) -> list[str]:
    """Say what newcomers get with every method, mean over the seeds; nothing where nobody was kept out."""
    said = [f"{m.label} {text}" for m in methods if (text := _of(m)) is not None]
    return [f"Newcomers: {'; '.join(said)}."] if said else []


def _of(method: MethodRuns) -> str | None:
    known, metric = [run.summary["newcomers"] for run in method.runs if "newcomers" in run.summary], method.metric
    if not known or metric is None:
        return None
    received = [each["received"] for each in known if each["received"] is not None]
    own = [each["personalized"] for each in known if each["personalized"] is not None]
    if not received or not own:
        return "shares nothing that they could begin with"
    return f"{with_unit(metric, fmean(received))} as received, {with_unit(metric, fmean(own))} trained"
