"""The two families: clients that mix with their neighbours, and clients around a server.

Both train the same way; they differ in the second formula alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import topology as topologies
from ..errors import RequestError
from ..local import Phase, Update, local_update
from ..mixing import gossip, outer
from ..tensors import Tensors, entries, floating, put, replicate, rows, size_in_bytes, split, zeros_like
from ..topology import Topology
from .base import Problem, Program, Round, Traffic, Trained
from .options import Training


class Peers(NamedTuple):
    """State without a server; every slot is stacked over the clients."""

    x: Tensors  # (u_i, v_i): shared and personal part of every client's model
    memory: Tensors  # momentum that outlives a round; empty unless asked for


class Server(NamedTuple):
    """State around a server."""

    u: Tensors  # the shared part, on the server
    v: Tensors  # stacked: the personal parts, on the clients
    memory: Tensors  # stacked: momentum that outlives a round; empty unless asked for


def train_cohort(
    problem: Problem, phases: Sequence[Phase], training: Training, models: Tensors, memory: Tensors, r: Round
) -> Trained:
    """The local work of a round's cohort, from the stacked ``models``."""
    active = [p for p in phases if p.trains]
    drawn = [r.batches(p.stream, p.amount, training.batch_size) for p in active]
    work = local_update([(p, training.sgd(p, r.index)) for p in active], problem.gradient)
    done: Update = r.map(work, models, memory, *drawn)
    steps = torch.from_numpy(sum((b.steps for b in drawn), start=0 * r.cohort)).to(done.loss)
    return Trained(done.model, done.memory, done.loss / steps, steps, sum(b.seen for b in drawn))


def lasting(training: Training, phases: Sequence[Phase], model: Tensors) -> Tensors:
    """The momentum a client starts with, where it outlives the rounds."""
    if not (training.persistent_momentum and training.momentum):
        return {}
    return zeros_like({k: v for k, v in model.items() if any(k in p.trains for p in phases)})


def load(x: Tensors, stacked: bool) -> tuple[int, int]:
    """(parameters, bytes) of one client's share of ``x``; integer buffers do not travel."""
    tensors = [v[0] if stacked else v for v in floating(x).values()]
    return entries(tensors), size_in_bytes(tensors)


def decentralised(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    topology: str | Topology,
    shared: frozenset[str],
    gossip_steps: int = 1,
) -> Program[Peers]:
    """Everybody trains, then averages what is shared with the neighbours.

    z_i <- local(x_i);   u_i <- sum_j W[i, j] u(z_j), ``gossip_steps`` times;   v_i <- v(z_i)
    """
    graph = topologies.build(topology, problem.clients, problem.seed)
    if graph.stochastic == "column":  # without push-sum's weights the models would shrink and grow
        raise RequestError(
            f"{graph.name} is column-stochastic, which plain averaging cannot use: take random-pull or random"
        )

    def init(model: Tensors, n: int) -> Peers:
        memory = lasting(training, phases, model)
        return Peers(replicate(model, n), replicate(memory, n))

    def train(s: Peers, r: Round) -> Trained:
        return train_cohort(problem, phases, training, s.x, s.memory, r)

    def exchange(s: Peers, trained: Trained, r: Round) -> Peers:
        u = split(trained.models, shared)[0]
        assert r.W is not None
        return Peers(trained.models | gossip(r.engine, r.W, u, gossip_steps), trained.kept)

    def traffic(s: Peers, r: Round) -> Traffic:
        assert r.W is not None
        parameters, size = load(split(s.x, shared)[0], stacked=True)
        messages = topologies.edges(r.W) * gossip_steps if parameters else 0
        return Traffic(messages, messages * parameters, messages * size)

    return Program(shared, init, train, exchange, lambda s: s.x, traffic, graph)


def federated(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    shared: frozenset[str],
    participation: float | int = 1.0,
    weighting: str = "size",
    outer_lr: float = 1.0,
) -> Program[Server]:
    """A cohort trains from the server's model, which then moves to their mean.

    (u_i, v_i) <- local(u, v_i) for i in S;   u <- u + outer_lr (sum_S q_i u_i - u),  q by size or equal
    """

    def init(model: Tensors, n: int) -> Server:
        u, v = split(model, shared)
        return Server(u, replicate(v, n), replicate(lasting(training, phases, model), n))

    def train(s: Server, r: Round) -> Trained:
        models = replicate(s.u, len(r.cohort)) | rows(s.v, r.members)
        return train_cohort(problem, phases, training, models, rows(s.memory, r.members), r)

    def exchange(s: Server, trained: Trained, r: Round) -> Server:
        u, v = split(trained.models, shared)
        mean = r.engine.mean(floating(u), weights(weighting, r))
        moved = outer(s.u, s.u | mean, outer_lr)
        return Server(moved, put(s.v, r.members, v), put(s.memory, r.members, trained.kept))

    def models(s: Server) -> Tensors:
        everywhere: Tensors = replicate(s.u, problem.clients)
        return everywhere | s.v

    def traffic(s: Server, r: Round) -> Traffic:
        parameters, size = load(s.u, stacked=False)
        messages = 2 * len(r.cohort) if parameters else 0
        return Traffic(messages, messages * parameters, messages * size)

    return Program(shared, init, train, exchange, models, traffic, participation=participation)


def weights(weighting: str, r: Round) -> Tensor:
    """[m] how much each member of the cohort counts; a cohort without any data counts equally."""
    sizes = r.sizes
    return sizes if weighting == "size" and bool(sizes.sum() > 0) else torch.ones_like(sizes)
