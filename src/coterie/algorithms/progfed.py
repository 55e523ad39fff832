"""ProgFed: everybody trains a network that grows."""

from dataclasses import replace
from typing import Unpack

import numpy as np
import torch

from ..core.errors import UserError
from ..core.tensors import Tensors, Tree
from ..local.steps import Phase
from ..models.model import Model
from ..submodels.staged import STAGE, at_stage, check_stages, stage_of, staged
from .base import Assigned, Submodel
from .capacities import Share
from .depthfl import with_buffer
from .method import Count, Options, Participation, Problem, Program, Round, Training, Weighting, method
from .options import LMT_PAPER, refuse_for_parts
from .server import Server, federated
from .update import assigned, named_submodel


def _staged(model: Model) -> Model:
    return model.like(staged(model.module))


@method(LMT_PAPER, check=refuse_for_parts, adapt=_staged, staged=True, submodel="stages", paced=True)
def progfed(
    p: Problem,
    t: Training,
    *,
    warmup: Count = 0,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Server]:
    """ProgFed: FedAvg on the first stage, then on two, until the network is whole.

    x_i <- local(stem, stages 1..s, head s) for i in S;   x <- sum_S q_i x_i;   s grows every T / (2 stages) rounds

    What is measured, and what a client deploys, is the prefix of the round. A new stage starts as it was drawn, with a
    new head.

    Args:
        warmup: Rounds at the beginning of every stage but the first that train the new stage and its head alone; the
            others stay as they are, running statistics included.

    >>> progfed().settings["epochs"]
    1

    Reference: Wang et al., "ProgFed: Effective, Communication, and Computation Efficient Federated Learning by
    Progressive Training", 2022.
    Differs from the paper in: no warm-up unless asked; the released code has 25 rounds of 3,000. Warm-up rounds are
    counted as if the whole prefix traveled and learned. FedLMT's text prints other lengths of the stages; only these
    sum to T and give its Table 7.
    """
    stages = check_stages(p.module)
    _check_lengths(p.rounds, stages, warmup)
    whole, fresh = ([_prefix(p, s, alone) for s in range(stages)] for alone in (False, True))
    everybody = Share(1.0, np.arange(p.clients))

    def stage(t: int) -> int:
        return stage_of(t, p.rounds, stages) - 1

    def submodels(r: Round) -> list[Assigned]:
        s = stage(r.index)
        young = s > 0 and stage(r.index - warmup) < s
        return assigned([(everybody, (fresh if young else whole)[s])], r)

    phase = Phase(p.parameters, t.amount, t.lr)
    program = federated(replace(p, submodels=submodels), [phase], t, p.names, participation, weighting)
    return with_buffer(program, STAGE, lambda t: torch.eye(stages)[stage(t)])


def _check_lengths(rounds: int, stages: int, warmup: int) -> None:
    if rounds < 2 * stages:
        raise UserError(f"progfed takes {2 * stages} rounds to grow through {stages} stages: ask for more rounds")
    shortest = rounds // (2 * stages)
    if warmup and warmup >= shortest:
        raise UserError(f"warmup={warmup} leaves none of the {shortest} rounds of a stage: choose it smaller")


def _prefix(p: Problem, stage: int, alone: bool) -> Submodel:
    """Return the first stages, counted from 0, with the head on the last; ``alone``: only these two train."""
    module = at_stage(p.module, stage + 1)
    submodel = named_submodel(p.model.like(module), p.model.start)
    if not alone:
        return submodel
    last = (f"stages.{stage}.", f"heads.{stage}.", "linear.")
    old = {k for k in submodel.model.start if not k.startswith(last)}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in old)

    def embed(x: Tensors, index: Tree) -> tuple[Tensors, Tensors]:
        values, mass = submodel.embed(x, index)
        nothing = {k: torch.zeros_like(mass[k]) for k in old}
        return values | nothing, mass | nothing

    return submodel._replace(embed=embed)
