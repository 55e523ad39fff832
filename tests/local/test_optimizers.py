"""Optimizers in methods: against torch.optim, on every engine, over shards, schedules, slices of batches, one's own."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW

import coterie as ct
from coterie import algorithms
from coterie.algorithms import Algorithm
from coterie.cluster.shard import outline
from coterie.engines import Graphed, Serial, Vectorized
from coterie.engines.base import Engine
from coterie.engines.capture import PlayOver, Wanted
from laws import FIRST, METHODS, kind_like
from quadratic import PUSH, RING, a, b, c, column, d, plain
from same_numbers import assert_same, graphed_for
from shards import SHARD_OF, assert_close, conduct, put_together, shards_of
from toys import Quadratic, experiment, golden, models, net, play, ragged, traced

LR, OWN_LR, STEPS, ROUNDS = 0.1, 0.05, 3, 3
ENGINES: dict[str, Callable[[], Engine]] = {
    "serial": Serial,
    "vectorized": lambda: Vectorized(3),
    "graphed": lambda: graphed_for(3),
}
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": ({"momentum": 0.9, "weight_decay": 0.1}, functools.partial(SGD, momentum=0.9, weight_decay=0.1)),
    "adam": ({"weight_decay": 0.1}, functools.partial(Adam, weight_decay=0.1)),
    "adamw": (
        {"weight_decay": 0.3, "betas": (0.8, 0.95), "eps": 1e-3},
        functools.partial(AdamW, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-3),
    ),
}


class Client:
    """One parameter of one client, stepped by an optimizer of torch that may outlive the round."""

    def __init__(self, make: Callable[..., torch.optim.Optimizer], lr: float, keep: bool) -> None:
        self.x = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.make, self.lr, self.keep, self.optimizer = make, lr, keep, make([self.x], lr=lr)

    def steps(self, start: Tensor, gradient: Callable[[Tensor], Tensor], steps: int = STEPS) -> Tensor:
        if not self.keep:
            self.optimizer = self.make([self.x], lr=self.lr)
        with torch.no_grad():
            self.x.copy_(start)
        for _ in range(steps):
            self.x.grad = gradient(self.x.detach())
            self.optimizer.step()
        return self.x.detach().clone()


def everybody(make: Callable[..., torch.optim.Optimizer], lr: float, keep: bool) -> Callable[..., Tensor]:
    """The steps of four clients: from their points, along gradients that are functions of all points."""
    clients = [Client(make, lr, keep) for _ in range(4)]

    def steps(start: Tensor, gradient: Callable[[Tensor], Tensor], count: int = STEPS) -> Tensor:
        own = [lambda x, i=i: gradient(x.expand(4))[i] for i in range(4)]
        return torch.stack([client.steps(start[i], own[i], count) for i, client in enumerate(clients)])

    return steps


def down_u(x: Tensor) -> Tensor:
    return a * (x - b)


def down_v(x: Tensor) -> Tensor:
    return c * (x - d)


class Family(NamedTuple):
    """A method of a family, and the same by hand: (steps on u, steps on v, rounds) -> (u, v) in the end."""

    method: str
    settings: dict[str, Any]
    by_hand: Callable[[Callable[..., Tensor], Callable[..., Tensor]], tuple[Tensor, Tensor]]


def start() -> tuple[Tensor, Tensor]:
    return torch.full((4,), 0.5, dtype=torch.float64), torch.ones(4, dtype=torch.float64)


def server(on_u: Callable[..., Tensor], on_v: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    u, v = start()
    for _ in range(ROUNDS):
        u, v = on_u(u, down_u).mean().repeat(4), on_v(v, down_v)
    return u, v


def peers(on_u: Callable[..., Tensor], on_v: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    u, v = start()
    for _ in range(ROUNDS):
        u, v = RING @ on_u(u, down_u), on_v(v, down_v, 2)
    return u, v


def push_sum(on_u: Callable[..., Tensor], on_v: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    u, v = start()
    mu = torch.ones(4, dtype=torch.float64)
    for _ in range(ROUNDS):
        at = mu
        u, v = PUSH @ on_u(u, lambda x, at=at: a * (x / at - b)), on_v(v, down_v, 2)
        mu = PUSH @ mu
    return u / mu, v


def pulled(on_u: Callable[..., Tensor], on_v: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Ditto's personal model of u, in place of v: it is pulled toward the server's."""
    w, p = start()[0], start()[0]
    for _ in range(ROUNDS):
        p = on_v(p, lambda x, w=w: a * (x - b) + 0.75 * (x - w))
        w = on_u(w, down_u).mean().repeat(4)
    return w, p


