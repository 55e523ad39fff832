"""Directed graphs: DFedPGP and OSGP, push-sum with local steps."""

from collections.abc import Sequence
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from .. import topology as topologies
from ..directions import compose, debiased, ratio
from ..local import Phase
from ..mixing import gossip, together
from ..split import Patterns
from ..tensors import Tensors, count, floating, replicate, split
from ..topology import Topology
from .base import Algorithm, Problem, Program, Round, Trained
from .dfedalt import personal_phase, two_phases
from .families import lasting, load, message_of, train_cohort
from .options import Options, Training, check_range
from .traffic import Traffic, over

WEIGHT_BYTES = 8  # mu travels in double precision


class Pushed(NamedTuple):
    """State of push-sum; every slot is stacked over the clients."""

    x: Tensors  # (u_i, v_i): biased numerators of the shared part, and personal parts
    mu: Tensor  # [n] push-sum weights, float64; u_i / mu_i is the model
    memory: Tensors  # momentum of the numerators and personal parts that outlives a round; empty unless asked for
    flying: Tensors  # [n, tau, ...] numerators on their way to each client, the next to arrive first
    flying_mu: Tensor  # [n, tau] their weights


class Kept(NamedTuple):
    """What stays with the clients between their work and the exchange; stacked."""

    x: Tensors  # numerators and personal parts after the local work
    memory: Tensors


