"""The family with a server: a cohort trains from the server's model, which then moves to their mean."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..core.arguments import checked
from ..core.tensors import Tensors, count, put, replicate, rows, split
from ..exchange.mixing import average, interpolate
from ..local.optimizers import Slots
from ..local.steps import Phase
from .base import Problem, Program, Round, Trained
from .kept import kept_state
from .options import Training, Weighting
from .outer import server_step
from .traffic import Traffic, load, to_server
from .update import NOTHING, AuxOf, LocalUpdate, Names, look_up, message_of


class Server(NamedTuple):
    """State with a server."""

    u: Tensors  # the shared part, on the server
    v: Tensors  # stacked: the personal parts, on the clients
    memory: Slots  # stacked: of the optimizers, where it outlives a round
    outer: Slots  # of the server's optimizer


@checked("function")
def federated(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    shared: Names,
    participation: float | int = 1.0,
    weighting: Weighting = "size",
    outer_lr: float = 1.0,
    personal_outer_lr: float = 1.0,
    aux: AuxOf = NOTHING,
) -> Program[Server]:
    """Return the program in which a cohort trains from the server's model, which then moves to their mean.

    (u_i, v_i') <- local(u, v_i) for i in S;   u <- u + outer_lr (sum_S q_i u_i - u),  q by size or equal
    v_i <- v_i + personal_outer_lr (v_i' - v_i)

    With ``server_optimizer`` a step of that optimizer along u - sum_S q_i u_i takes the place of the server's.
    Where clients hold parts of the model only, every entry is averaged over those of S who hold it. With ``robust`` a
    rule of ``exchange.robust`` takes the place of the sum. aux: the values that corrections look up, by name, as
    functions of the state and the round.
    """
    work = LocalUpdate(problem, phases, training, frozenset(aux))
    message, rule, step = message_of(shared), training.rule, server_step(training.server_optimizer)

    def init(common: Tensors, each: Tensors) -> Server:
        u, v = split(common, shared)[0], split(each, shared)[1]
        outer = step.init(split(u, problem.parameters)[0])
        return Server(u, v, replicate(kept_state(training, phases, common), count(each)), outer)

    def train(s: Server, r: Round) -> Trained:
        models = replicate(s.u, len(r.cohort)) | rows(s.v, r.members)
        return work.train(r, models, rows(s.memory, r.members), message, look_up(aux, s, r))

    def exchange(s: Server, trained: Trained, r: Round) -> Server:
        u = s.u | average(r.engine, r.row(weighting), trained.sent, trained.mass, s.u, rule)
        v = interpolate(rows(s.v, r.members), split(trained.models, shared)[1], personal_outer_lr)
        u, outer = step(s.u, u, s.outer, outer_lr, problem.parameters)
        return Server(u, put(s.v, r.members, v), put(s.memory, r.members, trained.private), outer)

    return Program(
        shared=shared,
        phases=phases,
        training=training,
        init=init,
        train=train,
        exchange=exchange,
        models=lambda s: replicate(s.u, len(problem.local_clients)) | s.v,
        message=message,
        traffic=lambda s, r: both_ways(problem, s.u, problem.names - shared, r),
        participation=participation,
        receiver_has=lambda s: s.u,
        submodels=problem.submodels,
        rule=rule,
        server_steps=True,
    )


def both_ways(problem: Problem, u: Tensors, personal: Collection[str], r: Round) -> Traffic:
    """Count the server's part down and up once for every member of the cohort, in the form each of them has."""
    if problem.submodels is None:
        up = to_server(problem.clients, r.cohort, load(u, stacked=False))
    else:
        own = [
            (r.cohort[a.places], {*personal, *a.submodel.private}, a.submodel.model.start) for a in problem.submodels(r)
        ]
        forms = [(who, load(split(start, private)[1], stacked=False)) for who, private, start in own]
        up = tuple(m for who, sent in forms for m in to_server(problem.clients, who, sent))
    return Traffic(up, tuple(m.back for m in up))
