"""FedAvg-FT: FedAvg, and every client fine-tunes the server's model before it uses it."""

from typing import Unpack

from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, Training, Weighting, method
from .server import Server, federated


@method(Training(finetune_epochs=5))
def fedavg_ft(
    p: Problem,
    t: Training,
    *,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Server]:
    """FedAvg-FT: FedAvg, and every client fine-tunes a copy of the server's model on its own samples.

    x_i <- local(x) for i in S;   x <- sum_S q_i x_i;   measured: local(x) over finetune_epochs

    The strongest simple baseline: a personalized method should beat it. Training is that of FedAvg; the metric after
    fine-tuning is the method's, and ``run.clients`` are the fine-tuned models.

    >>> fedavg_ft().settings["finetune_epochs"]
    5

    Reference: Collins, Hassani, Mokhtari, Shakkottai, "FedAvg with Fine Tuning: Local Updates Lead to Representation
    Learning", 2022; Cheng, Chadha, Duchi, "Fine-tuning is Fine in Federated Learning", 2021.
    Differs from the paper in: the fine-tuning, which has 5 epochs and the rate and momentum of training unless told
    otherwise, as in the code released with DisPFL, and no weight decay or clipping unless these are given for it
    (``finetune_weight_decay``, ``finetune_clip``); and the local steps, which are those of ``fedavg``.
    """
    return federated(p, [Phase(p.parameters, t.amount, t.lr)], t, p.names, participation, weighting)
