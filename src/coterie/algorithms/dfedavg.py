"""DFedAvg: FedAvg between peers."""

from typing import Unpack

from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, TopologyLike, Training, method
from .peers import Peers, decentralized


@method(Training(momentum=0.0))
def dfedavg(
    p: Problem,
    t: Training,
    *,
    topology: TopologyLike = "random:10",
    participation: Participation = 1.0,
    **options: Unpack[Options],
) -> Program[Peers]:
    """DFedAvg: FedAvg between peers.

    z_i <- local(x_i);   x_i <- sum_j W[i, j] z_j

    >>> dfedavg(topology="ring").settings["momentum"]
    0.0

    Reference: Sun, Li, Wang, "Decentralized Federated Averaging", 2022, Algorithm 1 without momentum.
    Differs from the paper in: the default graph, a new one of equal degrees every round (the paper's is fixed), and
    weight decay, clipping and decay of the rate, which are those of DFedAlt's experiments. ``quantize`` rounds the
    whole message and carries the error on; the paper's quantized form rounds the difference to the last model.
    """
    return decentralized(
        p, [Phase(p.parameters, t.amount, t.lr)], t, topology, shared=p.names, participation=participation
    )
