"""DFedPGP: alternating partial personalization over directed graphs."""

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
from .pushsum import Pushed, push_sum


# Push-sum is made for directed graphs.
@method(
    theorem="alternating-push",
    presets={"small": {"topology": "random-push:5"}, "papers": {"topology": "random-push:10"}},
)
def dfedpgp(
    p: Problem,
    t: Training,
    *,
    personal: Patterns = "head",
    topology: TopologyLike = "random-push:10",
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
) -> Program[Pushed]:
    """DFedPGP: DFedAlt over directed graphs, de-biased by push-sum.

    z_i = u_i / mu_i;   v_i <- local(v; z_i frozen);   u_i <- u_i - lr grad_z F_i(z_i, v_i), z_i renewed at every step
    u_i <- sum_j P[i, j] u_j;   mu_i <- sum_j P[i, j] mu_j

    The topology chooses the reading: column-stochastic (random-push) is Algorithm 1; row-stochastic (random-pull) is
    Appendix B, where every mu stays 1. With ``gossip_steps`` u and mu go along P several times in a round. With a
    radius ``rho`` the steps of the shared part are sharpness-aware, and the ascent begins at z_i.

    Args:
        topology: Who pushes to whom: a string such as "random-push:10", or a Topology.

    >>> dfedpgp(topology="random-push:3").settings["topology"]
    'random-push:3'

    Reference: DFedPGP, Algorithm 1 and Appendix B.
    Differs from the paper in: nothing on a graph that pushes, the default, but that a sender counts itself among
    its receivers, which the listing's 1/|N_out| leaves open. Experiments and released code are the second reading
    (random-pull), without mu: DFedAlt on a directed graph. Weight decay is 5e-4 as in its appendix and the code,
    its text prints 0.005; the rate decays by 0.99 as in its text and the code, its appendix prints 0.9.
    All begin with one model, as in the code, unless ``fit(init="per-client")`` draws one on every device, as its box.
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
    return push_sum(p, phases, t, topology, p.names - v, participation, gossip_steps)
