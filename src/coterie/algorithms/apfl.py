"""APFL: every client deploys a mixture of the server's model and one of its own."""

from dataclasses import dataclass
from typing import Unpack

from torch import Tensor
from torch.func import vmap

from ..core.tensors import Tensors, count, dot, floating, mul, replicate, rows, split, sub
from ..data.batches import Batch
from ..engines.base import Grad, StepInfo
from ..local.steps import Aux, Correction, ParamGroup, Phase
from .base import Round, Trained
from .beside import Beside, apart, beside, second, second_names
from .method import Fraction, Options, Participation, Problem, Program, Rate, Training, Weighting, method
from .server import federated
from .update import LocalUpdate

ALPHA = "/alpha"  # stands beside v; no parameter has that name


@dataclass(frozen=True)
class Mixture(Correction):
    """w steps on its own loss, v on that of the mixture, at the same time and on the same batch."""

    alpha_lr: float
    renews: frozenset[str]  # the running statistics of the mixture, and alpha
    gradients = 2

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """Return (g(w), alpha g(m)) at m = alpha v + (1 - alpha) w."""

        def both(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            (w, v), (rest, seen) = apart(x), apart(frozen)
            alpha = seen.pop(ALPHA)
            g, at_w = grad(w, rest, batch)
            h, at_m = grad(mixed(w, v, alpha), rest | seen, batch)
            renewed = at_m.buffers | {ALPHA: (alpha - self.alpha_lr * dot(sub(v, w), h)).clamp(0, 1)}
            still = at_w.unreached | second_names(at_m.unreached)
            return g | second(mul(h, alpha)), StepInfo(at_m.loss, at_w.buffers | second(renewed), still)

        return both


def mixed(w: Tensors, v: Tensors, alpha: Tensor) -> Tensors:
    """Return alpha v + (1 - alpha) w."""
    return {k: alpha * v[k] + (1 - alpha) * w[k] for k in w}


@method()
def apfl(
    p: Problem,
    t: Training,
    *,
    alpha: Fraction = 0.5,
    alpha_lr: Rate = 0.0,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Beside]:
    """APFL: every client deploys a mixture of the server's model and one of its own, in shares that it may learn.

    w_i <- w_i - lr grad F_i(w_i);   v_i <- v_i - lr alpha_i grad F_i(m_i),  m_i = alpha_i v_i + (1 - alpha_i) w_i
    alpha_i <- alpha_i - alpha_lr <v_i - w_i, grad F_i(m_i)>, within [0, 1]   at the same time on each batch, i in S
    w <- sum_S q_i w_i;   what is deployed is alpha_i v_i + (1 - alpha_i) w

    A fixed alpha of 1 is local training, one of 0 FedAvg. The mixture is one model: parameters are mixed, not answers.
    Running statistics are not mixed: w and the mixture each have those of their own batches.

    Args:
        alpha: The share of the client's own model in the mixture, to begin with.
        alpha_lr: The learning rate of that share, which stays the same over the rounds; 0: the share is fixed.

    >>> apfl(alpha=0.75).settings["alpha_lr"]
    0.0

    Reference: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, Algorithm 1; the released
    code, MLOPTPSU/FedTorch, fedtorch/comms/trainings/federated/apfl.py and comms/utils/flow_utils.py (alpha_update).
    Differs from the paper in: alpha has a learning rate of its own. The released code mixes the answers of the two
    models instead of their parameters, steps v after w rather than at the same time, and moves alpha in the first step
    of a round only, with a decay of 0.02 alpha.
    """
    v_names, seen = second_names(p.parameters), second_names((*p.model.running, ALPHA))
    group = ParamGroup(v_names, t.lr, clipped_alone=True)  # two losses: clipping takes a norm for each model
    phase = Phase(p.parameters | v_names, t.amount, t.lr, (Mixture(alpha_lr, seen),), group=group)
    average, work = federated(p, [phase], t, p.names, participation, weighting), LocalUpdate(p, [phase], t)

    def init(common: Tensors, each: Tensors) -> Beside:
        v = {k: each[k] for k in (*p.model.parameters, *p.model.running)}
        share = next(iter(v.values())).new_full((count(each),), alpha)
        return Beside(average.init(common | second(common), each), v | {ALPHA: share})

    @vmap
    def deployed(w: Tensors, v: Tensors) -> Tensors:
        return w | {k: v[k] for k in p.model.running} | mixed(split(w, p.parameters)[0], v, v[ALPHA])

    def train(s: Beside, r: Round) -> Trained:
        both = replicate(s.server.u, len(r.cohort)) | second(rows(s.own, r.members))
        done = work.run(r, both, rows(s.server.memory, r.members))
        w, v = apart(done.models)
        return done._replace(models=deployed(w, v), sent=floating(w), private=(v, done.private))

    return beside(average, [phase], init, train, lambda s: deployed(replicate(s.server.u, len(p.local_clients)), s.own))
