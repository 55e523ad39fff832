"""Control variates around a server: Scaffold and Scaffold-P."""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from ..batches import Stream
from ..directions import compose, shifted
from ..errors import RequestError
from ..local import Phase
from ..mixing import outer
from ..split import Patterns
from ..tensors import Tensors, add, count, mul, put, replicate, rows, split, sub, zeros_like
from .base import Algorithm, Problem, Program, Round, Trained
from .families import Work, both_ways, message_of
from .options import Options, Training, check_choice, check_range
from .partial import P_OUTER, P_PAPER, P_PERSONAL_LR, P_PERSONAL_OUTER, check_exact, noisy_phase
from .server import check_server


class Controlled(NamedTuple):
    """State of Scaffold and Scaffold-P."""

    u: Tensors  # the shared part, on the server
    c: Tensors  # the server's control variate: the mean of all c_i
    v: Tensors  # stacked: the personal parts
    c_i: Tensors  # stacked: the clients' control variates


class Outer(NamedTuple):
    """Step sizes between rounds."""

    shared: float
    personal: float


def scaffold(
    *,
    participation: float | int = 0.1,
    outer_lr: float = 1.0,
    option: str = "II",
    c_init: str = "zero",
    **options: Unpack[Options],
) -> Algorithm:
    """Scaffold: FedAvg whose local steps are corrected for the drift between clients.

    y_k+1 = y_k - lr (grad F_i(y_k) - c_i + c)   for i in S;   x <- x + outer_lr (mean_S y_i - x)
    option "II": c_i' = c_i - c + (x - y_K) / (K lr);   option "I": c_i' = grad f_i(x) over all local data
    c <- c + (1/n) sum_S (c_i' - c_i)

    c_init: "zero", or "gradient" for the mean gradient of K batches at the start.

    >>> scaffold().settings["momentum"]
    0.0

    Reference: Karimireddy et al., "SCAFFOLD", 2020, Algorithm 1.
    Differs from the paper in: nothing we know of. c_init="gradient" is of the paper on Scaffold-P. Momentum, weight
    decay and clipping are refused: with them (x - y_K) / (K lr) is no mean gradient.
    """
    check_server(participation, "uniform", outer_lr)
    check_choice("option", option, ("I", "II"))
    t = _plain(Training(lr_decay=1.0, momentum=0.0, weight_decay=0.0, clip=None).given(options), "scaffold")
    check_choice("c_init", c_init, ("zero", "gradient"))

    def bind(p: Problem) -> Program[Controlled]:
        phase = Phase(p.parameters, t.amount, t.lr, direction=shifted)
        return controlled(p, phase, t, p.names, participation, Outer(outer_lr, 1.0), c_init, option)

    own = {"participation": participation, "outer_lr": outer_lr, "option": option, "c_init": c_init}
    return Algorithm("scaffold", {**own, **t._asdict()}, bind)


def scaffold_p(
    *,
    personal: Patterns = "head",
    participation: float | int = 0.9,
    personal_lr: float = P_PERSONAL_LR,
    outer_lr: float = P_OUTER,
    personal_outer_lr: float = P_PERSONAL_OUTER,
    c_init: str = "gradient",
    exact_personal: bool = False,
    **options: Unpack[Options],
) -> Algorithm:
    """Scaffold-P: FedAvg-P with control variates on the shared part.

    u_k+1 = u_k - lr (grad_u F_i - c_i + c),  v_k+1 = v_k - personal_lr grad_v F_i,  both at (u_k, v_k)   for i in S
    c_i' = c_i - c + (u - u_K) / (K lr);   c <- c + (1/n) sum_S (c_i' - c_i);   u and v_i move as in FedAvg-P

    c_init: "gradient" as in the paper (the mean gradient of K batches at the start), or "zero"; exact_personal and
    the products of step sizes: see fedavg_p.

    >>> scaffold_p().settings["c_init"]
    'gradient'

    Reference: FedAvg-P/Scaffold-P, Algorithm 4.1.
    Differs from the paper in: the outer step sizes, chosen as in fedavg_p. Momentum, weight decay and clipping are
    refused, as in scaffold.
    """
    check_server(participation, "uniform", outer_lr)
    check_range("personal_lr", personal_lr, 0, float("inf"))
    check_range("personal_outer_lr", personal_outer_lr, 0, float("inf"))
    check_choice("c_init", c_init, ("zero", "gradient"))
    t = _plain(P_PAPER.given(options), "scaffold-p")
    check_exact(exact_personal, t)

    def bind(p: Problem) -> Program[Controlled]:
        phase = noisy_phase(p, personal, t, personal_lr, exact_personal)
        phase = phase._replace(direction=compose(phase.direction, shifted))
        steps = Outer(outer_lr, personal_outer_lr)
        return controlled(p, phase, t, p.names - p.personal(personal), participation, steps, c_init, "II")

    settings = {
        "personal": personal,
        "participation": participation,
        "personal_lr": personal_lr,
        "outer_lr": outer_lr,
        "personal_outer_lr": personal_outer_lr,
        "c_init": c_init,
        "exact_personal": exact_personal,
        **t._asdict(),
    }
    return Algorithm("scaffold-p", settings, bind)


