"""FedBABU: a body trained against a head that nobody trains, and fine-tuning when it is measured."""

from typing import Unpack

from ..batches import Amount
from ..local import Phase
from ..split import Patterns
from ..tensors import Tensors
from .base import Algorithm, Problem, Program, Round
from .families import Server, federated, train_cohort
from .options import Options, Training, check_range
from .server import check_server

FINETUNE_STREAM = 3  # batches of the fine-tuning


def fedbabu(
    *,
    personal: Patterns = "head",
    participation: float | int = 0.1,
    weighting: str = "uniform",
    finetune_epochs: int = 5,
    finetune_lr: float = 0.001,
    **options: Unpack[Options],
) -> Algorithm:
    """FedBABU: the body is trained together, the head stays as it was drawn; whoever deploys it fine-tunes a copy.

    u_i <- local(u; v_0 held) for i in S;   u <- sum_S q_i u_i;   measured: local((u, v_0)) over finetune_epochs

    The accuracies after mixing and after training are those of the untrained head; the one after fine-tuning is the
    method's. ``run.clients`` are the fine-tuned models.

    >>> fedbabu().settings["weight_decay"]
    0.0

    Reference: Oh, Kim, Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", 2022.
    Differs from the paper in: the rate, which decays by ``lr_decay`` a round unless ``lr_milestones=(0.5, 0.75)``
    divides it by 10 at a half and three quarters of the rounds, as the released code does; that code also fine-tunes
    from its best checkpoint instead of the last model.
    """
    check_server(participation, weighting, 1.0)
    check_range("finetune_epochs", finetune_epochs, 0, float("inf"))
    check_range("finetune_lr", finetune_lr, 0, float("inf"))
    t = Training(weight_decay=0.0).given(options)

    def bind(p: Problem) -> Program[Server]:
        head = p.personal(personal)
        body = Phase(p.parameters - head, t.amount, t.lr)
        program = federated(p, [body], t, p.names - head, participation, weighting)
        tuning = Training(lr=finetune_lr, lr_decay=1.0, weight_decay=0.0, clip=None, batch_size=t.batch_size)
        everything = Phase(p.parameters, Amount(epochs=finetune_epochs), finetune_lr, FINETUNE_STREAM)

        def finetune(s: Server, r: Round) -> Tensors:
            return train_cohort(p, [everything], tuning, program.models(s), {}, r, p.names).models

        return program._replace(finetune=finetune)

    server = {"personal": personal, "participation": participation, "weighting": weighting}
    tuning = {"finetune_epochs": finetune_epochs, "finetune_lr": finetune_lr}
    return Algorithm("fedbabu", {**server, **tuning, **t._asdict()}, bind)
