"""The family with a server whose clients correct their drift: control variates.

y <- y - lr (grad F_i(y) - c_i + c);   c_i' = c_i - c + (x - y_K) / (K lr);   c <- c + (1/n) sum_S (c_i' - c_i)
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from ..core.errors import UserError
from ..core.tensors import Tensors, add, count, mul, put, replicate, rows, split, sub, zeros_like
from ..data.batches import Stream
from ..engines.base import Grad
from ..exchange.mixing import average
from ..local.corrections import CONTROL
from ..local.optimizers import Slots
from ..local.paces import pace_of
from ..local.slices import sliced
from ..local.steps import Phase
from .base import Problem, Program, Round, Trained
from .options import Training, refuse_robust
from .server import both_ways, federated

CONTROL_STREAM = 2  # batches of the first control variates


class Controlled(NamedTuple):
    """State with a server, with control variates."""

    u: Tensors  # the shared part, on the server
    v: Tensors  # stacked: the personal parts
    memory: Slots  # empty: SGD without momentum has none
    outer: Slots  # of the server's optimizer
    c: Tensors  # the server's control variate: the mean of all c_i
    c_i: Tensors  # stacked: the clients' control variates


def controlled(
    p: Problem,
    phase: Phase,
    t: Training,
    shared: frozenset[str],
    participation: float | int,
    outer_lr: float,
    personal_outer_lr: float,
    c_init: str,
) -> Program[Controlled]:
    """Return FedAvg with outer steps, whose gradients are shifted by c - c_i, and which renews the control variates."""
    names = shared & p.parameters
    aux = {CONTROL: lambda s, r: correction(s.c, rows(s.c_i, r.members))}
    base: Program[Any] = federated(p, [phase], t, shared, participation, "uniform", outer_lr, personal_outer_lr, aux)

    def init(common: Tensors, each: Tensors) -> Controlled:
        c = zeros_like(split(common, names)[0])
        u, v, memory, outer = base.init(common, each)
        return Controlled(u, v, memory, outer, c, replicate(c, count(each)))

    def start_gradients(s: Controlled, r: Round) -> Controlled:
        """Set c_i to the mean gradient of the batches of a round, all at the start."""
        grad = sliced(r.engine.gradient(p.model.objective), t.micro_batch)
        batches = r.batches(CONTROL_STREAM, t.amount, t.batch_size, t.replacement)
        c_i = r.map(lambda x, stream: mean_gradient(grad, names, x, stream), base.models(s), batches)
        return s._replace(c=r.engine.all_mean({k: v.mean(0) for k, v in c_i.items()}, len(p.local_clients)), c_i=c_i)

    def train(s: Controlled, r: Round) -> Trained:
        done, before = base.train(s, r), rows(s.c_i, r.members)
        moved = sub(replicate(split(s.u, names)[0], len(r.cohort)), split(done.models, names)[0])
        lengths = walked(done.steps, t, r.index) * t.round_rates.rate(phase.lr, r.index, p.rounds)
        return with_control(done, before, from_steps(s.c, before, moved, lengths))

    def exchange(s: Controlled, trained: Trained, r: Round) -> Controlled:
        changed, sent = split(trained.sent, {CONTROL + k for k in s.c})
        memory, c_i = trained.private
        u, v, memory, outer = base.exchange(s, trained._replace(sent=sent, private=memory), r)
        mean = average(r.engine, r.row("uniform"), changed)
        c = {k: torch.add(v, mean[CONTROL + k], alpha=len(r.global_cohort) / p.clients) for k, v in s.c.items()}
        return Controlled(u, v, memory, outer, c, put(s.c_i, r.members, c_i))

    return base._replace(
        init=init,
        train=train,
        exchange=exchange,
        message=lambda model: base.message(model) | of_control(split(model, names)[0]),
        traffic=lambda s, r: both_ways(p, s.u | of_control(s.c), (), r),
        prepare=start_gradients if c_init == "gradient" else None,
    )


def walked(steps: Tensor, t: Training, index: int) -> Tensor:
    """Return the sum over each member's steps of the factors that ``lr_schedule`` has for them: without one, K."""
    pace = pace_of(t.lr_schedule, index)
    if pace is None:
        return steps
    factors = [0.0, *(pace(k) for k in range(int(steps.max())))]
    return torch.tensor(factors, dtype=steps.dtype, device=steps.device).cumsum(0)[steps.long()]


def with_control(done: Trained, before: Tensors, after: Tensors) -> Trained:
    """Return the trained cohort with the change of its control variates in the message."""
    return done._replace(sent=done.sent | of_control(sub(after, before)), private=(done.private, after))


def of_control(c: Tensors) -> Tensors:
    """Return control variates under names of their own: they share a message with the model."""
    return {CONTROL + k: v for k, v in c.items()}


def correction(c: Tensors, c_i: Tensors) -> Tensors:
    """Return c - c_i for all clients, the shift of their gradients."""
    return sub(replicate(c, count(c_i)), c_i) if c_i else {}


def from_steps(c: Tensors, c_i: Tensors, moved: Tensors, lengths: Tensor) -> Tensors:
    """Return c_i - c + (x - y_K) / (K lr) for all clients, ``lengths``: their K lr; where it is 0, c_i stays."""

    def one(c_i: Tensors, moved: Tensors, length: Tensor) -> Tensors:
        new = add(sub(c_i, c), moved, 1 / length)
        return {k: torch.where(length > 0, new[k], v) for k, v in c_i.items()}

    renewed: Tensors = vmap(one)(c_i, moved, lengths)
    return renewed


def mean_gradient(grad: Grad, names: frozenset[str], model: Tensors, stream: Stream) -> Tensors:
    """Return one client's gradient in ``names``, averaged over the batches of a stream, all at the same point."""
    params, frozen = split(model, names)
    total = mul(params, 0.0)
    for k in range(stream.steps):
        total = add(total, grad(params, frozen, stream.batch(k))[0], 1 / stream.steps)
    return total


def check_plain(t: Training) -> None:
    """Refuse options with which (x - y_K) / (K lr) would not be the mean gradient."""
    if t.optimizer != "sgd":
        raise UserError(
            "control variates are mean gradients that are read off the way of plain SGD, which another optimizer does "
            "not go: leave optimizer out"
        )
    for key in ("momentum", "weight_decay", "clip"):
        if getattr(t, key):
            raise UserError(f"control variates need plain SGD: leave {key} out")
    refuse_robust(t, "the server's control variate has to be the mean of the clients'")
