"""DFedAvgM: DFedAvg with momentum."""

from typing import Unpack

from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, TopologyLike, Training, method
from .peers import Peers, decentralized


@method()
def dfedavgm(
    p: Problem,
    t: Training,
    *,
    topology: TopologyLike = "random:10",
    participation: Participation = 1.0,
    **options: Unpack[Options],
) -> Program[Peers]:
    """DFedAvgM: DFedAvg with momentum in the local steps, a fresh buffer every round.

    m <- momentum m + grad F_i(z), z <- z - lr m, from z = x_i and m = 0 in every round;   x_i <- sum_j W[i, j] z_j

    >>> dfedavgm(topology="ring").settings["momentum"]
    0.9

    Reference: Sun, Li, Wang, "Decentralized Federated Averaging", 2022, Algorithm 1.
    Differs from the paper in: what dfedavg differs in.
    """
    return decentralized(
        p, [Phase(p.parameters, t.amount, t.lr)], t, topology, shared=p.names, participation=participation
    )
