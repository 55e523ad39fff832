"""Every method gives the same numbers on every engine, whatever the model and however unequal the clients."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

import coterie as ct
from coterie import algorithms
from coterie.core.tensors import rows, stack
from coterie.data.batches import Amount, Batch, Batches, Samples
from coterie.engines import Engine, Graphed, Serial, Vectorized, norms
from coterie.engines.capture import PlayOver, Wanted, flat
from coterie.engines.half import HalfProducts
from coterie.engines.threads import torch_threads
from coterie.models.model import Model, cross_entropy
from coterie.models.trials import padding_matters
from coterie.training import select_engine as select
from coterie.training.checks import find_device
from coterie.training.experiment import Experiment
from coterie.training.select_engine import Work, choose
from laws import FIRST, LAWS, METHODS, build, kind_like, kinds
from same_numbers import assert_same, graphed_for
from samples import sampled
from toys import FEDAVG, ZOO, candidate, experiment, in_place, models, net, ragged, traced

EVERY = [(row, kind) for row in METHODS for kind in kinds(row)]


def turns(first: int) -> list[tuple[str, str]]:
    """A small sample: the kinds of models take turns, others in single precision than in double."""
    return [(row, kinds(row)[turn % len(kinds(row))]) for turn, row in enumerate(METHODS, first)]


DOUBLE, SINGLE = turns(0), turns(1)


@cache
def one_by_one(row: str, kind: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """What the other engines must come to, on one thread, so that sums are taken in one order."""
    with torch_threads(1):
        return models(experiment(net(kind, dtype), ragged(kind, dtype), build(row), Serial()), rounds=2)


def test_every_method_has_a_row() -> None:
    assert {law.method for law in LAWS} == set(algorithms.BUILDERS)
    assert len(LAWS) == len(algorithms.BUILDERS)
    assert len(METHODS) == sum(len(law.cases) for law in LAWS)  # no name stands twice


def vectorized(row: str, kind: str, dtype: torch.dtype) -> dict[str, Tensor]:
    return models(experiment(net(kind, dtype), ragged(kind, dtype), build(row), Vectorized(3)), rounds=2)


@pytest.mark.parametrize(("row", "kind"), sampled(EVERY, [x for x in EVERY if x[0] in FIRST.values() or x in DOUBLE]))
def test_engines_agree(row: str, kind: str) -> None:
    assert_same(vectorized(row, kind, torch.float64), one_by_one(row, kind, torch.float64), 1e-10)


@pytest.mark.parametrize(("row", "kind"), sampled(EVERY, SINGLE))
def test_engines_agree_in_single_precision(row: str, kind: str) -> None:
    assert_same(vectorized(row, kind, torch.float32), one_by_one(row, kind, torch.float32), 1e-5)


@pytest.mark.parametrize(("row", "kind"), sampled(EVERY, DOUBLE))
def test_replayed_steps_agree(row: str, kind: str) -> None:
    alone = list(METHODS).index(row) % 2  # one client at a time and chunks that do not come out even take turns
    fast = models(experiment(net(kind), ragged(kind), build(row), graphed_for(1 if alone else 3)), rounds=2)
    assert_same(fast, one_by_one(row, kind, torch.float64), 1e-10)


FORMS = [(1, "groupnorm"), (3, "mlp")]
FLAT = ["dfedsalt", "scaffold", "ditto, split", "fedrod", "dispfl", "dfedpgp"]


@pytest.mark.parametrize(
    ("row", "chunk", "kind"),
    sampled(
        [(row, *form) for row in FLAT for form in FORMS], [(row, *FORMS[turn % 2]) for turn, row in enumerate(FLAT)]
    ),
)
def test_steps_become_flat_graphs(row: str, chunk: int, kind: str) -> None:
    """What the compiler is given, pieces of one graph, does the same as the step it came from."""

    def flattened(wanted: Sequence[Wanted], begun: Callable[[int], object]) -> list[PlayOver]:
        return [partial(partial, traced(body, tensors, size=30)) for body, tensors in wanted]

    fed, module = ragged(kind), net(kind_like(row, kind))
    slow = one_by_one(row, kind_like(row, kind), torch.float64)
    fast = models(experiment(module, fed, build(row), Graphed(chunk, False, torch.device("cpu"), flattened)), rounds=2)
    assert_same(fast, slow, 1e-10)


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 4), (5, 6, 4, 3)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("stacked", [False, True])
def test_group_norm_for_the_compiler_is_group_norm(
    shape: tuple[int, ...], affine: bool, device: str, stacked: bool
) -> None:
    """Of one client and of several; the layout survives, also where torch would change it, as on any other device."""
    torch.manual_seed(0)
    last = {"memory_format": torch.channels_last} if len(shape) == 4 and not stacked else {}
    x, targets = (torch.randn(shape, dtype=torch.float64).to(**last) for _ in range(2))
    given = {"x": x} | ({"w": torch.randn(6, dtype=torch.float64), "b": torch.randn(6).double()} if affine else {})
    given, targets = {k: v.to(device) for k, v in given.items()}, targets.to(device)

    def one(given: dict[str, Tensor]) -> dict[str, Tensor]:
        def value(params: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            y = nn.functional.group_norm(params["x"], 3, params.get("w"), params.get("b"))
            loss = (y * targets).sum() + (y.square() * targets).sum()
            g = torch.autograd.grad(loss, list(params.values()))
            return loss, dict(zip(params, g, strict=True)) | {"y": y.detach()}

        return torch.func.vjp(value, given, has_aux=True)[2]

    body = torch.func.vmap(one) if stacked else one
    given = {k: torch.stack([v, v + 1]) for k, v in given.items()} if stacked else given
    with torch.no_grad():
        theirs = body(given)
        mine = {k: torch.zeros_like(given[k if k in given else "x"]) for k in theirs}
        graph = flat(
            lambda *v: list(body(dict(zip(given, v[len(mine) :], strict=True))).values()),
            [*mine.values(), *given.values()],
        )
        graph.recompile()
        graph(*mine.values(), *given.values())
    assert not any("group_norm" in str(v.target) for v in graph.graph.nodes)
    kept = [v.args[1].meta["val"].stride() for v in graph.graph.nodes if v.target is torch.ops.aten.copy_.default]
    if not stacked:
        assert kept == [v.stride() for v in mine.values()]
    if device == "cpu":
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 4), (5, 6, 4, 3)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_masked_batch_norm_is_that_of_the_samples(
    shape: tuple[int, ...], affine: bool, running: bool, training: bool
) -> None:
    torch.manual_seed(0)
    x, used = torch.randn(shape, dtype=torch.float64), torch.tensor([True, True, True, False, False])
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    weights = (torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)) if affine else (None, None)
    kept = [[torch.rand(6, dtype=torch.float64) for _ in range(2)] if running else [None, None]]
    kept.append([None if v is None else v.clone() for v in kept[0]])
    moving = [v.requires_grad_() for v in (x, *weights) if v is not None]
    theirs = nn.functional.batch_norm(x[:3], *kept[0], *weights, training or not running, 0.3)
    mine = norms.batch_norm(x, *kept[1], *weights, training or not running, 0.3, mask=used)
    dy = torch.randn_like(theirs)
    torch.testing.assert_close(mine[:3], theirs)
    assert mine.stride() == x.stride()
    for own, g in zip(torch.autograd.grad(mine[:3], moving, dy), torch.autograd.grad(theirs, moving, dy), strict=True):
        torch.testing.assert_close(own, g)
    if running:
        torch.testing.assert_close(kept[0], kept[1])


@pytest.mark.parametrize("chunk", [1, 3])
def test_batch_normalization_records_in_half_precision(chunk: int) -> None:
    """Torch's own gradient fails under ``vmap`` there; both numbers are rounded to 8 bits at every product."""
    fed, module, row = ragged("batchnorm", torch.float32), net("batchnorm", torch.float32), build("dfedalt")
    ends = []
    for engine in (Serial(), Vectorized(chunk), graphed_for(chunk)):
        e = Experiment.of(Model(module, cross_entropy, precision="bf16"), fed, row, engine, 0, rounds=2)
        ends.append(models(e, rounds=2))
    for fast in ends[1:]:
        assert_same(fast, ends[0], 0.02)


PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[Sequence[int], ...]]] = {
    "convolution": (nn.functional.conv2d, ((5, 3, 6, 6), (4, 3, 3, 3), (4,))),
    "linear": (nn.functional.linear, ((5, 6), (4, 6), (4,))),
    "attention": (nn.functional.scaled_dot_product_attention, ((1, 5, 4), (1, 5, 4), (1, 5, 4))),
}


@pytest.mark.parametrize("lifted", [(True, False, False), (False, True, False), (True, True, False), (True,) * 3])
@pytest.mark.parametrize("product", PRODUCTS)
def test_products_are_rounded_whatever_is_lifted(product: str, lifted: tuple[bool, ...]) -> None:
    """The weights of a server, the same for all, meet the samples of every client; their bias is rounded, too."""
    f, sizes = PRODUCTS[product]
    torch.manual_seed(0)
    given = [torch.randn(2, *size) if many else torch.randn(size) for size, many in zip(sizes, lifted, strict=True)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False), HalfProducts():
        together = vmap(f, tuple(0 if many else None for many in lifted))(*given)
        alone = [f(*(v[i] if many else v for v, many in zip(given, lifted, strict=True))) for i in range(2)]
    assert together.dtype == alone[0].dtype == torch.bfloat16
    torch.testing.assert_close(together, torch.stack(alone), atol=0.02, rtol=0.02)  # 8 bits, rounded once or twice


