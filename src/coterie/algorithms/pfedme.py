"""pFedMe: personal models near a server's, which moves along the gradients of their Moreau envelopes."""

from dataclasses import dataclass
from typing import Annotated, Unpack

from ..core.tensors import Tensors, add, count, floating, mul, replicate, rows, split, sub
from ..data.batches import Batch
from ..engines.base import Grad, StepInfo
from ..local.steps import Aux, Correction, Phase
from .base import Round, Trained
from .beside import Beside, apart, beside, second, second_names
from .method import Options, Participation, Positive, Problem, Program, Range, Rate, Training, Weighting, method
from .server import federated
from .update import LocalUpdate


@dataclass(frozen=True)
class MoreauEnvelope(Correction):
    """The gradient lam (w - theta) of a client's Moreau envelope; theta makes some steps on the same batch."""

    lam: float
    lr: float
    gradients: int  # as many steps
    renews: frozenset[str]  # theta

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """Step theta <- theta - lr (g(theta) + lam (theta - w)), ``gradients`` times; return lam (w - theta)."""

        def envelope(w: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            rest, theta = apart(frozen)
            for _ in range(self.gradients):
                g, info = grad(theta, rest, batch)
                theta, rest = add(theta, add(g, sub(theta, w), self.lam), -self.lr), rest | info.buffers
            return mul(sub(w, theta), self.lam), info._replace(buffers=info.buffers | second(theta))

        return envelope


@method(Training(lr=0.005))
def pfedme(
    p: Problem,
    t: Training,
    *,
    lam: Positive = 15.0,
    inner_lr: Rate = 0.05,
    inner_steps: Annotated[int, Range(1, 1000)] = 5,
    beta: Rate = 1.0,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Beside]:
    """pFedMe: a server's model that follows Moreau envelopes, and personal models near it.

    theta_i <- theta_i - inner_lr (grad F_i(theta_i) + lam (theta_i - w_i))   inner_steps times on each batch, then
    w_i <- w_i - lr lam (w_i - theta_i)   for i in S, from w_i = theta_i = w;   w <- (1 - beta) w + beta sum_S q_i w_i

    What a client deploys is theta_i, which never leaves it. lr lam should be below 1, inner_lr lam below 2: beyond
    that w_i, or theta_i, oscillates.

    Args:
        lam: How strongly personal models are pulled toward the server's.
        inner_lr: The learning rate of the personal models; it stays the same over the rounds.
        inner_steps: Steps of the personal model on each batch.
        beta: The server's learning rate.

    >>> pfedme(lam=10.0).settings["inner_steps"]
    5

    Reference: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", 2020, Algorithm 1; the
    released code, CharlieDinh/pFedMe, FLAlgorithms/users/userpFedMe.py and servers/serverbase.py.
    Differs from the paper in: only those who take part train, where the paper's clients all do and a part of them is
    averaged. They are weighed by their samples, as in the released code; the paper weighs them equally. Where theta_i
    starts is the released code's: at w in every round, then where the last batch left it. Running statistics are those
    that theta_i has seen, and the server averages them; the released code leaves them out.
    """
    envelope = MoreauEnvelope(lam, inner_lr, inner_steps, second_names(p.parameters))
    phase = Phase(p.parameters, t.amount, t.lr, (envelope,))
    average, work = federated(p, [phase], t, p.names, participation, weighting, beta), LocalUpdate(p, [phase], t)

    def init(common: Tensors, each: Tensors) -> Beside:
        return Beside(average.init(common, each), replicate(common, count(each)))

    def train(s: Beside, r: Round) -> Trained:
        w: Tensors = replicate(s.server.u, len(r.cohort))
        done = work.run(r, w | second(split(w, p.parameters)[0]), rows(s.server.memory, r.members))
        w, theta = apart(done.models)
        return done._replace(models=w | theta, sent=floating(w), private=(w | theta, done.private))

    return beside(average, [phase], init, train, models=lambda s: s.own)
