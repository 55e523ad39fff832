"""How far apart the clients are."""

from collections.abc import Collection

import torch
from torch import Tensor

from ..core.tensors import Tensors, floating, split

AT_ONCE = {"cpu": 2**20, "cuda": 2**26}  # numbers that are looked at together: they stay in the cache, or fill a GPU


def consensus_distance(models: Tensors, shared: Collection[str], center: Tensors | None = None) -> float | None:
    """Return (1/n) sum_i |u_i - c|^2 over the shared part, summed in float64; None where nothing is shared.

    ``center``: c, where it is another point than the mean of the u_i.

    >>> consensus_distance({"u": torch.tensor([[1.0], [3.0]])}, {"u"})
    1.0
    """
    u = floating(split(models, shared)[0])
    if not u:
        return None
    return sum(_spread(v, None if center is None else center[k]) for k, v in u.items())


def _spread(v: Tensor, center: Tensor | None) -> float:
    """Return the mean squared distance of one tensor, some numbers at a time: a copy of all of them is too much.

    It works on differences to the first client: those of near numbers are exact, and zero where all are equal.
    """
    if center is None and v.stride(0) == 0:  # one tensor shown n times, as around a server: nothing to copy
        return 0.0
    flat, kind = v.reshape(len(v), -1), torch.promote_types(v.dtype, torch.float32)
    width = max(1, AT_ONCE[v.device.type] // len(v))
    total = torch.zeros((), dtype=torch.float64, device=v.device)
    for start in range(0, flat.shape[1], width):
        here = slice(start, start + width)
        some = flat[:, here].to(kind)
        offset = some - some[0]
        middle = offset.mean(0) if center is None else center.reshape(-1)[here].to(kind) - some[0]
        total += offset.sub_(middle).square_().sum(dtype=torch.float64)
    return float(total) / len(v)


def averaged(models: Tensors) -> Tensors:
    """Return the mean model of the clients; integer buffers are the first client's."""
    return {k: v.mean(0) if v.is_floating_point() else v[0] for k, v in models.items()}