PERSONAL = {"personal": "v", "personal_lr": OWN_LR, "personal_steps": 2}
FAMILIES = {
    "server": Family("fedavg-p", {"personal": "v", "personal_lr": OWN_LR, "outer_lr": 1.0, "personal_outer_lr": 1.0,
                                  "participation": 1.0}, server),
    "peers": Family("dfedalt", {"topology": "ring", **PERSONAL}, peers),
    "push-sum": Family("dfedpgp", {"topology": column, **PERSONAL}, push_sum),
    "beside": Family("ditto", {"participation": 1.0, "personal_lr": OWN_LR}, pulled),
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_steps_as_torch_does(family: str, name: str, keep: bool, engine: str) -> None:
    method, settings, by_hand = FAMILIES[family]
    given, make = OPTIMIZERS[name]
    base = {"lr": LR, "steps": STEPS, "optimizer": name, "keep_optimizer_state": keep, **given}
    e = experiment(Quadratic(), golden(), plain(method, **{**base, **settings}), ENGINES[engine]())
    state = play(e, ROUNDS).state
    own = functools.partial(everybody, make, keep=keep)
    u, v = by_hand(own(LR), own(OWN_LR))
    if family == "beside":
        exactly(state.server.u["u"].repeat(4), u)
        exactly(state.own.p["u"], v)
    else:
        found = e.program.models(state)
        exactly(found["u"], u)
        exactly(found["v"], v)


def exactly(x: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(x, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_each_phase_may_have_its_own(engine: str, keep: bool) -> None:
    """AdamW for what is shared, SGD with momentum for what is personal, and the other way round."""
    makes = {"adamw": functools.partial(AdamW, weight_decay=0.1), "sgd": OPTIMIZERS["sgd"][1]}
    for shared, personal in (("adamw", "sgd"), ("sgd", "adamw")):
        settings = {"optimizer": shared, "personal_optimizer": personal, "keep_optimizer_state": keep}
        both = {"momentum": 0.9, "weight_decay": 0.1, "lr": LR, "steps": STEPS, "topology": "ring"}
        e = experiment(Quadratic(), golden(), plain("dfedalt", **both, **settings, **PERSONAL), ENGINES[engine]())
        state = play(e, ROUNDS).state
        u, v = peers(everybody(makes[shared], LR, keep), everybody(makes[personal], OWN_LR, keep))
        exactly(state.x["u"], u)
        exactly(state.x["v"], v)
        names = {"momentum", "first", "second", "steps"} if keep else set()
        assert state.memory.keys() == names


# Clients whose models change their form keep nothing.
CHANGING = ("depthfl", "feddropout", "fedhm", "fedhmv2", "fedrolex", "flanc", "heterofl", "pfedlmt", "progfed")


@pytest.mark.parametrize("row", [row for row in FIRST.values() if METHODS[row][0] not in ("scaffold", "scaffold-p")])
def test_engines_agree_on_adam(row: str) -> None:
    """For every method; half of them keep the state where they can. A small eps would amplify rounding."""
    alg = with_optimizer(row, keep=list(FIRST.values()).index(row) % 2 == 0)
    kind = kind_like(row, "mlp")
    engines = [make() for make in ENGINES.values()]
    slow, fast, replayed = (models(experiment(net(kind), ragged(kind), alg, engine), 2) for engine in engines)
    assert_same(fast, slow, 1e-10)
    assert_same(replayed, slow, 1e-10)


def with_optimizer(row: str, keep: bool) -> Algorithm:
    method, settings = METHODS[row]
    base = {"lr": 0.01, "batch_size": 4, "optimizer": "adamw", "eps": 1e-3, "lr_schedule": "exponential:0.5"}
    settings = {k: v for k, v in settings.items() if k != "keep_optimizer_state"}
    if keep and method not in CHANGING:
        settings["keep_optimizer_state"] = True
    return algorithms.build(method, **{**base, **settings})


@pytest.mark.parametrize(("row", "chunk", "kind"), [("dfedsalt", 1, "groupnorm"), ("fedrod", 3, "mlp")])
def test_steps_become_flat_graphs(row: str, chunk: int, kind: str) -> None:
    """What a compiler is given does the same, with groups of parameters and slices of batches, too."""

    def flattened(wanted: Sequence[Wanted], begun: Callable[[int], object]) -> list[PlayOver]:
        return [functools.partial(functools.partial, traced(body, tensors, size=30)) for body, tensors in wanted]

    base = {"lr": 0.01, "batch_size": 4, "optimizer": "adamw", "eps": 1e-3, "lr_schedule": "warmup:3", "micro_batch": 3}
    alg = algorithms.build(METHODS[row][0], **{**base, **METHODS[row][1]})
    slow, fast = (
        models(experiment(net(kind), ragged(kind), alg, engine), 2)
        for engine in (Serial(), Graphed(chunk, False, torch.device("cpu"), flattened))
    )
    assert_same(fast, slow, 1e-10)


@pytest.mark.parametrize("row", ["fedper", "dfedalt", "dfedpgp", "ditto", "dispfl", "pooled"])
def test_shards_keep_the_state_as_one_place_does(row: str) -> None:
    kind = kind_like(row, "mlp")
    e = experiment(net(kind), ragged(kind), with_optimizer(row, keep=True), Serial(), rounds=4)
    shards = shards_of(e, SHARD_OF[2])
    conduct(shards, "start")
    now = e.start()
    for t in range(2):
        now, _ = e.run_round(now, t, evaluate=False)
        results = conduct(shards, "run_round", t, False)
    assert any("/first/" in name for name in e.saved(now))
    assert_close(put_together(shards, [saved for _, saved in results], outline(e).stacked), e.saved(now))


def test_programs_are_those_of_any_rate() -> None:
    """Rates of every round and of every step go into the same programs."""
    built: list[int] = []
    for schedule in (None, "cosine:3", "exponential:0.9"):
        engine = graphed_for(3)
        engine.on_build = lambda number, many, into=built: into.append(number)
        settings = {"optimizer": "adam", "lr_schedule": schedule, "lr_warmup": 2, "batch_size": 4, "epochs": 2}
        alg = ct.algorithms.dfedalt(topology="ring", **settings)
        e = experiment(net("mlp"), ragged("mlp"), alg, engine)
        built.clear()
        now, _ = e.run_round(e.start(), 0, evaluate=False)
        first = len(built)
        for t in (1, 2):
            now, _ = e.run_round(now, t, evaluate=False)
        assert len(built) == first == 2  # one for each phase