@pytest.mark.parametrize("row", METHODS)
def test_a_step_is_built_once(row: str) -> None:
    """Whatever changes from round to round (rates, cohorts, graphs) goes into the same programs.

    A rehearsal finds those of the round, and leaves everything as it was.
    """
    built = []

    def counted(wanted: Sequence[Wanted], begun: Callable[[int], object]) -> list[PlayOver]:
        built.extend(wanted)
        return in_place(wanted, begun)

    module = net(kind_like(row, "mlp"))
    engine = Graphed(1, False, torch.device("cpu"), counted, lanes=2)
    e = experiment(module, ragged("mlp"), build(row), engine, rounds=4)
    now, counts = e.start(), []
    before = {name: v.clone() for name, v in e.program.models(now.state).items()}
    engine.rehearse(lambda: e.run_round(now, 0, evaluate=True))
    assert_same(e.program.models(now.state), before, 0)
    expected = len(built)
    for t in range(3):
        now, _ = e.run_round(now, t, evaluate=t != 1)
        counts.append(len(built))
    assert expected == counts[0] > 0
    assert counts[2] == counts[1]


class Sums(NamedTuple):
    """A step that adds two fixed numbers of the same shape, one of them a thousandfold."""

    rates: tuple[float, ...] = ()
    pace: None = None
    independent: bool = True

    def at(self, rates: Sequence[float | Tensor]) -> "Sums":
        return self

    def begin(self, given: Tensor) -> Tensor:
        return given

    def end(self, carry: Tensor) -> Tensor:
        return carry

    def __call__(self, carry: Tensor, fixed: dict[str, Tensor], batch: Batch) -> Tensor:
        return carry + 1000 * fixed["a"] + fixed["b"] + 0 * batch.x.sum()


def test_the_order_of_names_does_not_matter() -> None:
    """A lane that comes into use later finds what the first one had built, for names in another order."""
    samples = Samples(torch.zeros(5, 1), torch.zeros(5), tuple(torch.arange(5).split(1)))
    engine = Graphed(1, False, torch.device("cpu"), in_place, lanes=3)

    def scanned(clients: int, *names: str) -> Tensor:
        batches = Batches(samples, np.arange(clients), Amount(steps=1), 1, key=None)
        values = {"a": torch.arange(1.0, clients + 1), "b": torch.full((clients,), 0.5)}
        fixed = {name: values[name] for name in names}
        found: Tensor = engine.scan(Sums(), torch.zeros(clients), fixed, batches, keys=range(clients))
        return found

    assert scanned(1, "a", "b").tolist() == [1000.5]
    assert scanned(5, "b", "a").tolist() == [1000.5, 2000.5, 3000.5, 4000.5, 5000.5]


