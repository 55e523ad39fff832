"""What takes the place of the second formula where members may lie: three rules of ONE receiver.

    plain      x_i  <-  x_i + sum_j w_j (x_j - x_i)                       whoever is far away moves the receiver most
    trimmed    at every entry the mean of what is left without the largest and the smallest values
    median     at every entry the middle one of all values
    clip       x_i  <-  x_i + sum_j w_j s_j (x_j - x_i)                   nobody moves it more than those nearby do

x_i is what the receiver has, x_j what it has heard, w_j their weights W[i, j]; the receiver itself weighs what they
leave of 1. It knows that it does not lie itself, so its own value counts among the others, and wherever the values
leave open which is right, it is the one nearest to its own. So with one neighbor, which may be the liar, nothing moves;
and if all have the same, it stays as it is, to the last bit.

Liars may have 1/4 of the weight, or as much as the heaviest neighbor, with ``trimmed``, and less than 1/2 with the
others. Then every entry lies between values of those who do not lie (trimmed, median), or a liar moves the model by no
more than its weight times the distance of somebody who does not lie (clip). Who weighs more than all others together
decides alone. A server is a receiver that weighs nothing itself and has its old model.
"""

import torch
from torch import Tensor

from ..core.tensors import Tensors
from ..engines.base import MixingRule

TRIMMED = 1 / 4  # of the weight, at each end: what is left is the interquartile mean
ROUNDING = 1e-6  # differences of weights that are none


def trimmed(own: Tensors, weights: Tensor, heard: Tensors) -> Tensors:
    """Return at every entry the mean of the weight between beta and 1 - beta of the values in ascending order.

    beta is 1/4, or the weight of the heaviest neighbor where that is more, so that no neighbor is left alone at an
    end; one that lies across beta counts by what is inside. Where nothing is inside, the median is taken.

    >>> trimmed({"a": torch.zeros(1)}, torch.full((3,), 0.25), {"a": torch.tensor([[1.0], [2.0], [100.0]])})
    {'a': tensor([1.5000])}

    Reference: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018,
    Definition 2, for equal weights and a server; Fang, Yang, Bajwa, "BRIDGE: Byzantine-resilient Decentralized
    Gradient Descent", 2022, between peers.
    Differs from the papers in: values have weights, and beta follows from them instead of a number of liars that
    somebody would have to know. BRIDGE trims the neighbors alone and adds the own value, which leaves nobody's but
    the own on a ring.
    """
    beta = torch.cat([weights.new_full((1,), TRIMMED), weights]).amax()

    def entry(x: Tensor, others: Tensor) -> Tensor:
        values, ends = ascending(x, weights, others)
        begins = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        inside = ends.minimum(1 - beta.to(ends)) - begins.maximum(beta.to(ends))
        inside = inside.where(inside > ROUNDING, 0.0)
        total = inside.sum(0)
        moved = (inside * (values - x)).sum(0) / total.where(total > 0, 1.0)
        return torch.where(total > 0, (x + moved).to(x), middle(x, values, ends))

    return {k: entry(own[k], v) for k, v in heard.items()}


def median(own: Tensors, weights: Tensor, heard: Tensors) -> Tensors:
    """Return at every entry the value with no more than half of the weight below it and no more than half above.

    Where there are several, as between the middle two of four equal weights, it is the one nearest to the own value.

    >>> median({"a": torch.zeros(1)}, torch.full((2,), 1 / 3), {"a": torch.tensor([[2.0], [100.0]])})
    {'a': tensor([2.])}

    Reference: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018,
    Definition 1.
    Differs from the paper in: values have weights, and of two middle values it takes no mean.
    """
    return {k: middle(own[k], *ascending(own[k], weights, v)) for k, v in heard.items()}


def clip(own: Tensors, weights: Tensor, heard: Tensors) -> Tensors:
    """Return what ``clipped`` makes of it with the radius in which half of the weight lies, the own included at 0.

    >>> clip({"a": torch.zeros(1)}, torch.full((2,), 0.25), {"a": torch.tensor([[2.0], [100.0]])})
    {'a': tensor([0.])}
    >>> clip({"a": torch.zeros(1)}, torch.full((4,), 0.2), {"a": torch.tensor([[1.0], [2.0], [3.0], [-9.0]])})
    {'a': tensor([0.6000])}

    Reference: He, Karimireddy, Jaggi, "Byzantine-Robust Decentralized Learning via ClippedGossip", 2022, Algorithm 1.
    Differs from the paper in: the radius. The theory's needs to know who does not lie; the released code takes the
    second largest distance, which holds against one liar.
    """
    far = distances(own, heard)
    values, ends = ascending(far.new_zeros(()), weights, far)
    return clipped(own, weights, heard, first(values, ends >= 0.5 - ROUNDING))


RULES: dict[str, MixingRule] = {"trimmed": trimmed, "median": median, "clip": clip}


def clipped(own: Tensors, weights: Tensor, heard: Tensors, tau: Tensor) -> Tensors:
    """Return x_i + sum_j w_j s_j (x_j - x_i) with s_j = min(1, tau / |x_j - x_i|), the length of all tensors together.

    >>> x = {"a": torch.tensor([[2.0], [8.0]])}
    >>> clipped({"a": torch.zeros(1)}, torch.full((2,), 0.25), x, torch.tensor(4.0))
    {'a': tensor([1.5000])}
    """
    far = distances(own, heard)
    counts = weights.to(far) * (tau / far.where(far > 0, 1.0)).clamp(max=1)

    def entry(x: Tensor, others: Tensor) -> Tensor:
        return x + (counts.to(x).view(-1, *[1] * x.dim()) * (others - x)).sum(0)

    return {k: entry(own[k], v) for k, v in heard.items()}


def distances(own: Tensors, heard: Tensors) -> Tensor:
    """Return [k] how far each of the heard models is from the own, over all tensors together."""
    return torch.stack([(v - own[k])[:, None].square().flatten(1).sum(1) for k, v in heard.items()]).sum(0).sqrt()


def ascending(own: Tensor, weights: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
    """Return at every entry all values in ascending order, the own among them, and the weight up to each of them."""
    shares = torch.cat([(1 - weights.sum(0, keepdim=True)).clamp(min=0), weights])
    values, order = torch.cat([own[None], heard]).sort(0)
    kind = torch.promote_types(own.dtype, torch.float32)
    return values, shares.to(kind)[order].cumsum(0)


def middle(own: Tensor, values: Tensor, ends: Tensor) -> Tensor:
    """Return at every entry the weighted median that is nearest to the own value."""
    return own.clamp(first(values, ends >= 0.5 - ROUNDING), first(values, ends > 0.5 + ROUNDING))


def first(values: Tensor, reached: Tensor) -> Tensor:
    """Return the smallest of the values that are marked."""
    return values.masked_fill(~reached, torch.inf).amin(0)
