"""DisPFL: everybody has a sparse model of its own, and a mask that moves."""

import math
from collections.abc import Mapping
from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from .. import chance
from .. import topology as topologies
from ..batches import Amount, Integers, Stream
from ..local import Guide, Phase
from ..mixing import together
from ..tensors import Tensors, count, entries, floating, replicate, size_in_bytes, split
from ..topology import Topology
from .base import Algorithm, Problem, Program, Round, Trained
from .families import lasting, message_of, train_cohort
from .finetuned import refuse_finetune
from .options import SAM_PAPER, Options, Training, check_choice, check_range
from .traffic import Load, Traffic, over

REGROWTH_STREAM = 4  # the batch whose gradient says where to grow


class Sparse(NamedTuple):
    """State of DisPFL; every slot is stacked over the clients."""

    x: Tensors  # the models, stored densely, zero where the mask is
    mask: Tensors  # which parameters are alive
    memory: Tensors  # momentum of what is alive that outlives a round; empty unless asked for


class Kept(NamedTuple):
    """What stays with the clients between their work and the exchange; stacked."""

    mask: Tensors  # the next one
    memory: Tensors


def dispfl(
    *,
    density: float = 0.5,
    prune_rate: float = 0.5,
    regrow: str = "random",
    topology: str | Topology = "random-pull:10",
    **options: Unpack[Options],
) -> Algorithm:
    """DisPFL: sparse personal models; a coordinate is averaged over the neighbours that have it.

    z_i <- local(x_i), masked by m_i after every step;   m_i' <- m_i with the smallest of z_i dropped, as many regrown
    x_i <- m_i' * sum_j z_j / #(j: m_j = 1)   over the neighbours j and i itself

    density: the share of parameters alive, spread over the tensors by ERK; prune_rate: the share that moves in the
    first round, annealed to none by a cosine; regrow: "random", or "gradient" for the largest of a batch.

    >>> dispfl(topology="ring").settings["density"]
    0.5

    Reference: Dai et al., "DisPFL: Towards Communication-Efficient Personalized Federated Learning", 2022,
    Algorithm 1.
    Differs from the paper in: where masks regrow: at random, as in all released scripts; regrow="gradient" is the
    other form of its code. A round trains first and mixes afterwards, the same iteration as the code's half a round
    on.
    """
    check_range("density", density, 1e-6, 1)
    check_range("prune_rate", prune_rate, 0, 1)
    check_choice("regrow", regrow, ("random", "gradient"))
    t = SAM_PAPER.given(options)
    refuse_finetune("dispfl", t, "keeps most entries of a model at zero, which fine-tuning would fill")

    def bind(p: Problem) -> Program[Sparse]:
        return sparse(p, t, topology, density, prune_rate, regrow)

    own = {"density": density, "prune_rate": prune_rate, "regrow": regrow, "topology": topology}
    return Algorithm("dispfl", {**own, **t._asdict()}, bind)


def sparse(
    p: Problem, t: Training, topology: str | Topology, density: float, prune_rate: float, regrow: str
) -> Program[Sparse]:
    """The program; only who hears whom counts of the topology, not its weights."""
    graph = topologies.build(topology, p.clients, p.seed)
    phase = Phase(p.parameters, t.amount, t.lr, after_step=masked)

    def init(common: Tensors, each: Tensors) -> Sparse:
        mask = first_masks(split(common, p.parameters)[0], density, p.here, p.seed)
        x = {k: v * mask[k] if k in mask else v for k, v in each.items()}
        return Sparse(x, mask, replicate(lasting(t, [phase], common), count(each)))

    def train(s: Sparse, r: Round) -> Trained:
        done = train_cohort(p, [phase], t, s.x, s.memory, r, p.names, guide=s.mask)
        score = random_scores(s.mask, p.seed, r) if regrow == "random" else gradient_sizes(p, done.models, t, r)
        moving = annealed(prune_rate, r.index, p.rounds)
        mask = {k: regrown(done.models[k], m, moving, score[k]) for k, m in s.mask.items()}
        alive = {k: s.mask[k].to(v) if k in s.mask else torch.ones_like(v) for k, v in done.sent.items()}
        memory = {k: v * (s.mask[k] & mask[k]) for k, v in done.kept.items()}  # what grows starts without momentum
        return done._replace(kept=Kept(mask, memory), mass=alive)

    def exchange(s: Sparse, trained: Trained, r: Round) -> Sparse:
        assert r.W is not None
        assert trained.mass is not None
        near = topologies.support(r.W)
        total, count = together(lambda x: r.engine.mix(near, x), trained.sent, trained.mass)
        mean = {k: v / count[k].clamp(min=1) for k, v in total.items()}
        mask, memory = trained.kept
        mixed = {k: v * mask[k] if k in mask else v for k, v in mean.items()}
        return Sparse(trained.models | mixed, mask, memory)

    def traffic(s: Sparse, r: Round) -> Traffic:
        assert r.W is not None
        return Traffic(over(r.W, sparse_load(s)))

    return Program(p.names, init, train, exchange, lambda s: s.x, message_of(p.names), traffic, graph)


