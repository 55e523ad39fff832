"""One row per round, and the summary of a run. Every accuracy carries its protocol in its name."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.schema import AccuracySummary, Config, Row, Summary, number

ACCURACIES = ("after_mix", "after_train")
FINETUNED = "after_finetune"  # beside those, where a method fine-tunes for the measurement
GLOBAL = ("global_accuracy", "global_accuracy_local")  # of one model: on all test samples, on each client's own (mean)
TARGETS = (50, 60, 70, 80, 90, 95)

Columns = dict[str, float | None]
"""Some columns of a row."""


def accuracy_row(protocol: str, accuracies: Tensor | None) -> Columns:
    """Return mean, spread, worst client and tenth percentile over the clients that have test samples."""
    name = f"personal_accuracy_{protocol}"
    known = None if accuracies is None else accuracies[~accuracies.isnan()]
    if known is None or not len(known):
        return {name: None, f"{name}_std": None, f"{name}_worst": None, f"{name}_p10": None}
    return {
        name: float(known.mean()),
        f"{name}_std": float(known.std(correction=0)),
        f"{name}_worst": float(known.min()),
        f"{name}_p10": float(torch.quantile(known, 0.1)),
    }


def unmeasured(finetuned: bool) -> Columns:
    """Return the accuracies of a round without evaluation."""
    protocols = (*ACCURACIES, FINETUNED) if finetuned else ACCURACIES
    return {k: v for p in protocols for k, v in accuracy_row(p, None).items()} | dict.fromkeys(GLOBAL)


def summarize(config: Config, history: Sequence[Row]) -> Summary:
    """Return what a run comes to: accuracies by protocol, totals of what it sent and spent."""
    measured = [row for row in history if row["global_accuracy"] is not None]
    finetuned = any(f"personal_accuracy_{FINETUNED}" in row for row in history)
    protocols = (*ACCURACIES, FINETUNED) if finetuned else ACCURACIES
    return {
        "method": config["method"],
        "rounds": len(history),
        "seed": config["seed"],
        "engine": config["engine"],
        "personal_accuracy": {p: _accuracy(measured, f"personal_accuracy_{p}") for p in protocols},
        "global_accuracy": measured[-1]["global_accuracy"] if measured else None,
        "global_accuracy_local": measured[-1]["global_accuracy_local"] if measured else None,
        "train_loss": history[-1]["train_loss"] if history else None,
        "consensus_distance": history[-1]["consensus_distance"] if history else None,
        "bytes_sent": sum(row["bytes_sent"] for row in history),
        "parameters_sent": sum(row["parameters_sent"] for row in history),
        "flops": sum(row["flops"] for row in history),
        "seconds": sum(row["seconds"] for row in history),
        "busiest_bytes_up": max((row["busiest_bytes_up"] for row in history), default=0),
        "busiest_bytes_down": max((row["busiest_bytes_down"] for row in history), default=0),
        "rounds_to": {str(t): rounds_to(measured, t / 100) for t in TARGETS},
    }


def _accuracy(rows: Sequence[Row], name: str) -> AccuracySummary | None:
    """Return an accuracy over the evaluated rounds; None where no client has test samples."""
    columns = (name, f"{name}_worst", f"{name}_std")
    means, worst, std = ([v for row in rows if (v := number(row, k)) is not None] for k in columns)
    if not means:
        return None
    last = means[-max(1, round(len(means) / 10)) :]
    return {
        "final": means[-1],
        "best": max(means),
        "last_tenth": sum(last) / len(last),
        "worst": worst[-1],
        "std": std[-1],
    }


def rounds_to(rows: Sequence[Row], target: float) -> int | None:
    """Return the first measured round whose mean personal accuracy after mixing reaches the target."""
    known = ((row["round"], row["personal_accuracy_after_mix"]) for row in rows)
    return next((t for t, accuracy in known if accuracy is not None and accuracy >= target), None)
