"""FedPer: a shared body and personal heads."""

from typing import Unpack

from ..local.steps import Phase
from .method import Options, Participation, Patterns, Problem, Program, Training, Weighting, method
from .server import Server, federated


@method()
def fedper(
    p: Problem,
    t: Training,
    *,
    personal: Patterns = "head",
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Server]:
    """FedPer (FedSim): a shared body and personal heads, trained together in one phase.

    (u_i, v_i) <- local(u, v_i) for i in S;   u <- sum_S q_i u_i

    >>> fedper(personal="head").name
    'fedper'

    Reference: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
    Differs from the paper in: clients are sampled as in FedAvg (participation=1.0 for everybody), the personal part
    is the last linear layer unless ``personal`` names another, and the local steps are those of DFedAlt's
    experiments.
    """
    shared = p.names - p.personal(personal)
    return federated(p, [Phase(p.parameters, t.amount, t.lr)], t, shared, participation, weighting)
