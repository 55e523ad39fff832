"""One row per round, of what the shards measure, and the summary of a run. Accuracies name their protocol."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.annotations import LARGEST
from ..core.schema import AccuracySummary, Config, Row, Summary, number
from ..core.tensors import Tensors
from ..data import Federation
from ..data.batches import Integers
from .evaluate import Correct

ACCURACIES = ("after_mix", "after_train")
FINETUNED = "after_finetune"  # beside those, where a method fine-tunes for the measurement
GLOBAL = ("global_accuracy", "global_accuracy_local")  # of one model: on all test samples, on each client's own (mean)
TARGETS = (50, 60, 70, 80, 90, 95)

Columns = dict[str, float | None]
"""Some columns of a row."""


class ShardMeasures(NamedTuple):
    """What the clients of one shard did in a round, and what is measured of them."""

    local_clients: Integers  # whose shard it is
    cohort: Integers  # who of them took part
    loss: Tensor  # [m] of the cohort
    steps: Tensor  # [m]
    flops: int
    forward: int  # FLOPs of one sample's forward pass, over the cohort
    seconds: float
    sent: Any  # the traffic of everybody, counted by one shard
    distance: float | None  # to the consensus, the mean over the local clients
    accuracies: Tensors | None  # of all local clients, by protocol
    right: Correct | None  # answers of the consensus
    recorded: dict[str, float]
    evaluation_seconds: float = 0.0  # known when all of this is measured


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


def joined(
    parts: Sequence[ShardMeasures], t: int, federation: Federation, finetuned: bool
) -> tuple[Tensors | None, Row]:
    """Return every client's accuracies [n] by protocol, and the row of round ``t``, from the measures of all shards."""
    first, clients = parts[0], [len(p.local_clients) for p in parts]
    accuracies = None
    if first.accuracies is not None:
        accuracies = {k: whole([(p.local_clients, (p.accuracies or {})[k]) for p in parts]) for k in first.accuracies}
    distance = first.distance
    if distance is not None and len(parts) > 1:
        distance = sum((p.distance or 0.0) * n for p, n in zip(parts, clients, strict=True)) / sum(clients)
    loss, steps = (torch.cat([getattr(p, name) for p in parts]) for name in ("loss", "steps"))
    order = torch.from_numpy(np.argsort(np.concatenate([p.cohort for p in parts])))
    known = loss[order][steps[order] > 0]
    sent = next(p.sent for p in parts if p.sent is not None).totals
    row: Any = {  # columns that depend on the protocol and on what is recorded, among those of a Row
        "round": t + 1,
        **(unmeasured(finetuned) if accuracies is None else _accuracy_columns(parts, accuracies, federation)),
        "train_loss": float(known.mean()) if len(known) else None,
        "consensus_distance": distance if distance is not None and distance <= LARGEST else None,
        # As a perplexity may, a measure can grow beyond all numbers that a file holds.
        **{k: v if abs(v) <= LARGEST else None for p in parts for k, v in p.recorded.items()},
        "bytes_sent": sent.bytes,
        "parameters_sent": sent.parameters,
        "messages_sent": sent.messages,
        "busiest_bytes_up": sent.busiest_up,
        "busiest_bytes_down": sent.busiest_down,
        "flops": sum(p.flops for p in parts),
        "forward_flops": sum(p.forward for p in parts),
        "seconds": max(p.seconds for p in parts),
        "evaluation_seconds": max(p.evaluation_seconds for p in parts),
    }
    return accuracies, row


def whole(parts: Sequence[tuple[Integers, Tensor]]) -> Tensor:
    """Put together what the clients of all shards have: [n, ...] in the order of the clients."""
    order = np.argsort(np.concatenate([clients for clients, _ in parts]))
    return torch.cat([values for _, values in parts])[torch.from_numpy(order)]


def _accuracy_columns(parts: Sequence[ShardMeasures], accuracies: Tensors, federation: Federation) -> Columns:
    """The accuracies over the clients, and those of the one model they agree on."""
    answers = federation.test_y[:1].numel()
    right = [(p.local_clients, p.right) for p in parts if p.right is not None]
    each = whole([(clients, correct.each) for clients, correct in right])
    sizes = torch.tensor([len(own) for own in federation.test], dtype=torch.float64) * answers
    return {
        **{k: v for protocol, values in accuracies.items() for k, v in accuracy_row(protocol, values).items()},
        "global_accuracy": sum(correct.together for _, correct in right) / federation.test_y.numel(),
        "global_accuracy_local": float((each / sizes).nanmean()),
    }


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
