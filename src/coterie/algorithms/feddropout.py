"""FedDropout: HeteroFL with channels drawn anew."""

from functools import partial
from typing import Unpack

import torch

from ..core import rng
from ..submodels import permuted, random
from .method import Options, Participation, Problem, Program, Round, Training, Weighting, method
from .options import LMT_PAPER, refuse_for_parts
from .server import Server
from .widths import Channels, Trick, by_width, cuttable


@method(LMT_PAPER, check=refuse_for_parts, adapt=cuttable, submodel="width")
def feddropout(
    p: Problem,
    t: Training,
    *,
    capacities: str = "b4-b3-b2",
    aligned: bool = True,
    scaler: bool = False,
    mask_ce: bool = False,
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    **options: Unpack[Options],
) -> Program[Server]:
    """FedDropout: HeteroFL with channels drawn anew for every client and round.

    x_i <- local(ceil(rate_i C) channels of x, drawn for i in this round) for i in S
    x <- entry by entry the mean over who holds it

    After a round a client deploys the channels that were drawn for it in that round, whether it took part or not.

    Args:
        aligned: Whether all layers of one width keep the same channels. Otherwise every layer has channels of its own,
            in the order in which they are drawn, so that what a residual network adds are different ones, in a full
            model too; in attention queries, keys and values draw apart, and all heads alike.

    >>> feddropout().settings["capacities"]
    'b4-b3-b2'

    Reference: Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements",
    2018.
    Differs from the paper in: what heterofl differs in, and no compression beside (``quantize`` is one). FedLMT's
    tables were made with the code released with FedRolex, which draws channels layer by layer: aligned=False. There a
    network of b4 clients alone ends below FedAvg, which channels that stay aligned do not explain.
    """

    def drawn(r: Round, client: int) -> Channels:
        generator = torch.Generator().manual_seed(rng.key(r.seed, "window", r.index, client))
        return partial(random if aligned else permuted, generator=generator)

    return by_width(p, t, drawn, capacities, Trick(scaler, mask_ce, aligned), participation, weighting)
