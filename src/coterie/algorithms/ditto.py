"""Ditto: a global model, and personal ones that are pulled toward it."""

from typing import Literal, NamedTuple, Unpack

from ..core.tensors import Tensors, count, replicate, rows
from ..data.batches import Amount
from ..local.corrections import proximal
from ..local.optimizers import Slots
from ..local.steps import REFERENCE, Phase
from .beside import Beside, beside
from .kept import kept_state
from .method import (
    Epochs,
    OptimizerLike,
    Options,
    Participation,
    Problem,
    Program,
    Rate,
    Round,
    Trained,
    Training,
    Weighting,
    method,
)
from .server import federated
from .update import LocalUpdate


class Personal(NamedTuple):
    """What clients keep beside the global model; stacked."""

    p: Tensors  # personal models, which never travel
    memory: Slots  # of their optimizer, where it outlives a round


@method()
def ditto(
    p: Problem,
    t: Training,
    *,
    lam: Rate = 0.75,
    prox: Literal["gradient", "split"] = "gradient",
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    personal_lr: Rate | None = None,
    personal_epochs: Epochs | None = None,
    personal_optimizer: OptimizerLike | None = None,
    **options: Unpack[Options],
) -> Program[Beside]:
    """Ditto: FedAvg, and beside it personal models that stay near the global one.

    w_i <- local(w);   p_i <- local(p_i) along grad F_i(p) + lam (p - w), w as received   for i in S
    w <- sum_S q_i w_i
    prox "split": the pull is a step of its own after each gradient step, p <- p - lr lam (p - w)

    Args:
        lam: How strongly the personal models are pulled toward the global one.
        prox: "gradient": the pull is a part of the gradient; "split": a step of its own.
        personal_lr: The learning rate of the personal models; none: lr.
        personal_epochs: Passes of the personal models through the data; none: as many as the global one makes.
        personal_optimizer: The optimizer of the personal models; none: optimizer.

    >>> ditto().settings["lam"]
    0.75

    Reference: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", 2021, Algorithm 1.
    Differs from the paper in: lam = 0.75 and 5 epochs for each of the two models, as in DFedAlt's experiments.
    DisPFL's code has prox="split", lam=0.5, epochs=2 and personal_epochs=3.
    """
    main = Phase(p.parameters, t.amount, t.lr)
    own = Phase(
        p.parameters,
        amount=t.amount if personal_epochs is None else Amount(personal_epochs),
        lr=t.lr if personal_lr is None else personal_lr,
        corrections=proximal(lam, split=prox == "split"),
        optimizer=personal_optimizer,
    )
    average, personal = federated(p, [main], t, p.names, participation, weighting), LocalUpdate(p, [own], t)

    def init(common: Tensors, each: Tensors) -> Beside:
        memory: Slots = replicate(kept_state(t, [own], common), count(each))
        return Beside(average.init(common, each), Personal(each, memory))

    def train(s: Beside, r: Round) -> Trained:
        w, mine = average.train(s.server, r), rows(s.own, r.members)
        received = {REFERENCE: replicate(s.server.u, len(r.cohort))}
        done = personal.run(r, mine.p, mine.memory, received)
        own = Personal(done.models, done.private), w.private
        return done._replace(sent=w.sent, private=own, passes=w.passes + done.passes)

    return beside(average, [main, own], init, train, models=lambda s: s.own.p)
