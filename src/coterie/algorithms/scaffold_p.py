"""Scaffold-P: control variates on the shared part of partly personal models."""

from dataclasses import replace
from typing import Literal, Unpack

from ..local.corrections import control_variate
from .controlled import Controlled, check_plain, controlled
from .fedavg_p import P_OUTER, P_PAPER, P_PERSONAL_LR, P_PERSONAL_OUTER, P_PRESETS, check_exact, joint_phase
from .method import Options, Participation, Patterns, Problem, Program, Rate, Training, method


def _check(t: Training, exact_personal: bool) -> None:
    check_plain(t)
    check_exact(t, exact_personal)


@method(P_PAPER, check=_check, theorem="joint-controlled", presets=P_PRESETS)
def scaffold_p(
    p: Problem,
    t: Training,
    *,
    personal: Patterns = "head",
    participation: Participation = 0.9,
    personal_lr: Rate = P_PERSONAL_LR,
    outer_lr: Rate = P_OUTER,
    personal_outer_lr: Rate = P_PERSONAL_OUTER,
    c_init: Literal["zero", "gradient"] = "gradient",
    exact_personal: bool = False,
    **options: Unpack[Options],
) -> Program[Controlled]:
    """Scaffold-P: FedAvg-P with control variates on the shared part.

    u_k+1 = u_k - lr (grad_u F_i - c_i + c),  v_k+1 = v_k - personal_lr grad_v F_i,  both at (u_k, v_k)   for i in S
    c_i' = c_i - c + (u - u_K) / (K lr);   c <- c + (1/n) sum_S (c_i' - c_i);   u and v_i move as in FedAvg-P

    Args:
        personal_lr: The learning rate of the personal part.
        c_init: What control variates begin with: "gradient" as in the paper, the mean gradient of K batches at the
            start, or "zero".
        exact_personal: Whether grad_v is over all samples of the client while grad_u is that of a batch; see fedavg_p,
            also for the products of step sizes.

    >>> scaffold_p().settings["c_init"]
    'gradient'

    Reference: FedAvg-P/Scaffold-P, Algorithm 4.1.
    Differs from the paper in: the outer step sizes, chosen as in fedavg_p. Momentum, weight decay and clipping are
    refused, as in scaffold.
    """
    phase = joint_phase(p, t, personal, personal_lr, exact_personal)
    phase = replace(phase, corrections=phase.corrections + control_variate())
    shared = p.names - p.personal(personal)
    return controlled(p, phase, t, shared, participation, outer_lr, personal_outer_lr, c_init)