def test_samples_with_other_targets_are_others() -> None:
    """Validation samples and test samples may be the same inputs, and their targets not."""
    x, right = torch.randn(40, 1, 4, 4, dtype=torch.float64), torch.arange(40) % 3
    wrong, each = (right + 1) % 3, torch.arange(40).split(5)
    parts = {"train": tuple(e[:3] for e in each), "validation": tuple(e[3:4] for e in each)}
    fed = ct.data.Federation(x, wrong, x, right, test=tuple(e[3:4] for e in each), classes=3, **parts)
    e = experiment(net("mlp"), fed, build("fedavg"), graphed_for(1), rounds=1)
    now, _ = e.run_round(e.start(), 0, evaluate=True)
    assert now.values is not None
    slow, _ = replace(e, engine=Serial()).run_round(e.start(), 0, evaluate=True)
    assert slow.values is not None
    assert not torch.equal(now.values["validation"], now.values["after_mix"])
    assert torch.equal(now.values["validation"], slow.values["validation"])


@pytest.mark.parametrize("kind", ZOO)
def test_measurements_agree(kind: str) -> None:
    measured = []
    for engine in (Serial(), Vectorized(2)):
        e = experiment(net(kind), ragged(kind), build("dfedalt"), engine)
        measured.append(e.run_round(e.start(), 0, evaluate=True)[1])
    for name, value in measured[0].items():
        if not name.endswith("seconds"):
            assert measured[1][name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("row", METHODS)
def test_the_order_of_clients_does_not_matter(row: str) -> None:
    class Backwards(Serial):
        """The last client first."""

        def map(self, f, *clients, keys):  # type: ignore[no-untyped-def]
            results = []
            for i in reversed(range(len(keys))):
                mine = [c.one(i) if hasattr(c, "one") else rows(c, i) for c in clients]
                results.insert(0, f(*mine))
            return stack(results)

    kind = kind_like(row, "mlp")
    forwards = one_by_one(row, kind, torch.float64)
    with torch_threads(1):
        backwards = models(experiment(net(kind), ragged(kind), build(row), Backwards()), 2)
    assert all(torch.equal(forwards[k], backwards[k]) for k in forwards)


@pytest.mark.parametrize("row", METHODS)
def test_the_number_of_workers_does_not_matter(row: str) -> None:
    kind = kind_like(row, "groupnorm")
    alone = one_by_one(row, kind, torch.float64)
    with torch_threads(1):
        together = models(experiment(net(kind), ragged(kind), build(row), Serial(workers=3)), 2)
    assert all(torch.equal(alone[k], together[k]) for k in alone)


@pytest.mark.parametrize("chunk", [1, 2, 5, 50])
def test_the_chunk_does_not_matter(chunk: int) -> None:
    whole = models(experiment(net("mlp"), ragged("mlp"), build("dfedalt"), Vectorized(5)), 2)
    parts = models(experiment(net("mlp"), ragged("mlp"), build("dfedalt"), Vectorized(chunk)), 2)
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-10, atol=1e-10)


class Dropping(nn.Module):
    """A model whose outputs show its dropout masks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(nn.functional.dropout(x, 0.5, self.training))


@pytest.mark.parametrize(
    "engine",
    [Serial(), Serial(workers=2), Vectorized(4), Vectorized(2)],
    ids=["serial", "workers", "vectorized", "chunks"],
)
def test_dropout_is_repeatable_and_differs_between_clients(engine: Serial | Vectorized) -> None:
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 3
    fed = ct.data.from_tensors(train=[(x, y)] * 4, test=[(x, y)] * 4)
    alg = ct.algorithms.local(lr=0.1, momentum=0.0, weight_decay=0.0, clip=None, batch_size=None, epochs=1)
    torch.manual_seed(1)
    first = models(experiment(Dropping(), fed, alg, engine), 1)
    module = experiment(Dropping(), fed, alg, engine).model.module
    torch.manual_seed(2)  # the surroundings do not matter
    again, other = (models(experiment(module, fed, alg, engine, seed=s), 1)["layer.weight"] for s in (0, 0))
    assert torch.equal(again, other)
    assert not torch.equal(models(experiment(module, fed, alg, engine, seed=1), 1)["layer.weight"], again)
    weights = first["layer.weight"]
    assert all(not torch.equal(weights[i], weights[j]) for i in range(4) for j in range(i))


def test_the_surrounding_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    models(experiment(net("mlp"), ragged("mlp"), build("dfedalt"), Vectorized(5)), 1)
    models(experiment(net("mlp"), ragged("mlp"), build("dfedalt"), Serial()), 1)
    assert torch.equal(before, torch.random.get_rng_state())


class Noisy(nn.Linear):
    """Draws in training and in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1) + torch.randn(len(x), 16, dtype=torch.float64))


