"""The first formula against torch.optim.SGD, and the batches it sees."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import coterie as ct
from coterie.core.tensors import Tensors, split
from coterie.data.batches import Amount, Batch, Batches, Samples, Stream
from coterie.engines import Serial, Vectorized
from coterie.engines.base import StepInfo
from coterie.local.optimizers import Adam, Optimizer, Sgd
from coterie.local.steps import Carry, Descent, Frozen, ParamGroup, Phase
from coterie.models.model import Model, cross_entropy
from toys import ZOO, experiment, net, ragged


class Setting(NamedTuple):
    """An optimizer of ours, that of torch, and how far gradients are clipped; the rate is 0.1."""

    ours: Optimizer
    theirs: Callable[..., torch.optim.Optimizer]
    clip: float | None = None


def sgd(momentum: float = 0.0, decay: float = 0.0, clip: float | None = None) -> Setting:
    return Setting(Sgd(momentum, decay), partial(torch.optim.SGD, momentum=momentum, weight_decay=decay), clip)


def adam(decay: float = 0.0, clip: float | None = None, decoupled: bool = False, **other: Any) -> Setting:
    theirs = torch.optim.AdamW if decoupled else torch.optim.Adam
    ours = Adam(weight_decay=decay, decoupled=decoupled, **other)
    return Setting(ours, partial(theirs, weight_decay=decay, **other), clip)


SETTINGS = {
    "plain": sgd(),
    "momentum": sgd(0.9),
    "decay": sgd(0.0, 0.05),
    "all": sgd(0.9, 0.01, 0.5),
    "clipped": sgd(0.5, 0.0, 1e-3),
    # where a bias cannot matter, its gradient is rounding noise, which a small eps would amplify
    "adam": adam(eps=1e-3),
    "adam, decay": adam(0.3, 1e-3, betas=(0.7, 0.95), eps=1e-3),
    "adamw": adam(0.3, decoupled=True, eps=1e-3),
    "adamw, clipped": adam(0.3, 0.5, True, betas=(0.0, 0.5), eps=1e-3),
}


def torch_steps(module: nn.Module, batches: list[Batch], setting: Setting, trains: set[str]) -> nn.Module:
    """The same steps with PyTorch's own optimizer and clipping."""
    for name, p in module.named_parameters():
        p.requires_grad_(name in trains)
    moving = [p for p in module.parameters() if p.requires_grad]
    optimizer = setting.theirs(moving, lr=0.1)
    module.train()
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        if setting.clip is not None:
            torch.nn.utils.clip_grad_norm_(moving, setting.clip)
        optimizer.step()
    return module


def stream_of(samples: Samples, steps: int = 6, batch_size: int = 4) -> Stream:
    return Batches(samples, np.array([0]), Amount(steps=steps), batch_size, key=11).one(0)


def walked(model: Model, phase: Phase, setting: Setting, stream: Stream) -> Tensors:
    """One client's model after all its batches."""
    rates = (phase.lr,) if phase.group is None else (phase.lr, phase.group.lr)
    step = Descent(phase, setting.ours, Serial().gradient(model.objective), rates, setting.clip)
    moving, frozen = split(model.start, phase.trains)
    running, rest = split(frozen, model.running)
    now = step.begin(Carry(moving, running, {}, torch.zeros(())))
    for k in range(stream.steps):
        now = step(now, Frozen(rest, {}), stream.batch(k))
    end = step.end(now)
    return model.start | end.x | end.running


