"""The family between peers: clients that mix with their neighbors."""

from collections.abc import Sequence
from typing import NamedTuple

from .. import topology as topologies
from ..core.arguments import checked
from ..core.errors import UserError
from ..core.tensors import Tensors, count, replicate, split
from ..exchange.mixing import gossip
from ..local.optimizers import Slots
from ..local.steps import Phase
from ..topology import TopologyLike
from .base import Problem, Program, Round, Trained
from .kept import kept_state
from .options import Training
from .traffic import Traffic, gossiped, load
from .update import NOTHING, AuxOf, LocalUpdate, Names, look_up, message_of


class Peers(NamedTuple):
    """State without a server; every slot is stacked over the clients."""

    x: Tensors  # (u_i, v_i): shared and personal part of every client's model
    memory: Slots  # of the optimizers, where it outlives a round


@checked("function")
def decentralized(
    problem: Problem,
    phases: Sequence[Phase],
    training: Training,
    topology: TopologyLike,
    shared: Names,
    participation: float | int = 1.0,
    gossip_steps: int = 1,
    fresh_graph: bool = False,
    aux: AuxOf = NOTHING,
) -> Program[Peers]:
    """Return the program in which the active clients train, then average the shared part with their neighbors.

    z_i <- local(x_i);   u_i <- sum_j W[i, j] u(z_j), ``gossip_steps`` times;   v_i <- v(z_i)

    With ``robust`` a rule of ``exchange.robust`` takes the place of each sum.

    participation: who is active in a round; fresh_graph: each of these steps takes the next matrix of the topology,
    instead of all the same one; aux: the values that corrections look up, by name, as functions of the state and the
    round.
    """
    graph = topologies.build(topology, problem.clients, problem.seed)
    if graph.stochastic == "column":  # without push-sum's weights the models would shrink and grow
        raise UserError(
            f"{graph.name} is column-stochastic, which plain averaging cannot use: take random-pull or random"
        )
    work = LocalUpdate(problem, phases, training, frozenset(aux))
    message, rule = message_of(shared), training.rule

    def init(common: Tensors, each: Tensors) -> Peers:
        return Peers(each, replicate(kept_state(training, phases, common), count(each)))

    def train(s: Peers, r: Round) -> Trained:
        return work.train(r, s.x, s.memory, message, look_up(aux, s, r))

    def exchange(s: Peers, trained: Trained, r: Round) -> Peers:
        return Peers(trained.models | gossip(r.engine, r.Ws, trained.sent, rule), trained.private)

    def traffic(s: Peers, r: Round) -> Traffic:
        return gossiped(r.Ws, load(split(s.x, shared)[0], stacked=True))

    return Program(
        shared=shared,
        phases=phases,
        training=training,
        init=init,
        train=train,
        exchange=exchange,
        models=lambda s: s.x,
        message=message,
        traffic=traffic,
        topology=graph,
        gossip_steps=gossip_steps,
        fresh_graph=fresh_graph,
        participation=participation,
        submodels=problem.submodels,
        rule=rule,
    )