@pytest.mark.parametrize("engine", ["serial", "vectorized", "auto"])
def test_a_run_leaves_the_random_state_alone_where_a_module_or_a_loss_draws(engine: str) -> None:
    """Trials, training and evaluation draw, and nothing depends on what was drawn before."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs + 0.1 * torch.randn_like(outputs), targets)

    fed, found = ragged("mlp"), []
    module = Noisy(16, 3, dtype=torch.float64)
    for _ in range(2):
        before = torch.random.get_rng_state()
        run = ct.fit(module, fed, FEDAVG, rounds=2, engine=engine, loss=loss, progress=False)
        assert torch.equal(before, torch.random.get_rng_state())
        found.append([row["train_loss"] for row in run.history])
        torch.rand(3)
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ZOO)
def test_padding_does_not_matter(kind: str) -> None:
    fed = ragged(kind)
    assert not padding_matters(Model(net(kind), cross_entropy), Batch(fed.x[:8], fed.y[:8], None), fed.y)


class Centered(nn.Module):
    """Statistics of a batch that are no BatchNorm layer's; ``counts``: only the number of its samples is kept."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts, self.layer = counts, nn.Linear(16, 3, dtype=torch.float64)
        self.register_buffer("kept", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x.flatten(1))
        self.kept += len(x) if self.counts else 0
        return x if self.counts else x - x.mean(0)


@pytest.mark.parametrize("counts", [True, False])
def test_other_statistics_of_a_batch_are_found(counts: bool) -> None:
    fed = ragged("mlp")
    assert padding_matters(Model(Centered(counts), cross_entropy), Batch(fed.x[:8], fed.y[:8], None), fed.y)


def test_a_loss_that_compares_samples_is_found_too() -> None:
    def spread(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.var(0).sum()

    fed = ragged("mlp")
    assert padding_matters(Model(net("mlp"), spread), Batch(fed.x[:8], fed.y[:8], None), fed.y)


@pytest.mark.parametrize("rare", [0, 1, 2])
def test_a_loss_that_weighs_classes_is_found_wherever_they_are_stored(rare: int) -> None:
    """One sample of a class among many of another, which all samples of the trial are of."""
    weights, x = torch.ones(3, dtype=torch.float64), ragged("mlp").x[:8]
    weights[rare] = 9.0
    same = torch.full((500,), (rare + 1) % 3)
    for loss, weighs in ((nn.CrossEntropyLoss(weights), True), (nn.CrossEntropyLoss(), False)):
        model, probe = Model(net("mlp"), loss), Batch(x, same[:8], None)
        assert not padding_matters(model, probe, same)
        assert padding_matters(model, probe, torch.cat([same, torch.tensor([rare])])) is weighs


class Beginning(nn.Module):
    """Compares the samples of a batch, behind a gate or before a head; these may begin as zeros, which hides it."""

    def __init__(self, layer: str, begins: float) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(16, 8), nn.Linear(8, 3)
        self.gate = nn.Parameter(torch.ones(1))
        for p in [self.gate] if layer == "gate" else self.head.parameters():
            nn.init.constant_(p, begins)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.hidden(x.flatten(1)))
        out: Tensor = self.head(h + self.gate * torch.softmax(h @ h.T, 1) @ h)
        return out


@pytest.mark.parametrize(("layer", "begins"), [("head", 0.0), ("gate", 0.0), ("gate", 1e-6)])
def test_what_zeros_hide_at_the_beginning_is_found(layer: str, begins: float) -> None:
    fed = ragged("mlp")
    torch.manual_seed(0)
    model = Model(Beginning(layer, begins).double(), cross_entropy)
    assert padding_matters(model, Batch(fed.x[:8], fed.y[:8], None), fed.y)