def masked(x: Tensors, mask: Guide, lr: float | Tensor) -> Tensors:
    """Zero where the mask is, after every step."""
    return {k: v * mask[k] for k, v in x.items()}


def erk(shapes: Mapping[str, tuple[int, ...]], density: float) -> dict[str, int]:
    """How many entries of each tensor are alive: in proportion to the sum of its dimensions, none above its size.

    >>> erk({"a": (10, 10), "b": (10,)}, 0.5)
    {'a': 45, 'b': 10}

    Reference: Evci et al., "Rigging the Lottery", 2020, the Erdos-Renyi-kernel.
    """
    size = {k: math.prod(shape) for k, shape in shapes.items()}
    reach = {k: sum(shape) or 1 for k, shape in shapes.items()}
    dense: set[str] = set()
    while True:
        rest = [k for k in shapes if k not in dense]
        left = density * sum(size.values()) - sum(size[k] for k in dense)
        share = left / max(sum(reach[k] for k in rest), 1)
        full = {k for k in rest if share * reach[k] > size[k]}
        if not full:
            return {k: size[k] if k in dense else int(share * reach[k] + 1e-9) for k in shapes}
        dense |= full


def first_masks(model: Tensors, density: float, clients: Integers, seed: int) -> Tensors:
    """Random positions of the right number, other ones for every client."""
    alive = erk({k: tuple(v.shape) for k, v in model.items()}, density)
    draws = [chance.generator(seed, "mask", 0, int(i)) for i in clients]
    return {
        k: torch.from_numpy(np.stack([draw.permutation(v.numel()) < alive[k] for draw in draws]))
        .view(len(clients), *v.shape)
        .to(v.device)
        for k, v in model.items()
    }


def annealed(prune_rate: float, t: int, rounds: int) -> float:
    """The share of alive parameters that moves in round ``t``."""
    return prune_rate / 2 * (1 + math.cos(math.pi * t / max(rounds, 1)))


def random_scores(mask: Tensors, seed: int, r: Round) -> Tensors:
    """Where each client grows first, drawn anew in every round."""
    draws = [chance.generator(seed, "mask", r.index + 1, int(i)) for i in r.cohort]
    return {
        k: torch.from_numpy(np.stack([draw.random(v[0].numel(), np.float32) for draw in draws])).view_as(v).to(v.device)
        for k, v in mask.items()
    }


def gradient_sizes(p: Problem, models: Tensors, t: Training, r: Round) -> Tensors:
    """|g| of one batch, in evaluation mode: where growing would help most.

    What is below a millionth of the largest is none: where a bias cannot matter (a key's in attention) its gradient is
    rounding noise, which differs from engine to engine and must not choose.
    """

    def client(x: Tensors, stream: Stream) -> Tensors:
        moving, held = split(x, p.parameters)
        g = p.still(moving, held, stream.batch(0))[0] if stream.steps else moving
        return {k: torch.where(v.abs() > 1e-6 * v.abs().amax(), v.abs(), 0.0) for k, v in g.items()}

    sizes: Tensors = r.map(client, models, r.batches(REGROWTH_STREAM, Amount(steps=1), t.batch_size))
    return sizes


def regrown(w: Tensor, mask: Tensor, share: float, score: Tensor) -> Tensor:
    """The mask with the smallest ``share`` of what is alive dropped, and as many grown where the score is largest.

    Stacked over clients, all of which have equally many alive; what was just dropped may grow again.
    """
    flat = mask.reshape(len(mask), -1)
    moving = math.ceil(share * int(flat[0].sum()))
    size = w.reshape(flat.shape).abs().masked_fill(~flat, torch.inf)
    left = flat.scatter(1, size.argsort(stable=True)[:, :moving], False)  # of equal ones the first, on every device
    wanted = score.reshape(flat.shape).masked_fill(left, -torch.inf)
    return left.scatter(1, wanted.argsort(stable=True, descending=True)[:, :moving], True).view_as(mask)


def sparse_load(s: Sparse) -> Load:
    """What is alive, the buffers, and a bit for every entry that may be dead."""
    alive = {k: v[0][s.mask[k][0]] if k in s.mask else v[0] for k, v in floating(s.x).items()}
    positions = sum(v[0].numel() for v in s.mask.values())
    return Load(entries(alive.values()), size_in_bytes(alive.values()), len(alive), -(-positions // 8))
