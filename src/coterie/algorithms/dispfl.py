"""DisPFL: everybody has a sparse model of its own, and a mask that moves."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from .. import topology as topologies
from ..core import rng
from ..core.errors import UserError
from ..core.tensors import Integers, Tensors, Tree, floating, split, to_device, tree_map
from ..data.batches import Amount, Stream
from ..exchange.mixing import average
from ..local.corrections import MASK, masked
from ..local.optimizers import Slots, cosine
from ..local.slices import sliced
from ..local.steps import Phase
from .method import (
    Fraction,
    Options,
    Participation,
    Problem,
    Program,
    Range,
    Round,
    TopologyLike,
    Trained,
    Training,
    method,
)
from .options import SAM_PAPER, refuse_robust
from .peers import decentralized
from .traffic import Traffic, load, over

REGROWTH_STREAM = 4  # the batch whose gradient says where to grow


class Sparse(NamedTuple):
    """State of DisPFL; every slot is stacked over the clients."""

    x: Tensors  # the models, stored densely, zero where the mask is
    mask: Tensors  # which parameters are alive
    memory: Slots  # of the optimizer, where it outlives a round; zero where nothing is alive


def _check(t: Training) -> None:
    if t.finetune_epochs:
        raise UserError("dispfl keeps most entries at zero, which fine-tuning would fill: leave finetune_epochs out")
    refuse_robust(t, "dispfl's clients hold parts of the model, so that an entry may have one value only")


@method(SAM_PAPER, check=_check, paced=True)
def dispfl(
    p: Problem,
    t: Training,
    *,
    density: Annotated[float, Range(1e-6, 1)] = 0.5,
    prune_rate: Fraction = 0.5,
    regrow: Literal["random", "gradient"] = "random",
    topology: TopologyLike = "random-pull:10",
    participation: Participation = 1.0,
    **options: Unpack[Options],
) -> Program[Sparse]:
    """DisPFL: sparse personal models; a coordinate is averaged over the neighbors that have it.

    z_i <- local(x_i), masked by m_i after every step;   m_i' <- m_i with the smallest of z_i dropped, as many regrown
    x_i <- m_i' * sum_j z_j / #(j: m_j = 1)   over the neighbors j and i itself

    Only who hears whom counts of the topology, not its weights.

    Args:
        density: The share of parameters alive, spread over the tensors by ERK.
        prune_rate: The share that moves in the first round, annealed to none by a cosine.
        regrow: Where masks grow: "random", or "gradient" for the largest of a batch.
        topology: Who hears whom: a string such as "ring" or "random-pull:10", or a Topology.

    >>> dispfl(topology="ring").settings["density"]
    0.5

    Reference: Dai et al., "DisPFL: Towards Communication-Efficient Personalized Federated Learning", 2022,
    Algorithm 1.
    Differs from the paper in: where masks regrow: at random, as in all released scripts; regrow="gradient" is the
    other form of its code. A round trains first and mixes afterwards, the same iteration as the code's half a round
    on.
    """
    graph, phase = topologies.build(topology, p.clients, p.seed), Phase(p.parameters, t.amount, t.lr, masked())
    links, masks = replace(graph, stochastic="row"), {MASK: lambda s, r: s.mask}  # the graph's weights do not matter
    base: Program[Any] = decentralized(p, [phase], t, links, p.names, participation, aux=masks)

    def init(common: Tensors, each: Tensors) -> Sparse:
        mask = first_masks(split(common, p.parameters)[0], density, p.local_clients, p.seed)
        return Sparse(alive(each, mask), mask, base.init(common, each).memory)

    def train(s: Sparse, r: Round) -> Trained:
        done = base.train(s, r)
        score = random_scores(s.mask, p.seed, r) if regrow == "random" else gradient_sizes(p, done.models, t, r)
        moving = cosine(prune_rate, 0.0, r.index, p.rounds)
        mask = {k: regrown(done.models[k], m, moving, score[k]) for k, m in s.mask.items()}
        memory = {slot: alive(alive(values, s.mask), mask) for slot, values in done.private.items()}  # growing has none
        return done._replace(private=(mask, memory), mass=alive(tree_map(torch.ones_like, done.sent), s.mask))

    def exchange(s: Sparse, trained: Trained, r: Round) -> Sparse:
        mask, memory = trained.private
        mean = average(r.engine, topologies.support(r.W), trained.sent, trained.mass, old=trained.sent)
        return Sparse(alive(trained.models | mean, mask), mask, memory)

    def traffic(s: Sparse, r: Round) -> Traffic:
        sent = {k: v[0][s.mask[k][0]] if k in s.mask else v[0] for k, v in floating(s.x).items()}
        positions = sum(v[0].numel() for v in s.mask.values())  # one bit for every entry that may be dead
        return Traffic(over(r.W, load(sent, stacked=False, aside=-(-positions // 8))))

    return base._replace(init=init, train=train, exchange=exchange, traffic=traffic, topology=graph)


def alive(x: Tensors, mask: Tensors) -> Tensors:
    """Set x to zero where its mask is zero; tensors without a mask of their shape stay, as counts of steps."""
    return {k: v * mask[k] if k in mask and v.shape == mask[k].shape else v for k, v in x.items()}


def erk(shapes: Mapping[str, tuple[int, ...]], density: float) -> dict[str, int]:
    """Return how many entries of each tensor are alive: in proportion to the sum of its dimensions, at most its size.

    >>> erk({"a": (10, 10), "b": (10,)}, 0.5)
    {'a': 45, 'b': 10}

    Reference: Evci et al., "Rigging the Lottery", 2020, the Erdos-Renyi-kernel.
    """
    size, reach = ({k: f(shape) for k, shape in shapes.items()} for f in (math.prod, lambda shape: sum(shape) or 1))
    dense: set[str] = set()

    def share() -> float:
        left = density * sum(size.values()) - sum(size[k] for k in dense)
        return left / max(sum(reach[k] for k in shapes if k not in dense), 1)

    while full := {k for k in shapes if k not in dense and share() * reach[k] > size[k]}:
        dense |= full
    return {k: size[k] if k in dense else int(share() * reach[k] + 1e-9) for k in shapes}


def first_masks(model: Tensors, density: float, clients: Integers, seed: int) -> Tensors:
    """Draw masks of the right density, one per client."""
    count = erk({k: tuple(v.shape) for k, v in model.items()}, density)
    mask = {k: torch.empty(len(clients), *v.shape, dtype=torch.bool) for k, v in model.items()}
    draws = [rng.generator(seed, "mask", 0, int(i)) for i in clients]
    rng.draw_each(draws, mask, lambda draw, k, out: np.less(draw.permutation(out.size), count[k], out=out))
    return {k: v.to(model[k].device) for k, v in mask.items()}


def random_scores(mask: Tensors, seed: int, r: Round) -> Tensors:
    """Draw the scores by which each client grows, anew in every round."""
    score = {k: torch.empty(v.shape, dtype=torch.float32, pin_memory=v.is_cuda) for k, v in mask.items()}
    draws = [rng.generator(seed, "mask", r.index + 1, int(i)) for i in r.cohort]
    rng.draw_each(draws, score, lambda draw, _, out: draw.random(out=out, dtype=np.float32))
    return {k: to_device(v, mask[k].device) for k, v in score.items()}


def gradient_sizes(p: Problem, models: Tensors, t: Training, r: Round) -> Tree:
    """Return |g| of one batch, in evaluation mode: growing helps most where it is large.

    Values below a millionth of the largest are 0: where a bias cannot matter (a key's in attention) its gradient is
    rounding noise, which differs from engine to engine and must not choose.
    """
    grad = sliced(r.engine.gradient(p.model.eval_objective), t.micro_batch)

    def client(x: Tensors, stream: Stream) -> Tensors:
        g = grad(*split(x, p.parameters), stream.batch(0))[0] if stream.steps else split(x, p.parameters)[0]
        return {k: torch.where(v.abs() > 1e-6 * v.abs().amax(), v.abs(), 0.0) for k, v in g.items()}

    return r.map(client, models, r.batches(REGROWTH_STREAM, Amount(steps=1), t.batch_size, t.replacement))


def regrown(w: Tensor, mask: Tensor, share: float, score: Tensor) -> Tensor:
    """Drop the ``share`` of alive entries with the smallest weights, and grow as many where the score is largest.

    All is stacked over clients, which have equally many alive; an entry that was just dropped may grow again.
    """
    flat = mask.reshape(len(mask), -1)
    moving = math.ceil(share * int(flat[0].sum()))
    size = w.reshape(flat.shape).abs().masked_fill(~flat, torch.inf)
    left = flat.scatter(1, size.argsort(stable=True)[:, :moving], False)  # the first of equal ones, on every device
    growth = score.reshape(flat.shape).masked_fill(left, -torch.inf)
    return left.scatter(1, growth.argsort(stable=True, descending=True)[:, :moving], True).view_as(mask)
