"""What is measured where clients lie, and the row that all places together make of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.schema import Row
from ..core.tensors import Tensors
from ..data import Federation
from ..data.batches import Integers
from .accuracy import Correct
from .rows import Columns, accuracy_row, unmeasured


class ShardMeasures(NamedTuple):
    """What the clients of one place did in a round, and what is measured of them."""

    local_clients: Integers  # who lies there
    cohort: Integers  # who of them took part
    loss: Tensor  # [m] of the cohort
    steps: Tensor  # [m]
    flops: int
    forward: int  # FLOPs of one sample's forward pass, over the cohort
    seconds: float
    sent: Any  # the traffic of everybody, from one place
    distance: float | None  # to the consensus, the mean over who lies there
    accuracies: Tensors | None  # of all who lie there, by protocol
    right: Correct | None  # answers of the consensus
    recorded: dict[str, float]


def joined(
    parts: Sequence[ShardMeasures], t: int, federation: Federation, finetuned: bool
) -> tuple[Tensors | None, Row]:
    """([n] every client's accuracies by protocol, the row of round ``t``)."""
    accuracies = _accuracies(parts)
    loss, steps = (torch.cat([getattr(p, name) for p in parts]) for name in ("loss", "steps"))
    order = torch.from_numpy(np.argsort(np.concatenate([p.cohort for p in parts])))
    known = loss[order][steps[order] > 0]
    sent = next(p.sent for p in parts if p.sent is not None)
    row: Any = {  # columns that depend on the protocol and on what is recorded, among those of a Row
        "round": t + 1,
        **_accuracy_row(parts, accuracies, federation, finetuned),
        "train_loss": float(known.mean()) if len(known) else None,
        "consensus_distance": _distance(parts),
        **{k: v for p in parts for k, v in p.recorded.items()},
        "bytes_sent": sent.bytes,
        "parameters_sent": sent.parameters,
        "messages_sent": sent.messages,
        "busiest_bytes_up": sent.busiest_up,
        "busiest_bytes_down": sent.busiest_down,
        "flops": sum(p.flops for p in parts),
        "forward_flops": sum(p.forward for p in parts),
        "seconds": max(p.seconds for p in parts),
    }
    return accuracies, row


def whole(parts: Sequence[tuple[Integers, Tensor]]) -> Tensor:
    """[n, ...] what every client has, of what the clients of all places have."""
    order = np.argsort(np.concatenate([here for here, _ in parts]))
    return torch.cat([values for _, values in parts])[torch.from_numpy(order)]


def _accuracies(parts: Sequence[ShardMeasures]) -> Tensors | None:
    if parts[0].accuracies is None:
        return None
    return {k: whole([(p.local_clients, (p.accuracies or {})[k]) for p in parts]) for k in parts[0].accuracies}


def _accuracy_row(
    parts: Sequence[ShardMeasures], accuracies: Tensors | None, federation: Federation, finetuned: bool
) -> Columns:
    """The accuracies of a round over the clients, and that of the one model they agree on."""
    if accuracies is None:
        return unmeasured(finetuned)
    over_clients = {k: v for p, each in accuracies.items() for k, v in accuracy_row(p, each).items()}
    return {**over_clients, **_global(parts, federation)}


def _global(parts: Sequence[ShardMeasures], federation: Federation) -> Columns:
    """The one model's accuracy on all test samples, and the mean over the clients of that on each one's own."""
    answers = federation.test_y[:1].numel()
    known = [p.right for p in parts if p.right is not None]
    each = whole([(p.local_clients, right.each) for p, right in zip(parts, known, strict=True)])
    sizes = torch.tensor([len(own) for own in federation.test], dtype=torch.float64) * answers
    return {
        "global_accuracy": sum(right.together for right in known) / federation.test_y.numel(),
        "global_accuracy_local": float((each / sizes).nanmean()),
    }


def _distance(parts: Sequence[ShardMeasures]) -> float | None:
    """The mean over all clients."""
    if parts[0].distance is None:
        return None
    if len(parts) == 1:
        return parts[0].distance
    clients = sum(len(p.local_clients) for p in parts)
    return sum((p.distance or 0.0) * len(p.local_clients) for p in parts) / clients
