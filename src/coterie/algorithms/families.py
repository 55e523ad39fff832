"""The two families: clients that mix with their neighbours, and clients around a server.

Both train the same way; they differ in the second formula alone.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from .. import topology as topologies
from ..batches import Batches
from ..errors import RequestError
from ..local import Descent, Guide, Held, Phase, Reached, Start
from ..mixing import gossip, outer, together
from ..problem import Model
from ..tensors import (
    Tensors,
    Tree,
    concatenate,
    count,
    entries,
    floating,
    put,
    replicate,
    rows,
    size_in_bytes,
    split,
    zeros_like,
)
from ..topology import Topology
from ..views import merge
from .base import Assigned, Form, Problem, Program, Round, Trained
from .forms import taken
from .options import Training
from .traffic import Load, Traffic, gossiped, to_server

NOTHING: Guide = {}


class Peers(NamedTuple):
    """State without a server; every slot is stacked over the clients."""

    x: Tensors  # (u_i, v_i): shared and personal part of every client's model
    memory: Tensors  # momentum that outlives a round; empty unless asked for


class Server(NamedTuple):
    """State around a server."""

    u: Tensors  # the shared part, on the server
    v: Tensors  # stacked: the personal parts, on the clients
    memory: Tensors  # stacked: momentum that outlives a round; empty unless asked for


class Update(NamedTuple):
    """A cohort after its local work, stacked."""

    model: Tensors
    memory: Tensors  # momentum that outlives the round; empty where it does not
    loss: Tensor  # summed over the steps of all phases


class Work(NamedTuple):
    """The local work of a round: one client's step of each phase, and the cohort's batches for it."""

    steps: list[Descent]
    batches: list[Batches]
    running: tuple[str, ...]  # the model's running statistics
    passes: tuple[tuple[Model, int], ...]

    @classmethod
    def of(cls, problem: Problem, phases: Sequence[Phase], training: Training, r: Round) -> "Work":
        """The work that some phases are in round ``r``; a phase that trains nothing is none."""
        active = [p for p in phases if p.trains]
        drawn = [r.batches(p.stream, p.amount, None if p.whole else training.batch_size) for p in active]
        steps = [Descent(p, training.sgd(p, r.index, problem.rounds), problem.gradient) for p in active]
        seen = sum(b.seen * p.gradients for b, p in zip(drawn, active, strict=True))
        return cls(steps, drawn, problem.model.running, ((problem.model, seen),))

    def done(self, r: Round, model: Tensors, memory: Tensors, guide: Guide) -> Update:
        """The cohort after all phases, one after another, from the stacked ``model``."""
        loss = torch.zeros(len(r.cohort), device=r.members.device)
        for step, batches in zip(self.steps, self.batches, strict=True):
            moving, held = split(model, step.phase.trains)
            running, rest = split(held, self.running)
            start = Start(moving, running, split(memory, step.phase.trains)[0])
            lasting = step._replace(lasting=bool(start.memory))
            end: Reached = r.walk(lasting, start, Held(rest, guide), batches)
            model = model | end.x | end.running
            memory = memory | end.memory
            loss = loss + end.loss
        return Update(model, memory, loss)

    def trained(self, models: Tensors, sent: Tensors, kept: Tree, loss: Tensor) -> Trained:
        """What the cohort came to; ``loss`` is summed over the steps."""
        steps = torch.from_numpy(sum((b.steps for b in self.batches), start=np.zeros(len(loss)))).to(loss)
        return Trained(models, sent, kept, loss / steps, steps, self.passes)


def train_cohort(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    models: Tensors,
    memory: Tensors,
    r: Round,
    shared: frozenset[str],
    guide: Guide = NOTHING,
) -> Trained:
    """The local work of a round's cohort, from the stacked ``models``; what is ``shared`` is sent."""
    if problem.views is not None:
        return train_views(problem, problem.views(r), phases, training, models, r, shared, guide)
    work = Work.of(problem, phases, training, r)
    done = work.done(r, models, memory, guide)
    return work.trained(done.model, message_of(shared)(done.model), done.memory, done.loss)


