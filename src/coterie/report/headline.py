"""The first table: one row a method, the best value of every column marked, and what its numbers are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from ..measure import FINETUNED
from ..measure.report import TARGETS
from ..text import scaled
from .collect import Record
from .groups import Method, Setup

POINTS = {"after_mix": "after mixing", "after_train": "after training", FINETUNED: "after fine-tuning"}


class Cell(NamedTuple):
    """A number and how it is written; a method without it comes last, however the table is sorted."""

    value: float | None
    text: str
    small: Sequence[str] = ()  # its spread, below it


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    title: str
    unit: str
    cell: Callable[[Method], Cell]
    best: Callable[[Sequence[float]], float]  # min or max

    def winner(self, methods: Sequence[Method]) -> float | None:
        """The best value, where there is something to compare."""
        known = [v for m in methods if (v := self.cell(m).value) is not None]
        return self.best(known) if len(methods) > 1 and known else None


def columns(setup: Setup) -> list[Column]:
    """Those that the runs of a set-up can fill."""
    tuned = any(FINETUNED in run.summary["personal_accuracy"] for m in setup.methods for run in m.runs)
    points = [p for p in POINTS if tuned or p != FINETUNED]
    goal = target(setup)
    return [
        *(Column(POINTS[p], "personal accuracy, %", lambda m, p=p: accuracy(m, p), max) for p in points),  # type: ignore[misc]
        Column("worst client", "after mixing, %", worst, max),
        Column("global", "accuracy, %", global_accuracy, max),
        Column(f"rounds to {goal} %", "after mixing", lambda m: rounds_to(m, goal), min),
        Column("sent", "bytes", lambda m: _total(m, "bytes_sent", "B"), min),
        Column("computed", "FLOPs", lambda m: _total(m, "flops", "FLOP"), min),
        Column("time", "seconds", seconds, min),
        Column("busiest node", "bytes a round", busiest, min),
    ]


def finals(method: Method, point: str) -> list[float]:
    """The mean personal accuracy of the last evaluated round in %, one number a seed."""
    return [100 * a["final"] for a in _accuracies(method, point)]


def accuracy(method: Method, point: str) -> Cell:
    """The mean over clients and seeds, with both spreads."""
    known = _accuracies(method, point)
    if not known:
        return Cell(None, "-")
    means = [100 * a["final"] for a in known]
    over_clients = f"±{100 * fmean(a['std'] for a in known):.1f} clients"
    return Cell(fmean(means), f"{fmean(means):.1f}", [*_over_seeds(means), over_clients])


def worst(method: Method) -> Cell:
    """The lowest accuracy of any client in any seed, after mixing."""
    known = [100 * a["worst"] for a in _accuracies(method, "after_mix")]
    return Cell(min(known), f"{min(known):.1f}") if known else Cell(None, "-")


def global_accuracy(method: Method) -> Cell:
    """Of the one model that all of them make, or the server's."""
    known = [100 * v for run in method.runs if (v := run.summary["global_accuracy"]) is not None]
    return Cell(fmean(known), f"{fmean(known):.1f}", _over_seeds(known)) if known else Cell(None, "-")


def target(setup: Setup) -> int:
    """The highest target that two methods reach, so that there is something to compare; else that one does."""

    def reached(goal: int) -> int:
        return sum(rounds_to(m, goal).value is not None for m in setup.methods)

    wanted = min(2, len(setup.methods))
    by_need = [[goal for goal in TARGETS if reached(goal) >= least] for least in (wanted, 1)]
    return max(by_need[0] or by_need[1] or [min(TARGETS)])


def rounds_to(method: Method, goal: int) -> Cell:
    """The mean over the seeds, if all of them reach it."""
    each = [run.summary["rounds_to"].get(str(goal)) for run in method.runs]
    known = [float(r) for r in each if r is not None]
    if len(known) < len(each):
        return Cell(None, "not reached" if not known else f"{len(known)} of {len(each)} seeds")
    return Cell(fmean(known), f"{fmean(known):g}", _over_seeds(known))


def seconds(method: Method) -> Cell:
    """Of training and mixing."""
    mean = fmean(run.summary["seconds"] for run in method.runs)
    return Cell(mean, f"{mean:,.1f}" if mean < 100 else f"{mean:,.0f}")


def _total(method: Method, name: str, unit: str) -> Cell:
    mean = fmean(run.summary[name] for run in method.runs)
    return Cell(mean, scaled(mean, unit))


def busiest(method: Method) -> Cell:
    """Up or down, whichever is more; below it both."""
    up, down = (max(run.summary[f"busiest_bytes_{way}"] for run in method.runs) for way in ("up", "down"))
    most = max(up, down)
    return Cell(most, scaled(most, "B"), [f"up {scaled(up, 'B')}", f"down {scaled(down, 'B')}"])


def _accuracies(method: Method, point: str) -> list[dict[str, Any]]:
    """Of all seeds; nothing unless every one has it."""
    known = [a for run in method.runs if (a := run.summary["personal_accuracy"].get(point))]
    return known if len(known) == len(method.runs) else []


def _over_seeds(values: Sequence[float]) -> list[str]:
    return [f"±{pstdev(values):.1f} seeds"] if len(values) > 1 else []


def protocol(setup: Setup) -> list[str]:
    """What the numbers of the table are: which point, which clients, which round."""
    clients, seeds = setup.config["data"]["clients"], setup.seeds
    tuned = any(c.title == POINTS[FINETUNED] for c in columns(setup))
    over = f"; ± seeds: standard deviation over {seeds} seeds of that mean" if seeds > 1 else ""
    spread = ", mean over the seeds" if seeds > 1 else ""
    lowest = f"the lowest of all clients{' in any seed' if seeds > 1 else ''}"
    return [
        f"All accuracies are those of the last evaluated round: {_rounds(setup)}.",
        f"Personal accuracy: each client's own model on its own test samples, mean over all {clients} clients{over}; "
        f"± clients: standard deviation over the clients{spread}.",
        "After mixing: right after the exchange. After training: right after local work, before the exchange; a client "
        "that did not take part counts with its latest training.",
        *(["After fine-tuning: tuned for the measurement only, for methods that do so."] if tuned else []),
        f"Worst client: {lowest}, after mixing.",
        "Global: the mean of all models, or the server's, on all test samples together, after mixing.",
        f"Rounds to {target(setup)} %: the first evaluated round whose mean personal accuracy after mixing reaches it.",
        "Sent: over all links, both directions, all rounds. Busiest node: the most that one node sends (up) or gets "
        "(down) in a round; a server is a node. Computed: forward and backward passes of all clients. "
        f"Time: training and mixing without evaluation{spread} ({_where(setup)}).",
    ]


def _rounds(setup: Setup) -> str:
    by_rounds: dict[int, list[str]] = {}
    for m in setup.methods:
        by_rounds.setdefault(m.rounds, []).append(m.label + ("" if _finished(m.runs) else " (unfinished)"))
    if len(by_rounds) == 1 and all(_finished(m.runs) for m in setup.methods):
        return f"round {next(iter(by_rounds))}"
    return "; ".join(f"round {rounds} of {', '.join(labels)}" for rounds, labels in by_rounds.items())


def _finished(runs: Sequence[Record]) -> bool:
    return all(run.finished for run in runs)


def _where(setup: Setup) -> str:
    engines = dict.fromkeys(
        f"{run.config.get('engine', '?')} on {run.config.get('device', '?')}" for m in setup.methods for run in m.runs
    )
    return ", ".join(engines)
