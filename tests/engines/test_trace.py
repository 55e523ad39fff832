"""What is played from a tape is what would have been computed, to the last bit."""

import random
from dataclasses import dataclass, replace
from typing import Any, Unpack

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from coterie.core.tensors import Tensors
from coterie.engines import Serial, Vectorized, layouts, trace
from coterie.engines.threads import torch_threads
from coterie.engines.vectorized import lift
from coterie.method import (
    Aux,
    Batch,
    Correction,
    Grad,
    Options,
    Phase,
    Problem,
    Program,
    Server,
    StepInfo,
    Training,
    federated,
    sam,
)
from coterie.models.model import Model, cross_entropy
from coterie.models.trials import runs_known_code
from coterie.training.select_engine import Work, choose, select_engine
from laws import build
from toys import candidate, experiment, models, net, ragged


class Counted:
    """How often a function is really called."""

    def __init__(self, f):  # type: ignore[no-untyped-def]
        self.f, self.calls = f, 0

    def __call__(self, *given):  # type: ignore[no-untyped-def]
        self.calls += 1
        return self.f(*given)


def several(x: Tensors, scale: Tensor) -> tuple[Tensor, Tensors]:
    """Views, several results of one operation, changes in place, a constant, and something handed through."""
    a, b = (x["a"] * scale).chunk(2)
    var, mean = torch.var_mean(a.view(1, -1).expand(2, -1), dim=1)
    b = b.clone().add_(torch.tensor(2.0)).mul_(mean[0])
    return b.T, {"a": x["a"], "var": var}


def test_the_third_time_nothing_is_called_and_the_bits_are_the_same() -> None:
    f, traces = Counted(several), trace.TraceCache()
    for calls in (1, 2, 2, 2):
        given = {"a": torch.randn(4, 3)}, torch.randn(())
        expected = several(*given)
        (b, rest), (expected_b, expected_rest) = traces.run(f, "several", *given), expected
        assert torch.equal(b, expected_b)
        assert b.stride() == expected_b.stride()
        assert all(torch.equal(rest[k], v) for k, v in expected_rest.items())
        assert f.calls == calls


def test_another_kind_is_another_tape() -> None:
    f, traces = Counted(lambda x: x.reshape(-1) + 1), trace.TraceCache()
    kinds = [torch.ones(2, 3), torch.ones(3, 2).T, torch.ones(3, 2), torch.ones(2, 3, dtype=torch.float64)]
    for _ in range(3):
        for x in kinds:
            assert torch.equal(traces.run(f, "flat", x), x.reshape(-1) + 1)
    assert f.calls == 2 * len(kinds)


def test_what_is_one_tensor_when_written_may_be_two_when_played() -> None:
    traces, one, other = trace.TraceCache(), torch.ones(2), torch.zeros(2)
    for x, y in ((one, one), (one, one), (one, other)):
        assert torch.equal(traces.run(lambda x, y: x - 2 * y, "sub", x, y), x - 2 * y)


@pytest.mark.parametrize(
    "f",
    [lambda x: F.dropout(x, 0.5), lambda x: x if x.sum() > 0 else -x, lambda x: x[x > 0]],
    ids=["draws", "decides", "selects"],
)
def test_what_may_go_otherwise_is_never_played(f) -> None:  # type: ignore[no-untyped-def]
    counted, traces = Counted(f), trace.TraceCache()
    for calls in range(1, 5):
        torch.manual_seed(calls)
        x = torch.randn(50)
        torch.manual_seed(-calls)
        seen = traces.run(counted, "f", x)
        torch.manual_seed(-calls)
        assert torch.equal(seen, f(x))
        assert counted.calls == calls


def test_no_more_tapes_than_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "KEPT", 3)
    traces = trace.TraceCache()
    for n in range(1, 9):
        traces.run(lambda x: x + 1, "add", torch.ones(n))
    assert len(traces._known) == 3


@pytest.mark.parametrize("row", ["dfedsalt", "scaffold", "ditto, split", "fedrod", "dfedpgp", "pfedlmt", "depthfl"])
def test_tapes_do_not_change_a_bit(row: str) -> None:
    kind = "residual" if row == "depthfl" else "batchnorm"
    traced, plain = (Vectorized(3) for _ in range(2))
    plain.traced = False
    fed, module = ragged(kind, torch.float32), net(kind, torch.float32)
    a, b = (models(experiment(module, fed, build(row), engine), rounds=3) for engine in (traced, plain))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(traced._traces._known.values())
    assert not plain._traces._known