class Part(NamedTuple):
    """What the members with one view came to, in the common form; stacked over them."""

    models: Tensors
    mass: Tensors
    loss: Tensor
    steps: Tensor


def train_views(
    problem: Problem,
    assigned: Sequence[Assigned],
    phases: Sequence[Phase],
    training: Training,
    models: Tensors,
    r: Round,
    shared: frozenset[str],
    guide: Guide,
) -> Trained:
    """The same where members train forms of their own: those with equal shapes side by side, one view after another."""
    groups = [train_view(problem, a, phases, training, models, r, guide) for a in assigned]
    back = torch.from_numpy(np.concatenate([a.places for a in assigned]).argsort()).to(r.members.device)
    together: Part = rows(concatenate([part for part, _, _ in groups]), back)
    sent = message_of(shared)(together.models)
    mass = {k: together.mass[k] for k in sent} if together.mass else None
    passes = tuple(p for _, passes, _ in groups for p in passes)
    forms = tuple(form for _, _, form in groups)
    return Trained(together.models, sent, {}, together.loss, together.steps, passes, mass, forms)


def train_view(
    problem: Problem,
    a: Assigned,
    phases: Sequence[Phase],
    training: Training,
    models: Tensors,
    r: Round,
    guide: Guide,
) -> tuple[Part, tuple[tuple[Model, int], ...], Form]:
    """The work of those with one view."""
    mine, view = torch.from_numpy(a.places).to(r.members.device), a.view
    sub, own = replace(r, cohort=r.cohort[a.places]), replace(problem, model=view.model, views=None)
    here = [p._replace(trains=own.parameters if p.trains == problem.parameters else p.trains) for p in phases]
    work = Work.of(own, here, training, sub)
    done = work.done(sub, taken(view, models, mine, a.where), {}, rows(guide, mine))
    values, mass = vmap(view.put)(done.model, a.where)
    trained = work.trained(values, {}, {}, done.loss)
    form = Form(a.places, view.model, done.model, view.kept)
    return Part(values, mass, trained.loss, trained.steps), work.passes, form


def message_of(shared: frozenset[str]) -> Callable[[Tensors], Tensors]:
    """The part of a model that is sent; integer buffers do not travel."""
    return lambda model: floating(split(model, shared)[0])


def lasting(training: Training, phases: Sequence[Phase], model: Tensors) -> Tensors:
    """The momentum a client starts with, where it outlives the rounds."""
    if not (training.persistent_momentum and training.momentum):
        return {}
    return zeros_like({k: v for k, v in model.items() if any(k in p.trains for p in phases)})


def load(x: Tensors, stacked: bool, aside: int = 0) -> Load:
    """What a message with one client's share of ``x`` weighs."""
    tensors = [v[0] if stacked else v for v in floating(x).values()]
    return Load(entries(tensors), size_in_bytes(tensors), len(tensors), aside)


def both_ways(problem: Problem, u: Tensors, personal: Collection[str], r: Round) -> Traffic:
    """The server's part down and up once for every member of the cohort, in the form each of them has."""
    if problem.views is None:
        up = to_server(problem.clients, r.cohort, load(u, stacked=False))
    else:
        own = [(r.cohort[a.places], {*personal, *a.view.kept}, a.view.model.start) for a in problem.views(r)]
        forms = [(who, load(split(start, kept)[1], stacked=False)) for who, kept, start in own]
        up = tuple(m for who, sent in forms for m in to_server(problem.clients, who, sent))
    return Traffic(up, tuple(m.back for m in up))


