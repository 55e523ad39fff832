"""The family over directed graphs: push-sum with local steps.

z_i = u_i / mu_i;   u_i <- local(u_i) with every gradient at z_i;   u_i <- sum_j P[i, j] u_j,  mu_i likewise
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from .. import topology as topologies
from ..core.arguments import checked
from ..core.tensors import Tensors, add, count, replicate, split
from ..engines.base import Engine
from ..exchange.mixing import sums
from ..local.corrections import WEIGHT, debias, debiased
from ..local.optimizers import Slots
from ..local.steps import REFERENCE, Phase
from ..topology import TopologyLike
from .base import Problem, Program, Round, Trained
from .kept import kept_state
from .options import Training, refuse_robust
from .traffic import Traffic, gossiped, load
from .update import NOTHING, AuxOf, LocalUpdate, Names, look_up, message_of

WEIGHT_BYTES = 8  # mu travels in double precision


class Pushed(NamedTuple):
    """State of push-sum; every slot is stacked over the clients."""

    x: Tensors  # (u_i, v_i): biased numerators of the shared part, and personal parts
    mu: Tensor  # [n] push-sum weights, float64; u_i / mu_i is the model
    memory: Slots  # of the optimizers of numerators and personal parts, where it outlives a round


@checked("function")
def push_sum(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    topology: TopologyLike,
    shared: Names,
    participation: float | int = 1.0,
    gossip_steps: int = 1,
    aux: AuxOf = NOTHING,
) -> Program[Pushed]:
    """Train in phases at the de-biased point, whatever direction they follow, then exchange numerators and weights.

    Both go ``gossip_steps`` times along the graph of the round.

    participation: who is active in a round; aux: the values that corrections look up, by name, as functions of the
    state and the round; "reference" is the model z_i that a client begins with.
    """
    refuse_robust(training, "push-sum adds up shares of mass, where what is left out would be lost to everybody")
    graph = topologies.build(topology, problem.clients, problem.seed)
    values: AuxOf = {REFERENCE: lambda s, r: models_of(s.x, s.mu, shared), WEIGHT: lambda s, r: s.mu, **aux}
    at_ratio = [replace(phase, corrections=(*phase.corrections, *debiased(shared))) for phase in phases]
    work = LocalUpdate(problem, at_ratio, training, frozenset(values))
    message = message_of(shared)

    def init(common: Tensors, each: Tensors) -> Pushed:
        mu = torch.ones(count(each), dtype=torch.float64, device=next(iter(common.values())).device)
        return Pushed(each, mu, replicate(kept_state(training, phases, common), count(each)))

    def train(s: Pushed, r: Round) -> Trained:
        done = work.train(r, s.x, s.memory, message, look_up(values, s, r))
        return done._replace(
            models=models_of(done.models, s.mu, shared), private=Pushed(done.models, s.mu, done.private)
        )

    def once(engine: Engine, W: Tensor, u: Tensors, mu: Tensor) -> tuple[Tensors, Tensor]:
        if graph.stochastic == "row":  # receivers weigh what they hear: nothing leaves its sender
            u, weights = sums(engine, W, u, {WEIGHT: mu})
            return u, weights[WEIGHT]
        m = engine.push(W, u, mu)
        return add(m.kept, m.arrived), m.kept_mass + m.arrived_mass

    def exchange(s: Pushed, trained: Trained, r: Round) -> Pushed:
        u, mu = trained.sent, s.mu
        for W in r.Ws:
            u, mu = once(r.engine, W, u, mu)
        return Pushed(trained.private.x | u, mu, trained.private.memory)

    def traffic(s: Pushed, r: Round) -> Traffic:
        return gossiped(r.Ws, load(split(s.x, shared)[0], stacked=True, aside=WEIGHT_BYTES))

    return Program(
        shared=shared,
        phases=at_ratio,
        training=training,
        init=init,
        train=train,
        exchange=exchange,
        models=lambda s: models_of(s.x, s.mu, shared),
        message=message,
        traffic=traffic,
        topology=graph,
        gossip_steps=gossip_steps,
        participation=participation,
        consensus=lambda s: mean_numerator(s.x),
        mass=lambda s: s.mu,
        weight_stays_with="receiver" if graph.stochastic == "row" else "sender",
        submodels=problem.submodels,
    )


def models_of(x: Tensors, mu: Tensor, shared: frozenset[str]) -> Tensors:
    """Return z_i = u_i / mu_i of all clients: a one-client function, lifted."""
    models: Tensors = vmap(lambda u, m: debias(u, m, shared))(x, mu)
    return models


def mean_numerator(x: Tensors) -> Tensors:
    """Return the mean numerator, to which z converges; personal parts are averaged."""
    return {k: v.mean(0) if v.is_floating_point() else v[0] for k, v in x.items()}