class Own(nn.Module):
    """Code that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * (1 + self.calls % 2)


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets)


DRAWS: dict[str, Any] = {"none": torch.ones, "torch": torch.rand, "elsewhere": lambda n: random.random()}


@dataclass(frozen=True)
class Noise(Correction):
    """Adds to the gradient whatever is drawn."""

    draw: str

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        def shifted(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            g, info = grad(x, frozen, batch)
            return {k: v + DRAWS[self.draw](1) for k, v in g.items()}, info

        return shifted


@ct.method.method()
def noisy(p: Problem, t: Training, *, draw: str, **options: Unpack[Options]) -> Program[Server]:
    return federated(p, [Phase(p.parameters, t.amount, t.lr, (Noise(draw),))], t, p.names)


class TestFamiliar:
    """Only what cannot surprise is played from traces."""

    def test_layers_of_torch_and_of_ours(self) -> None:
        for module in (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), ct.models.build("cnn", classes=10)):
            assert runs_known_code(Model(module, cross_entropy))
            assert runs_known_code(Model(module, nn.CrossEntropyLoss()))

    def test_code_of_ones_own(self) -> None:
        hooked, replaced = nn.Linear(4, 2), nn.Linear(4, 2)
        hooked.register_forward_hook(lambda module, args, out: 2 * out)
        replaced.forward = lambda x: x  # type: ignore[method-assign]
        for module in (Own(), nn.Sequential(Own()), hooked, replaced):
            assert not runs_known_code(Model(module, cross_entropy))
        assert not runs_known_code(Model(nn.Linear(4, 2), own_loss))
        assert not runs_known_code(Model(nn.Linear(4, 2), lambda outputs, targets: outputs.mean()))
        known = Model(nn.Linear(4, 2), cross_entropy)
        assert runs_known_code(known, *sam(0.1))
        assert not runs_known_code(known, *sam(0.1), Noise("torch"))
        assert not runs_known_code(replace(known, penalty=lambda tensors: tensors["weight"].sum()))

    def test_corrections_of_ones_own(self) -> None:
        """One that draws with torch is never played from a trace or recorded; one that draws elsewhere is refused."""
        x, y = torch.randn(8, 4), torch.arange(8) % 2
        fed = ct.data.from_tensors(train=[(x, y)] * 2, test=[(x, y)] * 2, classes=2)
        for draw, workers in (("none", 2), ("torch", 1)):
            e = experiment(nn.Linear(4, 2), fed, noisy(draw=draw))
            with torch_threads(2):
                together, alone = (select_engine(text, e, 2).engine for text in ("vectorized", "serial"))
            assert isinstance(together, Vectorized)
            assert isinstance(alone, Serial)
            assert (together.traced, alone.workers) == (False, workers)
        with pytest.raises(ct.UserError, match="the corrections Noise keeps something"):
            select_engine("vectorized", experiment(nn.Linear(4, 2), fed, noisy(draw="elsewhere")), 2)

    @pytest.mark.parametrize(("module", "expected"), [(Own(), False), (nn.Linear(4, 2), True)], ids=["own", "torch's"])
    def test_the_engine_is_told(self, module: nn.Module, expected: bool) -> None:
        engine = choose("auto", candidate(module, torch.zeros(8, 4), Work(20, 8, 100))).engine
        assert isinstance(engine, Vectorized)
        assert engine.traced is expected


@pytest.mark.parametrize("samples", [3, 20])
@pytest.mark.parametrize("outputs", [2, 10, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_narrow_layers_are_linear_layers(samples: int, outputs: int, bias: bool) -> None:
    x, w = torch.randn(samples, 7).double().requires_grad_(), torch.randn(outputs, 7).double().requires_grad_()
    b = torch.randn(outputs).double().requires_grad_() if bias else None
    mine, theirs = layouts.linear(x, w, b), F.linear(x, w, b)
    torch.testing.assert_close(mine, theirs)
    assert mine.is_contiguous()
    moving, dy = [v for v in (x, w, b) if v is not None], torch.randn_like(theirs)
    for own, g in zip(torch.autograd.grad(mine, moving, dy), torch.autograd.grad(theirs, moving, dy), strict=True):
        torch.testing.assert_close(own, g)


@pytest.mark.parametrize(("size", "options"), [(6, {}), (7, {}), (7, {"stride": 1, "padding": 1, "ceil_mode": True})])
def test_turned_poolings_are_poolings(size: int, options: dict[str, Any]) -> None:
    """Bit for bit, also where several are largest and one of them gets the gradient."""
    x = torch.randint(0, 3, (2, 4, 3, size, size)).double()

    def pooled(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2, **options)

    ends = []
    for pool in (lambda v: torch.stack([pooled(one) for one in v]), lambda v: lift(pooled, v)):
        moving = x.clone().requires_grad_()
        out = pool(moving)
        ends.append((out, *torch.autograd.grad(out, moving, torch.arange(out.numel()).view_as(out).double())))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("classes", [2, 10, 40])
def test_few_classes_or_many_the_loss_is_cross_entropy(classes: int) -> None:
    outputs, targets = torch.randn(20, classes).double(), torch.arange(20) % classes
    torch.testing.assert_close(cross_entropy(outputs, targets), F.cross_entropy(outputs, targets))
