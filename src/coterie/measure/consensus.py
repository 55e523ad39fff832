"""How far apart the clients are."""

from collections.abc import Collection

import torch

from ..tensors import Tensors, floating, split


def consensus_distance(models: Tensors, shared: Collection[str], centre: Tensors | None = None) -> float | None:
    """(1/n) sum_i |u_i - c|^2 over the shared part, in float64; None where nothing is shared.

    ``centre``: c, where it is another point than the mean of the u_i.

    >>> consensus_distance({"u": torch.tensor([[1.0], [3.0]])}, {"u"})
    1.0
    """
    u = floating(split(models, shared)[0])
    if not u:
        return None
    total = 0.0
    for k, v in u.items():
        if centre is None and v.stride(0) == 0:  # one tensor shown n times, as around a server: nothing to copy
            continue
        offset = v.to(torch.float64) - v[:1]  # from the first client: exactly zero where all are equal
        middle = offset.mean(0) if centre is None else centre[k].to(torch.float64) - v[0]
        total += float((offset - middle).square().sum()) / len(v)
    return total


def averaged(models: Tensors) -> Tensors:
    """One model: the mean over the clients; integer buffers are the first client's."""
    return {k: v.mean(0) if v.is_floating_point() else v[0] for k, v in models.items()}
