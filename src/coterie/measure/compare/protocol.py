"""What the numbers of a comparison are, in sentences. No accuracy stands in a table without them."""

from collections.abc import Sequence

from .columns import Column
from .runs import MethodRuns


def protocol(methods: Sequence[MethodRuns], shown: Sequence[Column], mark: str) -> list[str]:
    """Which round, which clients, which seeds, each column, and who computed it; ``mark``: how the best is marked."""
    best = f" {mark} the best of a column, as far as its digits tell." if len(methods) > 1 else ""
    clients = methods[0].runs[0].config["data"]["clients"]
    return [
        f"All accuracies are in % and those of the last evaluated round: {_rounds(methods)}.{best}",
        _seeds(methods),
        f"Personal accuracy: each client's own model on its own test samples, mean over all {clients} clients.",
        *(f"{c.title[0].upper()}{c.title[1:]}: {c.means}." for c in shown),
        f"Engine: {_engines(methods)}.",
    ]


def _seeds(methods: Sequence[MethodRuns]) -> str:
    """What is a mean over seeds, and what the spread is over."""
    counts = sorted({len(m.runs) for m in methods})
    if counts == [1]:
        return "One seed. ±: standard deviation over the clients."
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    alone = "; of a method with one seed, over the clients" if counts[0] == 1 else ""
    means = "Numbers are means over the seeds, unless their line says otherwise"
    return f"{means}. ±: standard deviation over {seeds}{alone}."


def _rounds(methods: Sequence[MethodRuns]) -> str:
    """The rounds, with the methods where they differ."""
    by_round: dict[str, list[str]] = {}
    for m in methods:
        first, last = min(run.evaluated for run in m.runs), max(run.evaluated for run in m.runs)
        unfinished = "" if all(run.finished for run in m.runs) else " (unfinished)"
        rounds = f"round {last}" if first == last else f"rounds {first} to {last}"
        by_round.setdefault(rounds, []).append(m.label + unfinished)
    if len(by_round) == 1 and all(run.finished for m in methods for run in m.runs):
        return next(iter(by_round))
    return "; ".join(f"{rounds} of {', '.join(labels)}" for rounds, labels in by_round.items())


def _engines(methods: Sequence[MethodRuns]) -> str:
    """Every engine once, and why it was taken."""
    configs = (run.config for m in methods for run in m.runs)
    return ", ".join(dict.fromkeys(f"{c['engine']} on {c['device']} ({c['engine_reason']})" for c in configs))
