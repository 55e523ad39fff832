"""FedProx: FedAvg whose clients are pulled back to the model they have received."""

from typing import Unpack

from ..local.corrections import proximal
from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, Rate, Training, Weighting, method
from .server import Server, federated


@method()
def fedprox(
    p: Problem,
    t: Training,
    *,
    mu: Rate = 0.01,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Server]:
    """FedProx: FedAvg with a proximal term around the model that a client has received.

    x_i <- local(x) along grad F_i(x_i) + mu (x_i - x) for i in S;   x <- sum_S q_i x_i

    Clients that are unequally fast may do unequally much: ``epochs=1,2,3,4,5``.

    Args:
        mu: How strongly a client is pulled back to the model it has received; 0 is FedAvg.

    >>> fedprox(mu=0.1).settings["mu"]
    0.1

    Reference: Li et al., "Federated Optimization in Heterogeneous Networks", 2020, Algorithm 2; the released code,
    litian96/FedProx, flearn/optimizer/pgd.py for the step and flearn/trainers/fedbase.py for the average.
    Differs from the paper in: clients are drawn with equal probabilities and weighed by their samples, as in the
    released code; the paper's Algorithm 2 draws them by their samples and weighs them equally. The local steps have
    momentum, weight decay, clipping and a decaying rate unless told otherwise, where the released code has plain SGD.
    """
    return federated(p, [Phase(p.parameters, t.amount, t.lr, proximal(mu))], t, p.names, participation, weighting)
