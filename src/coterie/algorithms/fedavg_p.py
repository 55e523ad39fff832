"""FedAvg-P: joint steps on a shared and a personal part, with a server."""

from dataclasses import replace
from typing import Unpack

from ..core.errors import UserError
from ..local.corrections import few_samples
from ..local.steps import ParamGroup, Phase
from .method import Options, Participation, Patterns, Presets, Problem, Program, Rate, Training, method
from .server import Server, federated

# FedAvg-P's and Scaffold-P's experiments: plain SGD, 25 steps, 9 of 10 clients, step size 0.001 in all.
P_PAPER = Training(
    lr=0.001 / 3, lr_decay=1.0, momentum=0.0, weight_decay=0.0, clip=None, batch_size=None, epochs=None, steps=25
)
P_PERSONAL_LR, P_OUTER, P_PERSONAL_OUTER = 0.001 / 1.0541, 3.0, 1.0541

# Their paper runs a convex problem on MNIST; for networks: equal products lr outer_lr of both parts, as it assumes.
P_PRESETS: Presets = {
    "papers": {"lr": 0.1, "personal_lr": 0.1, "outer_lr": 1.0, "personal_outer_lr": 1.0, "batch_size": 128}
}


def check_exact(t: Training, exact_personal: bool) -> None:
    """Refuse exact personal gradients where there is no noise to remove, or epochs that would be single steps."""
    if exact_personal and t.batch_size is None:
        raise UserError("exact_personal changes nothing without batches: give batch_size, or leave it out")
    if exact_personal and t.replacement:
        raise UserError("exact_personal sees all samples in every step, so replacement is of no use: leave it out")
    if exact_personal and t.epochs is not None:
        raise UserError("exact_personal sees all samples in every step, so it counts steps: give steps, not epochs")


@method(P_PAPER, check=check_exact, theorem="joint", presets=P_PRESETS)
def fedavg_p(
    p: Problem,
    t: Training,
    *,
    personal: Patterns = "head",
    participation: Participation = 0.9,
    personal_lr: Rate = P_PERSONAL_LR,
    outer_lr: Rate = P_OUTER,
    personal_outer_lr: Rate = P_PERSONAL_OUTER,
    exact_personal: bool = False,
    **options: Unpack[Options],
) -> Program[Server]:
    """FedAvg-P: joint steps on both parts, with outer step sizes for the shared and the personal one.

    u_k+1 = u_k - lr grad_u F_i(u_k, v_k),  v_k+1 = v_k - personal_lr grad_v F_i(u_k, v_k)   for i in S
    u <- (1 - outer_lr) u + outer_lr mean_S u_i;   v_i <- (1 - personal_outer_lr) v_i + personal_outer_lr v_iK

    The paper's analysis has lr outer_lr = personal_lr personal_outer_lr; other products run, but no theorem of it
    speaks of them.

    Args:
        personal_lr: The learning rate of the personal part.
        exact_personal: Whether grad_v is over all samples of the client while grad_u is that of a batch: sigma_v = 0.

    >>> fedavg_p().settings["steps"]
    25

    Reference: FedAvg-P/Scaffold-P, Algorithm 3.1.
    Differs from the paper in: the outer step sizes, for which it prints no values: 3 and 1.0541 are the least that
    its Theorem 3.7 allows for 9 of 10 clients, with inner ones such that both products are its 0.001.
    """
    phase = joint_phase(p, t, personal, personal_lr, exact_personal)
    shared = p.names - p.personal(personal)
    return federated(p, [phase], t, shared, participation, "uniform", outer_lr, personal_outer_lr)


def joint_phase(p: Problem, t: Training, personal: Patterns, personal_lr: float, exact_personal: bool = False) -> Phase:
    """Return one phase over both parts, both gradients at the same point, with a step size for each part.

    exact_personal: v follows the gradient over all samples of the client, u that of a batch.
    """
    v = p.parameters & p.personal(personal)
    phase = Phase(p.parameters, t.amount, t.lr, group=ParamGroup(v, personal_lr))
    if not exact_personal:
        return phase
    if not v or v == p.parameters:
        raise UserError(
            f"exact_personal is for a personal part beside a shared one, and personal={personal!r} leaves one of them "
            "empty: choose other patterns, or leave exact_personal out"
        )
    assert t.batch_size is not None
    return replace(phase, full_batch=True, corrections=few_samples(p.parameters - v, t.batch_size))
