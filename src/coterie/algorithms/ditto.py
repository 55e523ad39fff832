"""Ditto: a global model, and personal ones that are pulled towards it."""

from collections.abc import Callable
from typing import NamedTuple, Unpack

from torch import Tensor

from ..directions import pulled
from ..local import Guide, Phase
from ..tensors import Tensors, add, count, floating, put, replicate, rows, sub
from .base import Algorithm, Problem, Program, Round, Trained
from .families import Work, both_ways, lasting, weights
from .options import Options, Training, check_choice, check_range
from .server import check_server


class Twin(NamedTuple):
    """State of Ditto."""

    w: Tensors  # the global model, on the server
    p: Tensors  # stacked: personal models, which never travel
    memory_w: Tensors  # stacked: momentum of each client's work on the global model that outlives a round, if asked for
    memory_p: Tensors  # stacked: momentum of the personal models, likewise


def ditto(
    *,
    lam: float = 0.75,
    prox: str = "gradient",
    participation: float | int = 0.1,
    weighting: str = "uniform",
    personal_lr: float | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """Ditto: FedAvg, and beside it personal models that stay near the global one.

    w_i <- local(w);   p_i <- local(p_i) along grad F_i(p) + lam (p - w), w as received   for i in S
    w <- sum_S q_i w_i
    prox "split": the pull is a step of its own after each gradient step, p <- p - lr lam (p - w)

    personal_lr: of the personal models; None: the same lr.

    >>> ditto().settings["lam"]
    0.75

    Reference: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", 2021, Algorithm 1.
    Differs from the paper in: lam = 0.75 and 5 epochs for each of the two models, as in DFedAlt's experiments.
    prox="split" is the form of DisPFL's code, which runs 2 and 3 epochs with lam = 0.5.
    """
    check_server(participation, weighting, 1.0)
    check_choice("prox", prox, ("gradient", "split"))
    check_range("lam", lam, 0, float("inf"))
    check_range("personal_lr", personal_lr, 0, float("inf"))
    t = Training().given(options)

    def bind(problem: Problem) -> Program[Twin]:
        main = Phase(problem.parameters, t.amount, t.lr)
        own = main._replace(lr=t.lr if personal_lr is None else personal_lr)
        own = own._replace(direction=pulled(lam)) if prox == "gradient" else own._replace(after_step=pull_back(lam))
        return _program(problem, main, own, t, participation, weighting)

    server = {"participation": participation, "weighting": weighting, "personal_lr": personal_lr}
    return Algorithm("ditto", {"lam": lam, "prox": prox, **server, **t._asdict()}, bind)


def pull_back(lam: float) -> Callable[[Tensors, Guide, float | Tensor], Tensors]:
    """p - lr lam (p - guide), after each step."""

    def after_step(x: Tensors, guide: Guide, lr: float | Tensor) -> Tensors:
        return add(x, sub(x, {k: guide[k] for k in x}), -lr * lam)

    return after_step


def _program(
    problem: Problem, main: Phase, own: Phase, t: Training, participation: float | int, weighting: str
) -> Program[Twin]:
    def init(common: Tensors, each: Tensors) -> Twin:
        memory: Tensors = replicate(lasting(t, [main], common), count(each))
        return Twin(common, each, memory, memory)

    def train(s: Twin, r: Round) -> Trained:
        shared, personal = (Work.of(problem, [phase], t, r) for phase in (main, own))
        received: Tensors = replicate(s.w, len(r.cohort))
        p = personal.done(r, rows(s.p, r.members), rows(s.memory_p, r.members), received)
        w = shared.done(r, received, rows(s.memory_w, r.members), {})
        trained = personal.trained(p.model, floating(w.model), (w.memory, p.memory), p.loss)
        return trained._replace(passes=shared.passes + personal.passes)

    def exchange(s: Twin, trained: Trained, r: Round) -> Twin:
        mean = r.engine.mean(trained.sent, weights(weighting, r))
        memory_w, memory_p = put((s.memory_w, s.memory_p), r.members, trained.kept)
        return Twin(s.w | mean, put(s.p, r.members, trained.models), memory_w, memory_p)

    return Program(
        frozenset(),
        init,
        train,
        exchange,
        lambda s: s.p,
        floating,
        lambda s, r: both_ways(problem, s.w, (), r),
        participation=participation,
        consensus=lambda s: s.w,
        known=lambda s: s.w,
    )