@pytest.mark.parametrize("weighs", [True, False])
def test_a_head_of_zeros_hides_no_weights_of_classes(weighs: bool) -> None:
    """All engines train alike, and nothing is left unpadded that need not be."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3, dtype=torch.float64))
    for p in module.parameters():
        nn.init.zeros_(p)
    fed, alg = ragged("mlp"), ct.algorithms.local(lr=0.1, batch_size=4, epochs=2)
    loss = nn.CrossEntropyLoss(torch.tensor([0.2, 3.0, 1.0], dtype=torch.float64) if weighs else None)
    assert padding_matters(Model(module, loss), Batch(fed.x[:8], fed.y[:8], None), fed.y) is weighs
    runs = [ct.fit(module, fed, alg, rounds=2, engine=e, loss=loss, progress=False) for e in ("serial", "vectorized")]
    for one, other in zip(*(run.clients for run in runs), strict=True):
        for k, v in one.personal.items():
            torch.testing.assert_close(other.personal[k], v)


class Rooted(nn.Module):
    """A parameter that must be positive: other values give no number, or an error."""

    def __init__(self, checked: bool) -> None:
        super().__init__()
        self.layer, self.checked = nn.Linear(16, 3, dtype=torch.float64), checked
        self.scale = nn.Parameter(torch.full((16,), 1e-3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.checked and bool((self.scale < 0).any()):
            raise ValueError("negative")
        out: Tensor = self.layer(x.flatten(1) * self.scale.sqrt())
        return out


@pytest.mark.parametrize("checked", [True, False])
def test_weights_that_a_model_cannot_take_tell_nothing(checked: bool) -> None:
    fed = ragged("mlp")
    assert not padding_matters(Model(Rooted(checked), cross_entropy), Batch(fed.x[:8], fed.y[:8], None), fed.y)


class TestChoice:
    """``auto`` decides by cost and says why."""

    def choose(self, text: str, module: nn.Module, shape: tuple[int, ...], batch_size: int = 16) -> tuple[str, str]:
        choice = choose(text, candidate(module, torch.zeros(8, *shape), Work(20, batch_size, 10**6)))
        return choice.engine.name, choice.reason

    def test_small_models_run_together(self) -> None:
        assert self.choose("auto", ct.models.build("logreg", classes=10), (1, 28, 28))[0] == "vectorized:20"

    def test_large_convolutions_run_alone(self) -> None:
        name, reason = self.choose("auto", ct.models.build("cnn", classes=10), (1, 28, 28), 50)
        assert name == "serial"
        assert "convolutions" in reason

    def test_what_cannot_be_lifted_runs_alone_and_says_why(self) -> None:
        class Branching(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 2)

            def forward(self, x: Tensor) -> Tensor:
                h = self.layer(x)
                return h if h.sum() > 0 else 2 * h

        name, reason = self.choose("auto", Branching(), (4,))
        assert name == "serial"
        assert "cannot be vectorized" in reason
        with pytest.raises(ct.UserError, match="use the serial engine"):
            self.choose("vectorized", Branching(), (4,))

    def test_a_gpu_that_is_not_used_well_is_warned_of(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The first line of the run has the reason; a run that is too short to build programs is no reason."""

        class Noisy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x) + torch.rand(len(x), 2)

        monkeypatch.setattr("coterie.training.select_engine.free_memory", lambda device: 2**30)
        x, there = torch.zeros(8, 4), torch.device("cuda")  # where nothing can be tried
        works = (Work(20, 16, steps) for steps in (10**6, 10))
        long, short = (choose("auto", candidate(Noisy(), x, work, there, lambda engine: None)) for work in works)
        assert long.engine.name == "vectorized:20"
        assert long.warning is not None
        assert re.match(r"the GPU is not used well: a step draws random numbers.*vectorized:20 engine", long.warning)
        assert short.warning is None
        monkeypatch.setattr("coterie.training.prepare.select_engine", lambda *_: long._replace(engine=Serial()))
        pairs = [(x, torch.zeros(8, dtype=torch.int64))] * 2
        fed = ct.data.from_tensors(train=pairs, test=pairs, classes=2)
        ct.fit(Noisy(), fed, algorithms.fedavg(epochs=1), rounds=1)
        assert capsys.readouterr().err.splitlines()[0] == long.warning

    def test_all_steps_of_a_round_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of every phase and every epoch: two epochs of four steps each, two clients, ten rounds."""
        counted: list[int] = []
        monkeypatch.setattr(select, "choose", lambda text, candidate: counted.append(candidate.work.steps))
        x, y = torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64)
        fed = ct.data.from_tensors(train=[(x, y)] * 2, test=[(x, y)] * 2, classes=2)
        for method, steps in (
            (ct.algorithms.fedavg, 2),
            (partial(ct.algorithms.dfedalt, topology="ring", personal_epochs=1), 3),
        ):
            e = experiment(nn.Linear(4, 2), fed, method(epochs=2, batch_size=2), rounds=10)
            select.select_engine("auto", e, 2)
            assert counted.pop() == 10 * 2 * 4 * steps

    def test_a_chunk_is_taken_as_given(self) -> None:
        assert self.choose("vectorized:7", ct.models.build("logreg", classes=10), (1, 28, 28))[0] == "vectorized:7"
        with pytest.raises(ct.UserError, match="chunk takes an integer"):
            self.choose("vectorized:none", ct.models.build("logreg", classes=10), (1, 28, 28))

    def test_few_clients_share_the_cores(self) -> None:
        with torch_threads(7):
            engines = {n: self.serial(n) for n in (1, 2, 3, 20)}
        assert {n: (e.workers, e.threads) for n, e in engines.items()} == {1: (1, 7), 2: (2, 3), 3: (3, 2), 20: (7, 1)}

    def test_less_memory_fewer_workers_and_the_same_numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("coterie.training.select_engine.free_memory", lambda device: 2500)
        with torch_threads(7):
            few = self.serial(20)
        assert (few.workers, few.threads) == (2, 1)

    def serial(self, clients: int) -> Serial:
        engine = choose("serial", candidate(nn.Linear(4, 2), torch.zeros(8, 4), Work(clients, 8, 10**6))).engine
        assert isinstance(engine, Serial)
        return engine

    def test_less_memory_smaller_chunk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("coterie.training.select_engine.free_memory", lambda device: 3_500_000)
        name, _ = self.choose("vectorized", ct.models.build("logreg", classes=10), (1, 28, 28))
        assert name == "vectorized:5"  # half of it, at 6 * 31,400 bytes of weights and 3 * 4 * 794 * 16 of activations


class Shift(NamedTuple):
    """A step that adds what is fixed, name by name."""

    rates: tuple[float, ...] = (1.0,)
    pace: None = None
    independent: bool = True

    def at(self, rates: Any) -> "Shift":
        return self

    def begin(self, given: Any) -> Any:
        return given

    def __call__(self, carry: Any, fixed: Any, batch: Batch) -> Any:
        return {k: v + fixed[k] for k, v in carry.items()}

    end = begin


def test_what_is_given_is_known_by_its_name() -> None:
    """A state may list its tensors in another order in the next round: those of equal shape are not mixed up."""
    e = experiment(net("mlp"), ragged("mlp"), build("fedavg"))
    batches = e.everybody(0).batches(0, Amount(None, 1), 4)
    for engine in (Serial(), Vectorized(2), graphed_for(2)):
        for first, second in ("ab", "ba", "ab"):
            x = {k: torch.zeros(5) for k in (second, first)}
            fixed = {first: torch.full((5,), float(ord(first))), second: torch.full((5,), float(ord(second)))}
            out = engine.scan(Shift(), x, fixed, batches, keys=range(5))
            assert all(torch.equal(out[k], torch.full((5,), float(ord(k)))) for k in "ab"), engine.name


@pytest.mark.parametrize("engine", [Serial, partial(Vectorized, 2)], ids=["serial", "vectorized"])
def test_an_engine_is_on_the_device_that_it_is_given(engine: Callable[..., Engine]) -> None:
    assert engine().device == torch.device("cpu")
    assert engine(device=torch.device("cuda")).device == torch.device("cuda")


def test_another_gpu_than_the_first_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes, clocks and generators are those of the current one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ct.UserError, match=r"cuda:1' cannot be used: .*CUDA_VISIBLE_DEVICES=1"):
        find_device("cuda:1")
    assert find_device("cuda:0").type == "cuda"
