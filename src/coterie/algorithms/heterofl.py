"""HeteroFL: a client with less capacity trains the first channels of every layer."""

from typing import Unpack

from ..submodels import prefix
from .method import Options, Participation, Problem, Program, Training, Weighting, method
from .options import LMT_PAPER, refuse_for_parts
from .server import Server
from .widths import Trick, by_width, cuttable


@method(LMT_PAPER, check=refuse_for_parts, adapt=cuttable, submodel="width")
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

    >>> heterofl(capacities="1-0.5").settings["weighting"]
    'uniform'

    Reference: Diao, Ding, Tarokh, "HeteroFL", 2021.
    Differs from the paper in: neither scaler nor mask_ce unless asked, one epoch and no clipping, as in FedLMT's
    experiments.
    """
    trick = Trick(scaler, mask_ce)
    return by_width(p, t, lambda r, client: prefix, capacities, trick, participation, weighting)
