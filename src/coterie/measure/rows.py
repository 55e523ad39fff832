"""Rows a round and the summary of a run. Every accuracy carries its protocol in its name."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

ACCURACIES = ("after_mix", "after_train")
FINETUNED = "after_finetune"  # beside those, where a method fine-tunes for the measurement
GLOBAL = ("global_accuracy", "global_accuracy_local")  # of one model: on all test samples, on each client's own (mean)
TARGETS = (50, 60, 70, 80, 90, 95)

Row = dict[str, Any]


def accuracy_row(protocol: str, accuracies: Tensor | None) -> Row:
    """Mean, spread, worst client and tenth percentile over the clients that have test samples."""
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


def unmeasured(finetuned: bool) -> Row:
    """The accuracies of a round without evaluation."""
    protocols = (*ACCURACIES, FINETUNED) if finetuned else ACCURACIES
    return {k: v for p in protocols for k, v in accuracy_row(p, None).items()} | dict.fromkeys(GLOBAL)


def summarize(config: Mapping[str, Any], history: Sequence[Row]) -> dict[str, Any]:
    """What a run comes to: accuracies by protocol, totals of what it sent and spent."""
    measured = [row for row in history if row["global_accuracy"] is not None]
    finetuned = any(f"personal_accuracy_{FINETUNED}" in row for row in history)
    protocols = (*ACCURACIES, FINETUNED) if finetuned else ACCURACIES
    return {
        "method": config["method"],
        "rounds": len(history),
        "seed": config["seed"],
        "engine": config["engine"],
        "personal_accuracy": {p: _accuracy(measured, f"personal_accuracy_{p}") for p in protocols},
        **{k: measured[-1].get(k) if measured else None for k in GLOBAL},
        "train_loss": history[-1]["train_loss"] if history else None,
        "consensus_distance": history[-1]["consensus_distance"] if history else None,
        **{k: sum(row[k] for row in history) for k in ("bytes_sent", "parameters_sent", "flops", "seconds")},
        **{k: max((row[k] for row in history), default=0) for k in ("busiest_bytes_up", "busiest_bytes_down")},
        "rounds_to": {str(t): rounds_to(measured, t / 100) for t in TARGETS},
    }


def _accuracy(rows: Sequence[Row], name: str) -> dict[str, float] | None:
    """The last round's mean, worst client and spread; the best mean; the mean over the last tenth of the rounds."""
    if not rows:
        return None
    means = [row[name] for row in rows]
    last = means[-max(1, round(len(means) / 10)) :]
    return {
        "final": means[-1],
        "best": max(means),
        "last_tenth": sum(last) / len(last),
        "worst": rows[-1][f"{name}_worst"],
        "std": rows[-1][f"{name}_std"],
    }


def rounds_to(rows: Sequence[Row], target: float) -> int | None:
    """The first measured round whose mean personal accuracy after mixing reaches the target."""
    known = ((row["round"], row["personal_accuracy_after_mix"]) for row in rows)
    return next((t for t, accuracy in known if accuracy is not None and accuracy >= target), None)
