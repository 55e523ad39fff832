"""FedAMP: clients are pulled toward a mean of the models that are like theirs."""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from ..core.annotations import LARGEST
from ..core.errors import UserError
from ..core.tensors import Tensors, dot, rows, split, sub
from ..exchange.mixing import average
from ..local.corrections import proximal
from ..local.steps import REFERENCE, Phase
from ..topology.sparse import DENSE, entries, with_diagonal, with_values
from .base import around
from .method import Options, Positive, Problem, Program, Rate, Round, TopologyLike, Trained, Training, method
from .options import refuse_robust
from .peers import Peers, decentralized
from .server import both_ways
from .update import LocalUpdate, message_of


class Attentive(NamedTuple):
    """State of FedAMP; every slot is stacked over the clients."""

    peers: Peers  # everybody's own model w_i
    u: Tensors  # what it is pulled toward


def _check(t: Training) -> None:
    refuse_robust(t, "fedamp's weights are learned, so that who is far away counts little already")


@method(check=_check)
def fedamp(
    p: Problem,
    t: Training,
    *,
    alpha: Positive = 5.0,
    sigma: Positive = 5.0,
    lam: Rate = 0.5,
    topology: TopologyLike | None = None,
    **options: Unpack[Options],
) -> Program[Attentive]:
    """FedAMP: everybody is pulled toward a mean of models, in which those that are like its own count most.

    w_i <- local(w_i) along grad F_i(w) + lam / alpha (w - u_i);   u_i <- sum_j xi_ij w_j
    a_ij = alpha A'(|w_i - w_j|^2) with A(s) = 1 - exp(-s / sigma);   xi_ij = a_ij / max(1, sum_h a_ih),  h, j != i
    xi_ii = 1 - sum_j xi_ij

    The weights are learned: they are computed from the models in every round. With a server everybody takes part and
    is heard; with a topology there is none, and clients hear their neighbors only. What is deployed is w_i.

    Args:
        alpha: How much clients attend to each other: the step size of the paper's message passing.
        sigma: The squared distance of two models at which attention has fallen to 37 %.
        lam: A client is pulled with the strength lam / alpha; 0 is local training.
        topology: Between peers instead of with a server.

    >>> fedamp(topology="ring").settings["sigma"]
    5.0

    Reference: Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", 2021, Algorithm 1; the
    public version in TsingZ0/PFLlib, system/flcore/servers/serveramp.py and clients/clientamp.py.
    Differs from the paper in: the prox is some steps from w_i instead of a minimum. The paper has u_i as a convex
    combination, which takes a small alpha; here others count at most 1 in sum, whatever alpha is, where PFLlib lets
    xi_ii be negative. PFLlib's pull is a norm that is not squared, of values without a gradient. alpha, sigma and lam
    suit the digits. Between peers is ours.
    """
    if topology is None and p.clients > DENSE:
        raise UserError(f"fedamp compares everybody with everybody, {p.clients} are too many: give it a topology")
    if lam > LARGEST * alpha:
        raise UserError(f"lam / alpha is the strength of a pull, and {lam:g} / {alpha:g} is no number: raise alpha")
    phase = Phase(p.parameters, t.amount, t.lr, proximal(lam / alpha))
    peers, work = decentralized(p, [phase], t, topology or "full", p.parameters), LocalUpdate(p, [phase], t)

    def attention(x: Tensors, y: Tensors) -> Tensor:
        away = sub(x, y)
        return alpha / sigma * torch.exp(-dot(away, away) / sigma)

    def init(common: Tensors, each: Tensors) -> Attentive:
        return Attentive(peers.init(common, each), split(each, p.parameters)[0])

    def train(s: Attentive, r: Round) -> Trained:
        return work.train(r, s.peers.x, s.peers.memory, message_of(p.parameters), {REFERENCE: s.u})

    def exchange(s: Attentive, trained: Trained, r: Round) -> Attentive:
        W = r.W if r.Ws else torch.ones(p.clients, p.clients, dtype=torch.float64, device=r.members.device)
        xi = convex(r.engine.pairwise(attention, W, trained.sent))
        return Attentive(Peers(trained.models, trained.private), average(r.engine, xi, trained.sent))

    own = peers._replace(shared=frozenset())  # nothing of what is deployed is everybody's
    program = around(own, lambda s: s.peers, init=init, train=train, exchange=exchange)
    if topology is not None:
        return program
    return program._replace(topology=None, traffic=lambda s, r: both_ways(p, rows(s.u, 0), (), r))


def convex(a: Tensor) -> Tensor:
    """Scale the weights ``a`` of others down where they sum to more than 1, and give the rest to the client itself."""
    a = with_diagonal(a, torch.zeros(len(a), dtype=a.dtype, device=a.device))
    i, _, values = entries(a)
    total = a @ values.new_ones(len(a))
    return with_diagonal(with_values(a, values / total.clamp(min=1)[i]), (1 - total).clamp(min=0))
