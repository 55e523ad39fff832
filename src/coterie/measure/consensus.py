"""How far apart the clients are."""

from collections.abc import Collection

import torch

from ..tensors import Tensors, floating, split


def consensus_distance(models: Tensors, shared: Collection[str]) -> float | None:
    """(1/n) sum_i |u_i - mean u|^2 over the shared part, in float64; None where nothing is shared.

    >>> consensus_distance({"u": torch.tensor([[1.0], [3.0]])}, {"u"})
    1.0
    """
    u = floating(split(models, shared)[0])
    if not u:
        return None
    total = 0.0
    for v in u.values():
        if v.stride(0) == 0:  # one tensor shown n times, as around a server: no distance, and nothing to copy
            continue
        offset = v.to(torch.float64) - v[:1]  # from the first client: exactly zero where all are equal
        total += float((offset - offset.mean(0)).square().sum()) / len(v)
    return total


def averaged(models: Tensors) -> Tensors:
    """One model: the mean over the clients; integer buffers are the first client's."""
    return {k: v.mean(0) if v.is_floating_point() else v[0] for k, v in models.items()}
