"""The table of results. No accuracy stands in it without its protocol."""

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..measure import FINETUNED
from .topology import readable


class Result(NamedTuple):
    """One method's summaries, one a seed."""

    method: str
    summaries: list[dict[str, Any]]


def finetuned(results: Sequence[Result]) -> bool:
    """Whether some method fine-tunes for the measurement."""
    return any(FINETUNED in s["personal_accuracy"] for r in results for s in r.summaries)


def protocol(seeds: int, clients: int, rounds: int, tuned: bool) -> str:
    """What the numbers of the table are."""
    extra = "fine-tuned: the same after fine-tuning for the measurement, for methods that do so\n" if tuned else ""
    over = f"the mean over {clients} clients" if seeds > 1 else f"{clients} clients"
    spread = f"mean ± std over {seeds} seeds of {over}" if seeds > 1 else f"mean ± std over {over}"
    return f"""After round {rounds}. All accuracies in %.
after mixing, after training: personal accuracy, each client's own model on its own test
  samples, after the exchange and after local work before it; {spread} (worst client)
{extra}global: the mean of all models on all test samples, after mixing
distance: mean squared distance of the shared parts from their consensus, after mixing
sent: over all links, both directions; sec: seconds of training and mixing, without evaluation"""


def results_table(results: Sequence[Result]) -> Table:
    """One row a method."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("method", style="bold", no_wrap=True)
    protocols = {"after mixing": "after_mix", "after training": "after_train"}
    protocols |= {"fine-tuned": FINETUNED} if finetuned(results) else {}
    for heading in (*protocols, "global", "distance", "sent", "sec"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_cells(result, list(protocols.values())))
    return table


def _cells(result: Result, protocols: Sequence[str]) -> list[str]:
    def mean(name: str) -> float | None:
        values = [s[name] for s in result.summaries if s[name] is not None]
        return fmean(values) if values else None

    distance, accuracy = mean("consensus_distance"), mean("global_accuracy")
    return [
        result.method,
        *(_accuracy(result, p) for p in protocols),
        "-" if accuracy is None else f"{100 * accuracy:.1f}",
        "-" if distance is None else f"{distance:.3g}",
        readable(round(mean("bytes_sent") or 0)),
        f"{mean('seconds') or 0:.1f}",
    ]


def _accuracy(result: Result, protocol: str) -> str:
    """Mean, spread and worst client: over the clients of one run, or over the seeds of several."""
    known = [a for s in result.summaries if (a := s["personal_accuracy"].get(protocol))]
    if not known:
        return "-"
    finals = [100 * a["final"] for a in known]
    spread = pstdev(finals) if len(finals) > 1 else 100 * known[0]["std"]
    worst = min(100 * a["worst"] for a in known)
    return f"{fmean(finals):.1f} ±{spread:.1f} ({worst:.0f})"