def dfedpgp(
    *,
    personal: Patterns = "head",
    topology: str | Topology = "random-push:10",
    personal_lr: float = 0.001,
    personal_epochs: int | None = None,
    personal_steps: int | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """DFedPGP: DFedAlt over directed graphs, de-biased by push-sum.

    z_i = u_i / mu_i;   v_i <- local(v; z_i held);   u_i <- u_i - lr grad_z F_i(z_i, v_i), z_i renewed at every step
    u_i <- sum_j P[i, j] u_j;   mu_i <- sum_j P[i, j] mu_j

    The topology chooses the reading: column-stochastic (random-push) is Algorithm 1; row-stochastic (random-pull) is
    Appendix B, where every mu stays 1.

    >>> dfedpgp(topology="random-push:3").settings["topology"]
    'random-push:3'

    Reference: DFedPGP, Algorithm 1 and Appendix B.
    Differs from the paper in: nothing on a graph that pushes, the default, but that a sender counts itself among
    its receivers, which the listing's 1/|N_out| leaves open. Experiments and released code are the second reading
    (random-pull), without mu: DFedAlt on a directed graph. Weight decay is 5e-4 as in its appendix and the code,
    its text prints 0.005; the rate decays by 0.99 as in its text and the code, its appendix prints 0.9.
    All begin with one model, as in the code, unless ``fit(init="per-client")`` draws one on every device, as its box.
    """
    own = personal_phase(personal_lr, personal_epochs, personal_steps, usual=1)
    t = Training().given(options)

    def bind(p: Problem) -> Program[Pushed]:
        return push_sum(p, two_phases(p, personal, own, t), t, topology, p.names - p.personal(personal), tau=0)

    settings = {"personal": personal, "topology": topology, **own._asdict(), **t._asdict()}
    return Algorithm("dfedpgp", settings, bind)


def osgp(*, topology: str | Topology = "random-push:10", tau: int = 0, **options: Unpack[Options]) -> Algorithm:
    """OSGP: stochastic gradient push of the whole model; messages may arrive ``tau`` rounds late.

    z_i = x_i / mu_i;   x_i <- x_i - lr grad F_i(z_i), z_i renewed at every step
    x_i <- P[i, i] x_i + what arrives;   mu_i likewise;   what is sent in round t arrives in round t + tau

    >>> osgp(tau=1).settings["tau"]
    1

    Reference: Assran et al., "Stochastic Gradient Push for Distributed Deep Learning", 2019, Algorithms 1 and 2.
    Differs from the paper in: several local steps between two pushes, as DFedPGP's experiments run it, and messages
    that are late by exactly ``tau`` rounds, where the paper bounds the delay. The default graph is that of DFedPGP's
    experiments; the paper's code sends to one other at a time, topology="one-peer-exponential".
    """
    check_range("tau", tau, 0, float("inf"))
    t = Training().given(options)

    def bind(p: Problem) -> Program[Pushed]:
        return push_sum(p, [Phase(p.parameters, t.amount, t.lr)], t, topology, p.names, tau)

    return Algorithm("osgp", {"topology": topology, "tau": tau, **t._asdict()}, bind)


def push_sum(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    topology: str | Topology,
    shared: frozenset[str],
    tau: int,
) -> Program[Pushed]:
    """Phases at the de-biased point, whatever they follow there, then one exchange of numerators and weights."""
    graph = topologies.build(topology, problem.clients, problem.seed)
    at_ratio = [phase._replace(direction=compose(phase.direction, debiased(shared))) for phase in phases]

    def init(common: Tensors, each: Tensors) -> Pushed:
        n, some = count(each), next(iter(common.values()))
        mu = torch.ones(n, dtype=torch.float64, device=some.device)
        queue = {k: v.new_zeros(n, tau, *v.shape) for k, v in floating(split(common, shared)[0]).items()} if tau else {}
        return Pushed(each, mu, replicate(lasting(training, phases, common), n), queue, mu.new_zeros(n, tau))

    def train(s: Pushed, r: Round) -> Trained:
        done = train_cohort(problem, at_ratio, training, s.x, s.memory, r, shared, guide=s.mu)
        return done._replace(models=models_of(done.models, s.mu, shared), kept=Kept(done.models, done.kept))

    def exchange(s: Pushed, trained: Trained, r: Round) -> Pushed:
        assert r.W is not None
        if not tau:
            mixed, mu = mixed_with_weights(r, r.W, trained.sent, s.mu)
            return s._replace(x=trained.kept.x | mixed, mu=mu, memory=trained.kept.memory)
        diagonal = topologies.diagonal(r.W)
        own, others = diagonal[torch.from_numpy(r.here)], topologies.with_diagonal(r.W, torch.zeros_like(diagonal))
        kept: Tensors = torch.func.vmap(lambda u, a: {k: v * a.to(v) for k, v in u.items()})(trained.sent, own)
        pushed, pushed_mu = mixed_with_weights(r, others, trained.sent, s.mu)
        arrived = {k: v + s.flying[k][:, 0] for k, v in kept.items()}
        queue = {k: torch.cat([s.flying[k][:, 1:], v[:, None]], 1) for k, v in pushed.items()}
        queue_mu = torch.cat([s.flying_mu[:, 1:], pushed_mu[:, None]], 1)
        mu = own * s.mu + s.flying_mu[:, 0]
        return Pushed(trained.kept.x | arrived, mu, trained.kept.memory, queue, queue_mu)

    def traffic(s: Pushed, r: Round) -> Traffic:
        assert r.W is not None
        return Traffic(over(r.W, load(split(s.x, shared)[0], stacked=True, aside=WEIGHT_BYTES)))

    return Program(
        shared,
        init,
        train,
        exchange,
        lambda s: models_of(s.x, s.mu, shared),
        message_of(shared),
        traffic,
        graph,
        consensus=mean_numerator,
        mass=lambda s: s.mu,
        keeps="receiver" if graph.stochastic == "row" else "sender",
        views=problem.views,
    )


def mixed_with_weights(r: Round, W: Tensor, u: Tensors, mu: Tensor) -> tuple[Tensors, Tensor]:
    """Numerators and weights go over the graph in one message."""
    mixed, weights = together(lambda x: gossip(r.engine, [W], x), u, {"mu": mu})
    return mixed, weights["mu"]


def models_of(x: Tensors, mu: Tensor, shared: frozenset[str]) -> Tensors:
    """z_i = u_i / mu_i for all clients: a one-client function, lifted."""
    models: Tensors = torch.func.vmap(lambda u, m: ratio(u, m, shared))(x, mu)
    return models


def mean_numerator(s: Pushed) -> Tensors:
    """(1/n) of all numerators, those on their way included: what z converges to; personal parts are averaged."""
    mean = {k: v.mean(0) if v.is_floating_point() else v[0] for k, v in s.x.items()}
    return mean | {k: mean[k] + v.sum(1).mean(0) for k, v in s.flying.items()}