@pytest.mark.parametrize("kind", ZOO)
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("part", ["everything", "head", "body"])
def test_steps_equal_torch_optim(kind: str, name: str, part: str) -> None:
    setting = SETTINGS[name]
    fed, module = ragged(kind), net(kind)
    model = Model(module, cross_entropy)
    head = ct.algorithms.base.personal_names(module, "head")
    everything = frozenset(model.parameters)
    trains = {"everything": everything, "head": head, "body": everything - head}[part]
    stream = stream_of(Samples(fed.x, fed.y, fed.train))
    for steps in range(1, stream.steps + 1):  # step by step
        first = Stream(stream.samples, stream.index[:steps], None, None, stream.widths[:steps])
        phase = Phase(trains, Amount(steps=steps), 0.1)
        mine = walked(model, phase, setting, first)
        theirs = torch_steps(net(kind), [first.batch(k) for k in range(steps)], setting, set(trains))
        for name, value in (*theirs.named_parameters(), *theirs.named_buffers()):
            torch.testing.assert_close(mine[name], value, rtol=1e-12, atol=1e-13, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("setting", [sgd(0.9, 0.2), adam(), adam(0.2), adam(0.2, decoupled=True)])
def test_optimizers_follow_given_gradients_as_those_of_torch_do(setting: Setting) -> None:
    """At another rate in every step; a parameter that a loss does not reach makes no step and is not counted."""
    g = torch.Generator().manual_seed(0)
    x = {k: torch.randn(3, generator=g, dtype=torch.float64) for k in ("often", "rarely")}
    theirs = {k: v.clone().requires_grad_() for k, v in x.items()}
    optimizer = setting.theirs(theirs.values(), lr=0.1)
    reached = iter([True, False, True, True, False, True])
    none = frozenset[str]()

    def given_gradient(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
        gradient = {k: torch.randn(3, generator=g, dtype=torch.float64) for k in x}
        unreached = none if next(reached) else frozenset({"rarely"})
        for k, v in theirs.items():
            v.grad = None if k in unreached else gradient[k]
        still = {k: torch.zeros_like(v) if k in unreached else v for k, v in gradient.items()}
        return still, StepInfo(torch.zeros(()), {}, unreached)

    step = Descent(Phase(frozenset(x), Amount(steps=6), 0.1), setting.ours, given_gradient, (0.1,))
    now = step.begin(Carry(x, {}, {}, torch.zeros(())))
    for k in range(6):
        now = step.at([0.1 / (k + 1)])(now, Frozen({}, {}), Batch(torch.zeros(0), torch.zeros(0), None))
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)
        optimizer.step()
        for name, value in theirs.items():
            torch.testing.assert_close(now.x[name], value.detach(), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("setting", [sgd(0.9, 0.2, 0.3), adam(0.2, 0.3), adam(0.2, 0.3, True)])
def test_groups_equal_those_of_torch_optim(setting: Setting, apart: bool) -> None:
    """Another rate, and with it another decay; one norm for both, or each its own where the losses are apart."""
    fed, module = ragged("mlp"), net("mlp")
    model, theirs = Model(module, cross_entropy), net("mlp")
    head = ct.algorithms.base.personal_names(module, "head")
    group = ParamGroup(head, 0.02, apart)
    stream = stream_of(Samples(fed.x, fed.y, fed.train))
    mine = walked(model, Phase(frozenset(model.parameters), Amount(steps=6), 0.1, group=group), setting, stream)
    own, rest = ([p for k, p in theirs.named_parameters() if (k in head) == wanted] for wanted in (True, False))
    optimizer = setting.theirs([{"params": own, "lr": 0.02}, {"params": rest}], lr=0.1)
    for k in range(stream.steps):
        batch = stream.batch(k)
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(batch.x), batch.y).backward()
        for norm_of in [own, rest] if apart else [own + rest]:
            torch.nn.utils.clip_grad_norm_(norm_of, 0.3)
        optimizer.step()
    for name, value in theirs.named_parameters():
        torch.testing.assert_close(mine[name], value, rtol=1e-12, atol=1e-13, msg=lambda m, n=name: f"{n}: {m}")


def test_what_is_held_has_no_share_in_the_norm() -> None:
    """Clipping looks at the part that moves; a frozen head with a huge gradient must not shrink the body's step."""
    fed, module = ragged("mlp"), net("mlp")
    with torch.no_grad():
        module[3].weight.mul_(100)
    model = Model(module, cross_entropy)
    body = frozenset(model.parameters) - ct.algorithms.base.personal_names(module, "head")
    stream = stream_of(Samples(fed.x, fed.y, fed.train), steps=1)
    grad = Serial().gradient(model.objective)
    moving, frozen = split(model.start, body)
    g, _ = grad(moving, frozen, stream.batch(0))
    size = float(torch.cat([v.flatten() for v in g.values()]).norm())
    moved = walked(model, Phase(body, Amount(steps=1), 1.0), sgd(clip=0.5 * size), stream)
    step = torch.cat([(moved[k] - model.start[k]).flatten() for k in body])
    assert float(step.norm()) == pytest.approx(0.5 * size, rel=1e-5)


def test_gradients_of_both_engines_agree() -> None:
    fed, model = ragged("batchnorm"), Model(net("batchnorm"), cross_entropy)
    batch = Batch(fed.x[:6], fed.y[:6], None)
    moving, frozen = split(model.start, model.parameters)
    slow, seen = Serial().gradient(model.objective)(moving, frozen, batch)
    fast, also = Vectorized(1).gradient(model.objective)(moving, frozen, batch)
    for name in slow:
        torch.testing.assert_close(slow[name], fast[name], rtol=1e-12, atol=1e-14)
    assert float(seen.loss) == pytest.approx(float(also.loss), rel=1e-12)
    assert torch.equal(seen.buffers["1.num_batches_tracked"], torch.tensor(1))
    assert torch.equal(model.start["1.running_mean"], torch.zeros(4, dtype=torch.float64))  # not written into


@given(
    sizes=st.lists(st.integers(0, 23), min_size=1, max_size=6).filter(lambda s: sum(s) > 0),
    batch_size=st.one_of(st.none(), st.integers(1, 9)),
    epochs=st.integers(0, 3),
)
def test_an_epoch_sees_every_sample_once(sizes: list[int], batch_size: int | None, epochs: int) -> None:
    owned = tuple(torch.split(torch.randperm(sum(sizes)), sizes))
    x = torch.arange(sum(sizes))
    batches = Batches(Samples(x, x, owned), np.arange(len(sizes)), Amount(epochs=epochs), batch_size, key=5)
    total = 0
    for i, mine in enumerate(owned):
        stream = batches.one(i)
        seen = [stream.batch(k).x for k in range(stream.steps)]
        total += sum(len(b) for b in seen)
        per_epoch = -(-len(mine) // (batch_size or max(len(mine), 1)))
        assert stream.steps == epochs * per_epoch == batches.steps[i]
        for e in range(epochs):
            epoch = seen[e * per_epoch : (e + 1) * per_epoch]
            assert sorted(torch.cat(epoch).tolist() if epoch else []) == sorted(mine.tolist())
    assert total == batches.seen


@given(
    sizes=st.lists(st.integers(1, 17), min_size=2, max_size=5),
    batch_size=st.one_of(st.none(), st.integers(1, 6)),
    steps=st.integers(1, 7),
)
def test_padded_blocks_hold_what_clients_see_alone(sizes: list[int], batch_size: int | None, steps: int) -> None:
    owned = tuple(torch.split(torch.arange(sum(sizes)), sizes))
    samples = Samples(torch.arange(sum(sizes)), torch.arange(sum(sizes)), owned)
    batches = Batches(samples, np.arange(len(sizes)), Amount(steps=steps), batch_size, key=9)
    block = batches.block(np.arange(len(sizes)))
    for i in range(len(sizes)):
        alone = batches.one(i)
        for k in range(steps):
            row = block.index[i, k, : block.widths[k]]
            kept = row if block.mask is None else row[block.mask[i, k, : block.widths[k]]]
            assert torch.equal(kept, alone.batch(k).x)
    assert batches.seen == sum(len(batches.one(i).batch(k).x) for i in range(len(sizes)) for k in range(steps))


def test_batches_depend_on_their_key_alone() -> None:
    samples = Samples(torch.arange(40), torch.arange(40), tuple(torch.arange(40).split(10)))

    def order(clients: list[int], place: int, key: int) -> list[int]:
        stream = Batches(samples, np.array(clients), Amount(epochs=2), 4, key).one(place)
        return torch.cat([stream.batch(k).x for k in range(stream.steps)]).tolist()

    assert order([0, 1, 2], 1, key=1) == order([1], 0, key=1) == order([3, 1], 1, key=1)
    assert order([1], 0, key=1) != order([1], 0, key=2)
    first, second = order([1], 0, key=1)[:10], order([1], 0, key=1)[10:]
    assert first != second  # reshuffled every epoch
    assert [i - 10 for i in first] != [i - 20 for i in order([2], 0, key=1)[:10]]  # clients differ


def test_shuffles_are_uniform() -> None:
    """Each of the 24 orders of four samples comes about equally often (chi-square, 23 degrees of freedom)."""
    n = 4800
    samples = Samples(torch.arange(4 * n), torch.arange(4 * n), tuple(torch.arange(4 * n).split(4)))
    index = Batches(samples, np.arange(n), Amount(epochs=1), None, key=3).block(np.arange(n)).index
    orders = (index[:, 0] % 4) @ torch.tensor([64, 16, 4, 1])
    counts = torch.unique(orders, return_counts=True)[1].double()
    assert len(counts) == 24
    assert float(((counts - n / 24) ** 2 / (n / 24)).sum()) < 60  # p < 1e-4 above


def test_a_client_without_data_makes_no_step_and_counts_nothing() -> None:
    fed = ragged("mlp", sizes=(6, 0, 5))
    for engine in (Serial(), Vectorized(3)):
        alg = ct.algorithms.fedavg(participation=1.0, epochs=2, batch_size=4)
        e = experiment(net("mlp"), fed, alg, engine)
        now, row = e.run_round(e.start(), 0, evaluate=True)
        only = experiment(net("mlp"), ragged("mlp", sizes=(6, 0, 5)), alg, engine)
        trained = only.program.train(only.start().state, only.round(0))
        expected = (6 * trained.models["1.weight"][0] + 5 * trained.models["1.weight"][2]) / 11
        torch.testing.assert_close(now.state.u["1.weight"], expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(trained.models["1.weight"][1], e.model.start["1.weight"])
        assert row["train_loss"] is not None
