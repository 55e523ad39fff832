"""FedSAM: FedAvg with sharpness-aware steps."""

from typing import Unpack

from ..local.corrections import sam as sharpness_aware
from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, Rate, SamForm, Training, Weighting, method
from .options import FLAT
from .server import Server, federated


@method(FLAT._replace(weight_decay=0.0))
def fedsam(
    p: Problem,
    t: Training,
    *,
    rho: Rate = 0.05,
    sam: SamForm = "plain",
    sam_eta: Rate = 0.0,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    outer_lr: Rate = 1.0,
    **options: Unpack[Options],
) -> Program[Server]:
    """FedSAM: FedAvg with sharpness-aware steps.

    x_i <- local(x) along grad F_i(x + rho g/|g|) for i in S;   x <- x + outer_lr (sum_S q_i x_i - x)

    >>> fedsam().settings["weight_decay"]
    0.0

    Reference: Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", 2022.
    Differs from the paper in: the constants, which are those of DFedSAM's experiments (no momentum, no weight
    decay, no clipping, rates that decay by 0.998 per round).
    """
    phase = Phase(p.parameters, t.amount, t.lr, sharpness_aware(rho, sam, sam_eta))
    return federated(p, [phase], t, p.names, participation, weighting, outer_lr)
