"""Messages of few bits: a wrapper of the exchange, for any method."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.tensors import Tensors, add, count, put, replicate, rows, sub, zeros_like
from .base import Program, Round, Trained, around
from .traffic import Load, Traffic

SCALE_BYTES = 4  # one number in single precision goes along with every tensor


class Compressed(NamedTuple):
    """State of a method whose messages are quantized."""

    inner: Any  # the method's own state
    residue: Tensors  # stacked: what rounding has kept from being sent so far


def rounded(x: Tensor, bits: int) -> Tensor:
    """The nearest of 2^bits - 1 equally spaced values, as far as the largest entry on both sides of zero.

    >>> rounded(torch.tensor([-1.0, 0.3, 0.0, 0.9]), bits=2).tolist()
    [-1.0, 0.0, 0.0, 1.0]
    """
    scale = x.abs().amax() / (2 ** (bits - 1) - 1)
    near: Tensor = (x / torch.where(scale > 0, scale, 1.0)).round() * scale
    return near


def quantized(program: Program[Any], bits: int) -> Program[Compressed]:
    """The same method with ``bits`` for every number a client sends, and error feedback.

    y_i = m_i - k + e_i;   q_i = round(y_i) is sent;   e_i <- y_i - q_i;   the exchange sees k + q_i in place of m_i

    m_i: the client's message; k: what all its receivers have of it already (a server's model, nothing between peers).
    Nothing is lost: what rounding takes from a message goes into the next one. What is sent on after mixing (a
    server's answer, further gossip steps) keeps its precision and is counted so.

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
        known = replicate({k: v for k, v in everywhere.items() if k in trained.sent}, len(r.cohort))
        if trained.mass is not None:
            known = {k: v * trained.mass[k] for k, v in known.items()}
        wanted = add(trained.sent | sub({k: trained.sent[k] for k in known}, known), rows(s.residue, r.members))
        q: Tensors = torch.func.vmap(lambda y: {k: rounded(v, bits) for k, v in y.items()})(wanted)
        if trained.mass is not None:  # what is not there cannot be sent; its remainder waits until it is
            q = {k: v * trained.mass[k] for k, v in q.items()}
        residue = put(s.residue, r.members, sub(wanted, q))
        delivered = trained._replace(sent=q | add(known, {k: q[k] for k in known}))
        return Compressed(program.exchange(s.inner, delivered, r), residue)

    def traffic(s: Compressed, r: Round) -> Traffic:
        full = program.traffic(s.inner, r)
        return full._replace(sent=tuple(m._replace(load=few_bits(m.load, bits)) for m in full.sent))

    def prepare(s: Compressed, r: Round) -> Compressed:
        return s if program.prepare is None else s._replace(inner=program.prepare(s.inner, r))

    return around(program, lambda s: s.inner, init=init, exchange=exchange, traffic=traffic, prepare=prepare)


def few_bits(load: Load, bits: int) -> Load:
    """What a message weighs once its numbers are rounded."""
    return load._replace(values=-(-load.parameters * bits // 8) + SCALE_BYTES * load.tensors)