def _plain(t: Training, name: str) -> Training:
    """Refuses whatever would make (x - y_K) / (K lr) something else than the mean gradient."""
    for key in ("momentum", "weight_decay", "clip"):
        if getattr(t, key):
            raise RequestError(f"{name} takes plain SGD only, its control variates need it: leave {key} out")
    return t


def controlled(
    p: Problem,
    phase: Phase,
    t: Training,
    shared: frozenset[str],
    participation: float | int,
    steps: Outer,
    c_init: str,
    option: str,
) -> Program[Controlled]:
    """The program of both methods."""
    names = shared & p.parameters

    def init(common: Tensors, each: Tensors) -> Controlled:
        u, v = split(common, shared)[0], split(each, shared)[1]
        c = zeros_like(split(common, names)[0])
        return Controlled(u, c, v, replicate(c, count(each)))

    def start_gradients(s: Controlled, r: Round) -> Controlled:
        """c_i: the mean gradient of the batches of a round, all at the start."""
        everyone = replicate(s.u, len(p.here)) | s.v
        batches = r.batches(CONTROL_STREAM, t.amount, t.batch_size)
        c_i = r.map(lambda x, stream: mean_gradient(p, names, x, stream), everyone, batches)
        return s._replace(c=r.engine.agree({k: v.mean(0) for k, v in c_i.items()}, len(p.here)), c_i=c_i)

    def train(s: Controlled, r: Round) -> Trained:
        work = Work.of(p, [phase], t, r)
        models = replicate(s.u, len(r.cohort)) | rows(s.v, r.members)
        before = rows(s.c_i, r.members)
        done = work.done(r, models, {}, correction(s.c, before))
        if option == "I":
            everything = r.batches(0, t.amount._replace(epochs=1, steps=None), None)
            c_new = r.map(lambda x, c_i, stream: from_data(p, x, c_i, stream), models, before, everything)
        else:
            moved = sub(split(models, names)[0], split(done.model, names)[0])
            total = torch.from_numpy(work.batches[0].steps).to(done.loss) * work.steps[0].sgd.lr
            c_new = from_steps(s.c, before, moved, total)
        sent = message_of(shared)(done.model) | _of_control(sub(c_new, before))
        return work.trained(done.model, sent, c_new, done.loss)

    def exchange(s: Controlled, trained: Trained, r: Round) -> Controlled:
        equal = torch.ones(len(r.cohort), dtype=torch.float64, device=r.members.device)
        mean = r.engine.mean(trained.sent, equal)
        moved = outer(s.u, s.u | {k: v for k, v in mean.items() if k in s.u}, steps.shared)
        own = outer(rows(s.v, r.members), split(trained.models, shared)[1], steps.personal)
        c = {k: torch.add(v, mean[CONTROL + k], alpha=len(r.whole) / p.clients) for k, v in s.c.items()}
        return Controlled(moved, c, put(s.v, r.members, own), put(s.c_i, r.members, trained.kept))

    def models(s: Controlled) -> Tensors:
        everywhere: Tensors = replicate(s.u, len(p.here))
        return everywhere | s.v

    def message(model: Tensors) -> Tensors:
        return message_of(shared)(model) | _of_control(split(model, names)[0])

    return Program(
        shared,
        init,
        train,
        exchange,
        models,
        message,
        lambda s, r: both_ways(p, s.u | _of_control(s.c), (), r),
        participation=participation,
        prepare=start_gradients if c_init == "gradient" else None,
        known=lambda s: s.u,
    )


CONTROL = "control/"  # before the names of control variates in a message
CONTROL_STREAM = 2  # batches of the first control variates


def _of_control(c: Tensors) -> Tensors:
    return {CONTROL + k: v for k, v in c.items()}


def mean_gradient(p: Problem, names: frozenset[str], model: Tensors, stream: Stream) -> Tensors:
    """The gradient in ``names`` averaged over the batches of a stream, all at the same point."""
    moving, held = split(model, names)
    total = mul(moving, 0.0)
    for k in range(stream.steps):
        total = add(total, p.gradient(moving, held, stream.batch(k))[0], 1 / stream.steps)
    return total


def correction(c: Tensors, c_i: Tensors) -> Tensors:
    """c - c_i for all clients: what their gradients are shifted by."""
    return sub(replicate(c, len(next(iter(c_i.values())))), c_i) if c_i else {}


def from_steps(c: Tensors, c_i: Tensors, moved: Tensors, total: Tensor) -> Tensors:
    """c_i - c + (x - y_K) / (K lr) for all clients, ``total``: their K lr; where that is 0 the old one stays."""

    def one(c_i: Tensors, moved: Tensors, total: Tensor) -> Tensors:
        new = add(sub(c_i, c), moved, 1 / total)
        return {k: torch.where(total > 0, new[k], v) for k, v in c_i.items()}

    renewed: Tensors = torch.func.vmap(one)(c_i, moved, total)
    return renewed


def from_data(p: Problem, x: Tensors, c_i: Tensors, all_data: Stream) -> Tensors:
    """grad f_i(x) over all data of one client; without any it keeps the old one."""
    return mean_gradient(p, frozenset(c_i), x, all_data) if all_data.steps else c_i
