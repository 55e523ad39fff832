"""A method, bound to a model and its clients, with the wrappers that any method may have around it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from ..core.errors import UserError, unknown
from ..core.tensors import Tensors, add, count, put, replicate, rows, sub, tree_map, zeros_like
from ..local.steps import Phase
from .base import Algorithm, ModelGroup, Problem, Program, Round, Trained, around
from .beside import second_names
from .kept import check_optimizers
from .options import members, refuse_robust
from .traffic import Traffic
from .update import LocalUpdate, chunks, model_groups

FINETUNE_STREAM = 3  # batches of the fine-tuning
SCALE_BYTES = 4  # one number in single precision goes along with every quantized tensor


def bind(algorithm: Algorithm, problem: Problem, absences: bool = False) -> Program[Any]:
    """Return the method's program, with its wrappers.

    Clients may tune their models before these are measured, and messages may have few bits. With ``absences``, or
    where only a cohort takes part, a client between peers keeps its state for a whole round.
    """
    program = algorithm.bind(problem)
    _check_program(algorithm.name, program, problem)
    t = program.training
    check_optimizers(t, program.phases, problem.model.start)
    if program.rule is None:
        refuse_robust(t, f"{algorithm.name} names none in its program (rule)")
    if t.server_optimizer != "sgd" and not program.server_steps:
        raise UserError(
            f"server_optimizer={t.server_optimizer} changes nothing, because {algorithm.name} as it is set has no "
            "server that steps toward an average: leave it out"
        )
    if t.finetune_epochs:
        program = finetuned(program, problem)
    graph, n = program.topology, problem.clients
    if graph is not None and (absences or members(program.participation, n) < n):
        program = attended(program)
    return program if t.quantize is None else quantized(program, t.quantize)


def _check_program(method: str, program: object, problem: Problem) -> None:
    """Refuse what a method of one's own returns if it is no program, or names what the model does not have.

    A name that is misspelled would be shared by nobody, and the method would be training alone.
    """
    if not isinstance(program, Program):
        raise UserError(f"{method} returns {type(program).__name__}: return a Program, as federated(...) makes one")
    if program.submodels is not None:
        return  # these have names of their own
    trained = frozenset[str]().union(*(phase.trains for phase in program.phases))
    if not trained and not program.training.finetune_epochs:
        raise UserError(
            f"{method} trains nothing of this model, whose parameters that may be trained are "
            f"{', '.join(sorted(problem.parameters))}: set requires_grad of others, or choose another method"
        )
    for does, names in (("shares", program.shared), ("trains", trained)):
        if strange := sorted(names - problem.names - second_names(problem.names)):
            raise unknown(f"parameter that {method} {does}", strange[0], sorted(problem.names))


def attended(program: Program[Any]) -> Program[Any]:
    """Wrap a method between peers so that only a cohort is active; the state of the others stays, to the last bit.

    Clients that are absent or were not drawn neither train nor send nor receive. W of the round has no edge to or from
    them, so the zeros in their rows during the exchange reach nobody, and afterwards they have their own rows again.
    Every slot of a state between peers is stacked over the clients, so the wrapper needs to know nothing else about a
    method.
    """

    def train(s: Any, r: Round) -> Trained:
        return program.train(rows(s, r.members), replace(r, local_clients=r.cohort))

    def exchange(s: Any, trained: Trained, r: Round) -> Any:
        members, known = r.members, dict[int, Tensor]()  # what is sent of a model is filled up once, with the model

        def fill(v: Tensor) -> Tensor:
            if id(v) not in known:
                known[id(v)] = v.new_zeros(len(r.local_clients), *v.shape[1:]).index_copy_(0, members, v)
            return known[id(v)]

        names = ("models", "sent", "private") if trained.mass is None else ("models", "sent", "private", "mass")
        filled: dict[str, Any] = {name: tree_map(fill, getattr(trained, name)) for name in names}
        everybody = trained._replace(**filled)
        after = program.exchange(s, everybody, replace(r, cohort=r.local_clients))
        return put(s, members, rows(after, members))

    return program._replace(train=train, exchange=exchange)


def finetuned(program: Program[Any], problem: Problem) -> Program[Any]:
    """Wrap a method so that every client also tunes a copy of its own model, in its own form, to be measured.

    z_i <- x_i;   z_i <- z_i - lr m,  m <- momentum m + grad F_i(z_i),  finetune_epochs times through the client's data

    All parameters of the form are tuned, in batches of ``batch_size``. Rate and momentum are ``finetune_lr`` and
    ``finetune_momentum``, or ``lr`` and ``momentum`` where these are not given; weight decay and clipping are
    ``finetune_weight_decay`` and ``finetune_clip`` alone. The state stays as it is: the federation goes on as if no
    client had tuned anything.

    >>> from coterie.algorithms import fedavg
    >>> fedavg(finetune_epochs=5).settings["finetune_epochs"]
    5

    Reference: Oh, Kim, Yun, "FedBABU", 2022, for an optimizer without decay; the code released with DisPFL tunes
    FedAvg's model with that of training.
    """
    tuning = program.training.tuning

    def finetune(s: Any, r: Round) -> Iterator[ModelGroup]:
        for group in model_groups(problem.model, program.submodels, program.models(s), r):
            own = replace(problem, model=group.model, submodels=None)
            phase = Phase(own.parameters, tuning.amount, tuning.lr, stream=FINETUNE_STREAM)
            # Some at a time: a server's model is one, but the tuned models are as many as there are clients.
            for some in chunks(group.places, group.model):
                part = replace(r, cohort=r.cohort[group.places[some]])
                done = LocalUpdate(own, [phase], tuning).run(part, rows(group.models, some))
                yield group._replace(places=group.places[some], models=done.models)

    return program._replace(finetune=finetune)


class Compressed(NamedTuple):
    """State of a method whose messages are quantized."""

    inner: Any  # the method's own state
    residue: Tensors  # stacked: the sum of all rounding errors so far, which was not sent yet


def rounded(x: Tensor, bits: int) -> Tensor:
    """Round to the nearest of 2^bits - 1 equally spaced values between the largest entry and its negative.

    >>> rounded(torch.tensor([-1.0, 0.3, 0.0, 0.9]), bits=2).tolist()
    [-1.0, 0.0, 0.0, 1.0]
    """
    scale = x.abs().amax() / (2 ** (bits - 1) - 1)
    near: Tensor = (x / torch.where(scale > 0, scale, 1.0)).round() * scale
    return near


def quantized(program: Program[Any], bits: int) -> Program[Compressed]:
    """Wrap a method so that every number a client sends has ``bits`` bits, with error feedback.

    y_i = m_i - k + e_i;   q_i = round(y_i) is sent;   e_i <- y_i - q_i;   the exchange sees k + q_i in place of m_i

    m_i: the client's message; k: the part of it that all receivers have already (a server's model, nothing between
    peers). Nothing is lost: a rounding error is added to the next message. Messages that are sent on after
    aggregation (a server's answer, further gossip steps) keep their precision and are counted so.

    >>> from coterie.algorithms import dfedavgm
    >>> dfedavgm(topology="ring", quantize=8).settings["quantize"]
    8

    Reference: Sun, Li, Wang, "Decentralized Federated Averaging", 2022, Algorithm 2, for quantizing what is exchanged;
    Seide et al., "1-Bit Stochastic Gradient Descent", 2014, for the feedback.
    Differs from DFedAvgM's in: it sends models, not steps, because a random graph's receivers hold no earlier model of
    the sender; the rounding is to the nearest value.
    """

    def init(common: Tensors, each: Tensors) -> Compressed:
        return Compressed(program.init(common, each), replicate(zeros_like(program.message(common)), count(each)))

    def exchange(s: Compressed, trained: Trained, r: Round) -> Compressed:
        if not trained.sent or not len(r.cohort):
            return s._replace(inner=program.exchange(s.inner, trained, r))
        everywhere = {} if program.receiver_has is None else program.receiver_has(s.inner)
        base = replicate({k: v for k, v in everywhere.items() if k in trained.sent}, len(r.cohort))
        if trained.mass is not None:
            base = {k: v * trained.mass[k] for k, v in base.items()}
        y = add(trained.sent | sub({k: trained.sent[k] for k in base}, base), rows(s.residue, r.members))
        q: Tensors = vmap(lambda y: {k: rounded(v, bits) for k, v in y.items()})(y)
        if trained.mass is not None:  # an entry that is not there cannot be sent; its error waits until it is
            q = {k: v * trained.mass[k] for k, v in q.items()}
        residue = put(s.residue, r.members, sub(y, q))
        delivered = trained._replace(sent=q | add(base, {k: q[k] for k in base}))
        return Compressed(program.exchange(s.inner, delivered, r), residue)

    def traffic(s: Compressed, r: Round) -> Traffic:
        full = program.traffic(s.inner, r)
        loads = [
            m.load._replace(values=-(-m.load.parameters * bits // 8) + SCALE_BYTES * m.load.tensors) for m in full.sent
        ]
        return full._replace(sent=tuple(m._replace(load=load) for m, load in zip(full.sent, loads, strict=True)))

    def prepare(s: Compressed, r: Round) -> Compressed:
        return s if program.prepare is None else s._replace(inner=program.prepare(s.inner, r))

    return around(program, lambda s: s.inner, init=init, exchange=exchange, traffic=traffic, prepare=prepare)
