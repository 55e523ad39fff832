"""Scaffold: control variates with a server."""

from typing import Literal, Unpack

from ..core.tensors import Tensors, replicate, rows
from ..data.batches import Stream
from ..local.corrections import control_variate
from ..local.steps import Phase
from .controlled import Controlled, check_plain, controlled, mean_gradient, with_control
from .method import Options, Participation, Problem, Program, Rate, Round, Trained, Training, method


@method(Training(lr_decay=1.0, momentum=0.0, weight_decay=0.0, clip=None), check=check_plain)
def scaffold(
    p: Problem,
    t: Training,
    *,
    participation: Participation = 0.1,
    outer_lr: Rate = 1.0,
    option: Literal["I", "II"] = "II",
    c_init: Literal["zero", "gradient"] = "zero",
    **options: Unpack[Options],
) -> Program[Controlled]:
    """Scaffold: FedAvg whose local steps are corrected for the drift between clients.

    y_k+1 = y_k - lr (grad F_i(y_k) - c_i + c)   for i in S;   x <- x + outer_lr (mean_S y_i - x)
    option "II": c_i' = c_i - c + (x - y_K) / (K lr);   option "I": c_i' = grad f_i(x) over all local data
    c <- c + (1/n) sum_S (c_i' - c_i)

    Args:
        option: How control variates are renewed: "I" or "II".
        c_init: What they begin with: "zero", or "gradient" for the mean gradient of K batches at the start.

    >>> scaffold().settings["momentum"]
    0.0

    Reference: Karimireddy et al., "SCAFFOLD", 2020, Algorithm 1.
    Differs from the paper in: nothing we know of. c_init="gradient" is of the paper on Scaffold-P. Momentum, weight
    decay and clipping are refused: with them (x - y_K) / (K lr) is no mean gradient.
    """
    phase = Phase(p.parameters, t.amount, t.lr, control_variate())
    program = controlled(p, phase, t, p.names, participation, outer_lr, 1.0, c_init)
    return program if option == "II" else over_all_data(program, p, t)


def over_all_data(program: Program[Controlled], p: Problem, t: Training) -> Program[Controlled]:
    """Renew by option I: c_i' = grad f_i(x) over all data of a client; a client without data keeps c_i."""

    def train(s: Controlled, r: Round) -> Trained:
        done, before = program.train(s, r), rows(s.c_i, r.members)
        grad = r.engine.gradient(p.model.objective)
        everything = r.batches(0, t.amount._replace(epochs=1, steps=None), None)

        def renewed(x: Tensors, c_i: Tensors, stream: Stream) -> Tensors:
            return mean_gradient(grad, p.parameters, x, stream) if stream.steps else c_i

        after = r.map(renewed, replicate(s.u, len(r.cohort)), before, everything)
        return with_control(done._replace(private=done.private[0]), before, after)

    return program._replace(train=train)
