"""FedAvg: one model for everybody, averaged on a server."""

from typing import Unpack

from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, Rate, Training, Weighting, method
from .server import Server, federated


@method()
def fedavg(
    p: Problem,
    t: Training,
    *,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    outer_lr: Rate = 1.0,
    **options: Unpack[Options],
) -> Program[Server]:
    """FedAvg: one model for everybody, averaged on a server.

    x_i <- local(x) for i in S;   x <- x + outer_lr (sum_S q_i x_i - x)

    >>> fedavg(lr=0.05).settings["lr"]
    0.05

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017,
    Algorithm 1.
    Differs from the paper in: the local steps, which have momentum 0.9, weight decay 5e-4, clipping at 10 and a
    decaying rate unless told otherwise (DFedAlt's experiments; plain SGD in the paper), and the server's step size,
    which is 1 there.
    """
    return federated(p, [Phase(p.parameters, t.amount, t.lr)], t, p.names, participation, weighting, outer_lr)
