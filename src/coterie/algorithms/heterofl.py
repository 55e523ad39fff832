"""HeteroFL: a client with less capacity trains the first channels of every layer."""

from typing import Unpack

from ..submodels import prefix
from .base import Problem, Program
from .method import method
from .options import LMT_PAPER, Options, Participation, Training, Weighting, refuse_persistent
from .server import Server
from .widths import Trick, by_width


@method(LMT_PAPER, check=refuse_persistent, form="width")
def heterofl(
    p: Problem,
    t: Training,
    *,
    capacities: str = "b4-b3-b2",
    scaler: bool = False,
    mask_ce: bool = False,
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    **options: Unpack[Options],
) -> Program[Server]:
    """HeteroFL: a client with less capacity trains the first channels of every layer.

    x_i <- local(the first ceil(rate_i C) channels of x) for i in S;   x <- entry by entry the mean over who holds it

    A narrow client deploys its own channels of the mixed model; the global model is the whole one.

    Args:
        capacities: Rates by client, "b4-b3-b2" (1, 3/4, 1/2 in equal shares), "1-0.5" or "b4x15-b2x5", or for everybody
            one after the other, "b1@250-b2@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds).
        scaler: Whether inputs are divided by the rate before every norm, in training only.
        mask_ce: Whether the logits of classes that a client does not have are 0 in training, and their rows of the last
            layer are averaged without it.
        participation: Who takes part in a round: a fraction of the clients, or a count.
        weighting: How much a client counts: "size", by its samples, or "uniform".

    >>> heterofl(capacities="1-0.5").settings["weighting"]
    'uniform'

    Reference: Diao, Ding, Tarokh, "HeteroFL", 2021.
    Differs from the paper in: neither scaler nor mask_ce unless asked, one epoch and no clipping, as in FedLMT's
    experiments.
    """
    trick = Trick(scaler, mask_ce)
    return by_width(p, t, lambda r, client: prefix, capacities, trick, participation, weighting)
