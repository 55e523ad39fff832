"""FedRep: first the head, then the body, with a server."""

from typing import Unpack

from ..data.batches import Amount
from ..local.steps import Phase
from .method import (
    Count,
    Epochs,
    OptimizerLike,
    Options,
    Participation,
    Patterns,
    Problem,
    Program,
    Rate,
    Training,
    Weighting,
    method,
)
from .server import Server, federated


@method()
def fedrep(
    p: Problem,
    t: Training,
    *,
    personal: Patterns = "head",
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    personal_lr: Rate = 0.1,
    personal_epochs: Epochs | None = 10,
    personal_steps: Count | None = None,
    personal_optimizer: OptimizerLike | None = None,
    **options: Unpack[Options],
) -> Program[Server]:
    """FedRep (FedAlt): first the personal head, then the shared body, which the server averages.

    v_i <- local(v; u frozen);   u_i <- local(u; v_i frozen) for i in S;   u <- sum_S q_i u_i

    >>> fedrep().settings["personal_epochs"]
    10

    Reference: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021.
    Differs from the paper in: 10 epochs for the head and 5 for the body, and the rates, momentum and clipping of
    DFedAlt's experiments. Released code has one optimizer for both phases, momentum 0.5 and a last head phase for
    everybody; here each phase has its own and nothing follows the last round.
    """
    v = p.personal(personal)
    phases = [
        Phase(
            p.parameters & v,
            Amount(personal_epochs, personal_steps),
            personal_lr,
            stream=1,
            optimizer=personal_optimizer,
        ),
        Phase(p.parameters - v, t.amount, t.lr),
    ]
    return federated(p, phases, t, p.names - v, participation, weighting)