def decentralised(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    topology: str | Topology,
    shared: frozenset[str],
    gossip_steps: int = 1,
    fresh_graph: bool = False,
) -> Program[Peers]:
    """Everybody trains, then averages what is shared with the neighbours.

    z_i <- local(x_i);   u_i <- sum_j W[i, j] u(z_j), ``gossip_steps`` times;   v_i <- v(z_i)

    fresh_graph: each of these steps takes the next matrix of the topology, instead of all the same one.
    """
    graph = topologies.build(topology, problem.clients, problem.seed)
    if graph.stochastic == "column":  # without push-sum's weights the models would shrink and grow
        raise RequestError(
            f"{graph.name} is column-stochastic, which plain averaging cannot use: take random-pull or random"
        )

    def init(common: Tensors, each: Tensors) -> Peers:
        return Peers(each, replicate(lasting(training, phases, common), count(each)))

    def train(s: Peers, r: Round) -> Trained:
        return train_cohort(problem, phases, training, s.x, s.memory, r, shared)

    def exchange(s: Peers, trained: Trained, r: Round) -> Peers:
        return Peers(trained.models | gossip(r.engine, r.Ws, trained.sent), trained.kept)

    def traffic(s: Peers, r: Round) -> Traffic:
        return gossiped(r.Ws, load(split(s.x, shared)[0], stacked=True))

    return Program(
        shared,
        init,
        train,
        exchange,
        lambda s: s.x,
        message_of(shared),
        traffic,
        graph,
        gossip_steps,
        fresh_graph,
        views=problem.views,
    )


def federated(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    shared: frozenset[str],
    participation: float | int = 1.0,
    weighting: str = "size",
    outer_lr: float = 1.0,
    personal_outer_lr: float = 1.0,
) -> Program[Server]:
    """A cohort trains from the server's model, which then moves to their mean.

    (u_i, v_i') <- local(u, v_i) for i in S;   u <- u + outer_lr (sum_S q_i u_i - u),  q by size or equal
    v_i <- v_i + personal_outer_lr (v_i' - v_i)
    """

    def init(common: Tensors, each: Tensors) -> Server:
        u, v = split(common, shared)[0], split(each, shared)[1]
        return Server(u, v, replicate(lasting(training, phases, common), count(each)))

    def train(s: Server, r: Round) -> Trained:
        models = replicate(s.u, len(r.cohort)) | rows(s.v, r.members)
        return train_cohort(problem, phases, training, models, rows(s.memory, r.members), r, shared)

    def exchange(s: Server, trained: Trained, r: Round) -> Server:
        moved = outer(s.u, s.u | merged(r, s.u, trained, weights(weighting, r)), outer_lr)
        v = split(trained.models, shared)[1]
        own = outer(rows(s.v, r.members), v, personal_outer_lr)
        return Server(moved, put(s.v, r.members, own), put(s.memory, r.members, trained.kept))

    def models(s: Server) -> Tensors:
        everywhere: Tensors = replicate(s.u, len(problem.here))
        return everywhere | s.v

    return Program(
        shared,
        init,
        train,
        exchange,
        models,
        message_of(shared),
        lambda s, r: both_ways(problem, s.u, problem.names - shared, r),
        participation=participation,
        known=lambda s: s.u,
        views=problem.views,
    )


def weights(weighting: str, r: Round) -> Tensor:
    """[m] how much each member of the cohort counts; a cohort without any data counts equally."""
    sizes = r.sizes
    return sizes if weighting == "size" and r.samples.sizes[r.whole].any() else torch.ones_like(sizes)


def merged(r: Round, old: Tensors, trained: Trained, weight: Tensor) -> Tensors:
    """The mean over the members that hold an entry; the old value where nobody does."""
    if trained.mass is None:
        return r.engine.mean(trained.sent, weight)
    lacking = {k: 1 - v for k, v in trained.mass.items()}
    mean, mass, absent = together(lambda x: r.engine.mean(x, weight), trained.sent, trained.mass, lacking)
    divided = merge({k: old[k] for k in mean}, mean, mass)
    return {k: torch.where(absent[k] == 0, mean[k], v) for k, v in divided.items()}  # to the last bit where all hold it
