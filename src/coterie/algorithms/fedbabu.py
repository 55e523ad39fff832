"""FedBABU: a body trained against a head that nobody trains, and fine-tuning when it is measured."""

from typing import Unpack

from ..local.steps import Phase
from .method import Options, Participation, Patterns, Problem, Program, Training, Weighting, method
from .server import Server, federated


# On small data it tunes as fast as it trains.
@method(Training(weight_decay=0.0, finetune_epochs=5, finetune_lr=0.001), presets={"small": {"finetune_lr": None}})
def fedbabu(
    p: Problem,
    t: Training,
    *,
    personal: Patterns = "head",
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    **options: Unpack[Options],
) -> Program[Server]:
    """FedBABU: the body is trained together, the head stays as it was drawn; whoever deploys it fine-tunes a copy.

    u_i <- local(u; v_0 frozen) for i in S;   u <- sum_S q_i u_i;   measured: local((u, v_0)) over finetune_epochs

    The accuracies after aggregation and after local training are those of the untrained head; the one after
    fine-tuning, 5 epochs at 0.001 unless told otherwise, is the method's. It has the momentum of training, 0.9 as in
    the released code, unless ``finetune_momentum`` is given. ``run.clients`` are the fine-tuned models.

    Args:
        personal: The head, which stays as it was drawn: "head" or name patterns.

    >>> fedbabu().settings["weight_decay"]
    0.0

    Reference: Oh, Kim, Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", 2022.
    Differs from the paper in: the rate, which decays by ``lr_decay`` per round unless ``lr_milestones=(0.5, 0.75)``
    divides it by 10 at a half and three quarters of the rounds, as the released code does; that code also fine-tunes
    from its best checkpoint instead of the last model.
    """
    head = p.personal(personal)
    body = Phase(p.parameters - head, t.amount, t.lr)
    return federated(p, [body], t, p.names - head, participation, weighting)
