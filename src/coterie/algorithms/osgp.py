"""OSGP: stochastic gradient push, whose messages may arrive late."""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from ..core.tensors import Tensors, count
from ..local.optimizers import Slots
from ..local.steps import Phase
from .method import Count, Options, Participation, Problem, Program, Round, TopologyLike, Trained, Training, method
from .pushsum import mean_numerator, push_sum


# Push-sum is made for directed graphs.
@method(presets={"small": {"topology": "random-push:5"}, "papers": {"topology": "random-push:10"}})
def osgp(
    p: Problem,
    t: Training,
    *,
    topology: TopologyLike = "random-push:10",
    participation: Participation = 1.0,
    tau: Count = 0,
    **options: Unpack[Options],
) -> Program[Any]:
    """OSGP: stochastic gradient push of the whole model; messages may arrive ``tau`` rounds late.

    z_i = x_i / mu_i;   x_i <- x_i - lr grad F_i(z_i), z_i renewed at every step
    x_i <- P[i, i] x_i + what arrives;   mu_i likewise;   what is sent in round t arrives in round t + tau

    Args:
        topology: Who pushes to whom: a string such as "random-push:10", or a Topology.
        tau: How many rounds late a message arrives.

    >>> osgp(tau=1).settings["tau"]
    1

    Reference: Assran et al., "Stochastic Gradient Push for Distributed Deep Learning", 2019, Algorithms 1 and 2.
    Differs from the paper in: several local steps between two pushes, as DFedPGP's experiments run it, and messages
    that are late by exactly ``tau`` rounds, where the paper bounds the delay. The default graph is that of DFedPGP's
    experiments; the paper's code sends to one other at a time, topology="one-peer-exponential".
    """
    program = push_sum(p, [Phase(p.parameters, t.amount, t.lr)], t, topology, p.names, participation=participation)
    return late(program, tau) if tau else program


class Late(NamedTuple):
    """State of push-sum with messages on their way; every slot is stacked over the clients."""

    x: Tensors  # numerators
    mu: Tensor  # [n] push-sum weights
    memory: Slots  # of the optimizer, where it outlives a round
    flying: Tensors  # [n, tau, ...] numerators on their way to each client, the next to arrive first
    flying_mu: Tensor  # [n, tau] their weights


def late(program: Program[Any], tau: int) -> Program[Late]:
    """Delay every message to another client by ``tau`` rounds, in a queue."""

    def init(common: Tensors, each: Tensors) -> Late:
        n, (x, mu, memory) = count(each), program.init(common, each)
        flying = {k: v.new_zeros(n, tau, *v.shape) for k, v in program.message(common).items()}
        return Late(x, mu, memory, flying, mu.new_zeros(n, tau))

    def exchange(s: Late, trained: Trained, r: Round) -> Late:
        m = r.engine.push(r.W, trained.sent, s.mu)
        x = {k: v + s.flying[k][:, 0] for k, v in m.kept.items()}
        mu = m.kept_mass + s.flying_mu[:, 0]
        queue = {k: torch.cat([s.flying[k][:, 1:], v[:, None]], 1) for k, v in m.arrived.items()}
        queue_mu = torch.cat([s.flying_mu[:, 1:], m.arrived_mass[:, None]], 1)
        return Late(trained.private.x | x, mu, trained.private.memory, queue, queue_mu)

    def consensus(s: Late) -> Tensors:
        mean = mean_numerator(s.x)  # numerators on their way count, too
        return mean | {k: mean[k] + v.sum(1).mean(0) for k, v in s.flying.items()}

    return program._replace(init=init, exchange=exchange, consensus=consensus)
