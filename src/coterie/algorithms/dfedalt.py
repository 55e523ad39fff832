"""DFedAlt: alternating partial personalization without a server."""

from typing import Annotated, Unpack

from ..data.batches import Amount
from ..local.corrections import sam as sharpness_aware
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
    Range,
    Rate,
    SamForm,
    TopologyLike,
    Training,
    method,
)
from .peers import Peers, decentralized


@method(theorem="alternating")
def dfedalt(
    p: Problem,
    t: Training,
    *,
    personal: Patterns = "head",
    topology: TopologyLike = "random-pull:10",
    participation: Participation = 1.0,
    personal_lr: Rate = 0.001,
    personal_epochs: Epochs | None = 1,
    personal_steps: Count | None = None,
    personal_optimizer: OptimizerLike | None = None,
    gossip_steps: Annotated[int, Range(1, 1000)] = 1,
    rho: Rate = 0.0,
    sam: SamForm = "plain",
    sam_eta: Rate = 0.0,
    **options: Unpack[Options],
) -> Program[Peers]:
    """DFedAlt: first the personal part, then the shared part, then gossip on the shared part.

    v_i <- local(v; u_i frozen);   z_i <- local(u; v_i frozen);   u_i <- sum_j W[i, j] z_j

    With ``gossip_steps`` the last line is repeated: u <- W^Q z. With a radius ``rho`` the steps of the shared part are
    sharpness-aware, which is dfedsalt.

    >>> dfedalt(topology="ring", personal_lr=0.01).settings["personal"]
    'head'

    Reference: DFedAlt/DFedSalt, Algorithm 1, option I.
    Differs from the paper in: weight decay 5e-4 (its text prints a decay rate of 0.005), clipping at 10 and rates
    that decay by 0.99 per round, which its text leaves open; all three are those of its group's released code. So is
    the default graph, ten others drawn by every receiver; its theory assumes a symmetric one, such as random:10.
    Line 13 of its listing sums the client's own z_i; the neighbors' are meant. Its line 1 draws a model on every
    device, as ``fit(init="per-client")`` does; without it all begin with one, as in the released code.
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
        Phase(p.parameters - v, t.amount, t.lr, sharpness_aware(rho, sam, sam_eta)),
    ]
    return decentralized(p, phases, t, topology, p.names - v, participation, gossip_steps)
