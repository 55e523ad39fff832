"""Pooled: one model trained on all samples in one place, which is not federated."""

from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np
import torch

from ..core.errors import UserError
from ..core.tensors import Tensors, replicate, rows
from ..local.optimizers import Slots
from ..local.steps import Phase
from .kept import kept_state
from .method import Options, Problem, Program, Round, Trained, Training, method
from .options import refuse_robust
from .traffic import Traffic
from .update import LocalUpdate


class Pooled(NamedTuple):
    """State of pooled training; nothing of it belongs to a client."""

    u: Tensors  # the one model
    memory: Slots  # of the optimizer, where it outlives a round


def _check(t: Training) -> None:
    refuse_robust(t, "pooled training averages nothing")
    if isinstance(t.epochs, tuple):
        raise UserError("pooled trains one model on all samples: give epochs one number")


@method(check=_check, in_one_place=True)
def pooled(p: Problem, t: Training, **options: Unpack[Options]) -> Program[Pooled]:
    """Pooled: one model trained on the samples of all clients together; it is not federated.

    u <- local(u) on the samples of all clients in one place

    It is what federating is measured against: what one model reaches if every sample may be moved. An epoch is a pass
    through all samples, so a round has as many gradients as one of ``fedavg`` with everybody. Each client's own test
    samples measure it, and nothing is sent.

    >>> pooled(epochs=1).settings["epochs"]
    1

    Reference: none: centralized training.
    Differs from the paper in: nothing. Rate, batches and epochs are those of the clients in ``fedavg`` unless given.
    """
    phases = [Phase(p.parameters, t.amount, t.lr)]
    work = LocalUpdate(p, phases, t)

    def train(s: Pooled, r: Round) -> Trained:
        everything, first = replace(r.samples, owned=(torch.cat(r.samples.owned),)), np.zeros(1, np.int64)
        one = replace(r, samples=everything, cohort=first, global_cohort=first, local_clients=first)
        done, n = work.run(one, replicate(s.u, 1), replicate(s.memory, 1)), len(r.cohort)
        counted = done.passes if 0 in r.local_clients else ()  # every shard trains the same model
        models = replicate(rows(done.models, 0), n)
        return Trained(
            models, {}, rows((done.models, done.private), 0), done.loss.expand(n), done.steps.expand(n), counted
        )

    return Program(
        shared=p.names,
        phases=phases,
        training=t,
        init=lambda common, each: Pooled(common, kept_state(t, phases, common)),
        train=train,
        exchange=lambda s, trained, r: Pooled(*trained.private),
        models=lambda s: replicate(s.u, len(p.local_clients)),
        message=lambda model: {},
        traffic=lambda s, r: Traffic(()),
        receiver_has=lambda s: s.u,
    )
