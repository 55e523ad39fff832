"""FedRolex: HeteroFL with a window of channels that moves on."""

from functools import partial
from typing import Literal, Unpack

from ..submodels import window
from .method import Options, Participation, Problem, Program, Training, Weighting, method
from .options import LMT_PAPER, refuse_for_parts
from .server import Server
from .widths import Trick, by_width, cuttable


@method(LMT_PAPER, check=refuse_for_parts, adapt=cuttable, submodel="width")
def fedrolex(
    p: Problem,
    t: Training,
    *,
    capacities: str = "b4-b3-b2",
    direction: Literal[1, -1] = 1,
    scaler: bool = False,
    mask_ce: bool = False,
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    **options: Unpack[Options],
) -> Program[Server]:
    """FedRolex: HeteroFL with a window of channels that moves on by one in every round.

    x_i <- local(channels t, t + 1, .. t + ceil(rate_i C) - 1 mod C of x) for i in S, in round t
    x <- entry by entry the mean over who holds it

    After round t a client deploys the window of that round.

    Args:
        direction: Where the window moves: 1 as in the paper, -1 as in the released code.

    >>> fedrolex().settings["direction"]
    1

    Reference: Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
    2022.
    Differs from the paper in: what heterofl differs in. The released code rolls the other way (direction=-1) and
    weights entries of norms and linear layers by how often they were updated; here every entry is a plain mean.
    """
    trick = Trick(scaler, mask_ce)
    rolling = lambda r, client: partial(window, t=direction * r.index)  # noqa: E731
    return by_width(p, t, rolling, capacities, trick, participation, weighting)
