"""Gradient norms, sharpness and curvature against closed forms, finite differences and plain loops."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms.base import ModelGroup
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, replicate, rows
from coterie.data import Federation
from coterie.data.batches import Samples
from coterie.engines import Serial, Vectorized
from coterie.measure import sharpness as landscape
from coterie.measure.convergence import MEASURES, gradient_norms, smallest_singular_value, with_common_shared
from coterie.measure.sharpness import loss_slice, sharpness, top_eigenvalue
from coterie.models.model import Loss, Model, cross_entropy
from laws import build, kind_like
from toys import V0, A, B, C, Coupled, D, Quadratic, experiment, golden, mean_output, net, ragged, scattered

BOTH = pytest.mark.parametrize("engine", [Serial(), Vectorized(2)], ids=["serial", "vectorized"])
KINDS = pytest.mark.parametrize("kind", ["mlp", "groupnorm", "batchnorm", "tokens"])
a, b, c, d = (torch.tensor(values, dtype=torch.float64) for values in (A, B, C, D))
EMPTY = torch.empty(0, dtype=torch.int64)


def owned(fed: Federation) -> Samples:
    return Samples(fed.x, fed.y, fed.train)


def varied(module: nn.Module, clients: int) -> Tensors:
    """Everybody's model: the module's values, each client's a little off, running statistics too."""
    g = torch.Generator().manual_seed(5)
    start = Model(module, cross_entropy).start
    return {
        k: v + 0.1 * torch.rand(clients, *v.shape, generator=g, dtype=v.dtype)
        if v.is_floating_point()
        else v.expand(clients, *v.shape)
        for k, v in start.items()
    }


def by_hand(module: nn.Module, models: Tensors, i: int, samples: Samples, loss: Loss) -> tuple[Tensor, Tensors]:
    """Client i's loss over all its data at once, and the gradient: ordinary autograd on an ordinary module."""
    module.load_state_dict({k: v[i] for k, v in models.items()})
    value = loss(module.eval()(samples.x[samples.owned[i]]), samples.y[samples.owned[i]])
    names, parameters = zip(*module.named_parameters(), strict=True)
    return value.detach(), dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


def length(g: Tensors) -> Tensor:
    return sum((v.square().sum() for v in g.values()), torch.zeros((), dtype=torch.float64)).sqrt()


class TestGradientNorms:
    """G_u and G_v."""

    @BOTH
    def test_golden(self, engine: Any) -> None:
        fed, model = golden((3, 1, 2, 5)), Model(Quadratic(), mean_output)
        norms = gradient_norms(engine, model, replicate(model.start, 4), owned(fed), {"u"})
        assert norms == pytest.approx((1.0, 3.0), rel=1e-12)

    @BOTH
    @KINDS
    def test_by_hand(self, engine: Any, kind: str) -> None:
        """Unequal clients, a client without samples, BatchNorm in evaluation mode: as the modules themselves say."""
        fed, module = ragged(kind), net(kind)
        samples = Samples(fed.x, fed.y, (*fed.train[:2], EMPTY, *fed.train[2:]))
        models = varied(module, 6)
        shared = {k for k in models if not k.startswith(("head", "6", "3."))}
        names = [k for k, _ in module.named_parameters()]
        each = [by_hand(module, models, i, samples, cross_entropy)[1] for i in (0, 1, 3, 4, 5)]
        u = length({k: torch.stack([g[k] for g in each]).mean(0) for k in names if k in shared}) ** 2
        v = sum(length({k: g[k] for k in names if k not in shared}) ** 2 for g in each) / 5
        got = gradient_norms(engine, Model(net(kind), cross_entropy), models, samples, shared)
        assert got == pytest.approx((float(u), float(v)), rel=1e-10)
        assert min(got) > 0

    @BOTH
    @KINDS
    @pytest.mark.parametrize("size", [1, 3, 7])
    def test_the_batch_size_does_not_matter(
        self, engine: Any, kind: str, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, samples = Model(net(kind), cross_entropy), owned(ragged(kind))
        models = varied(model.module, 5)
        names = set(list(models)[:2])
        whole = gradient_norms(engine, model, models, samples, names)
        steep = sharpness(engine, model, models, samples, 0.05)
        monkeypatch.setattr(landscape, "ANSWERS", size)
        assert gradient_norms(engine, model, models, samples, names) == pytest.approx(whole, rel=1e-10)
        assert sharpness(engine, model, models, samples, 0.05).tolist() == pytest.approx(steep.tolist(), rel=1e-9)

    @BOTH
    def test_how_many_clients_at_a_time_does_not_matter(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model, samples = Model(net("mlp"), cross_entropy), owned(ragged("mlp"))
        models = varied(model.module, 5)
        names = set(list(models)[:2])
        together = gradient_norms(engine, model, models, samples, names)
        monkeypatch.setattr(landscape, "NUMBERS", 400)  # two clients at a time
        assert gradient_norms(engine, model, models, samples, names) == pytest.approx(together, rel=1e-12)

    def test_single_precision_is_summed_in_double(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thousand equal samples, one by one, have the gradient of one of them to the last bits of a double."""
        monkeypatch.setattr(landscape, "ANSWERS", 1)
        fed, model = golden((1, 1000, 1, 1)), Model(Quadratic(0.1).float(), mean_output)
        x, models = fed.x.float(), replicate(model.start, 1)
        one, many = (
            gradient_norms(Serial(), model, models, Samples(x, fed.y, (rows,)), {"u"})
            for rows in (fed.train[1][:1], fed.train[1])
        )
        assert many == pytest.approx(one, rel=1e-14)

    @BOTH
    def test_empty_and_frozen_parts(self, engine: Any) -> None:
        samples, module = owned(golden()), Quadratic()
        model = Model(module, mean_output)
        models = replicate(model.start, 4)
        assert gradient_norms(engine, model, models, samples, {"u", "v"}).personal == 0.0
        alone = gradient_norms(engine, model, models, samples, set())
        assert alone.shared == 0.0
        assert alone.personal == pytest.approx(float(((a * (0.5 - b)) ** 2 + (c * (1 - d)) ** 2).mean()))
        module.v.requires_grad_(False)
        assert gradient_norms(engine, Model(module, mean_output), models, samples, {"u"}) == pytest.approx((1.0, 0.0))

    @BOTH
    @KINDS
    def test_finite_differences(self, engine: Any, kind: str) -> None:
        """Down the gradient of one client's loss, the loss falls by the squared norm."""
        model, fed = Model(net(kind), cross_entropy), ragged(kind)
        samples = Samples(fed.x, fed.y, fed.train[:1])
        here = by_hand(net(kind), replicate(model.start, 1), 0, samples, cross_entropy)[1]
        ends = []
        for step in (1e-5, -1e-5):
            moved = {k: (v + step * here[k] if k in here else v)[None] for k, v in model.start.items()}
            ends.append(by_hand(net(kind), moved, 0, samples, cross_entropy)[0])
        got = gradient_norms(engine, model, replicate(model.start, 1), samples, set(model.parameters))
        assert got.shared == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-5)

    @BOTH
    def test_nothing_is_changed(self, engine: Any) -> None:
        """No tensor, no buffer of the module, no generator, no mode."""
        module, samples = net("batchnorm"), owned(ragged("batchnorm"))
        model, models = Model(module, cross_entropy), varied(module, 5)
        before = {k: v.clone() for k, v in models.items()}
        frozen = {k: v.clone() for k, v in model.evaluation.state_dict().items()}
        generator = torch.random.get_rng_state()
        gradient_norms(engine, model, models, samples, {"0.weight"})
        sharpness(engine, model, models, samples, 0.1)
        top_eigenvalue(engine, model, models, samples, iterations=2)
        loss_slice(engine, model, models, samples, [0.0])
        assert torch.equal(torch.random.get_rng_state(), generator)
        assert torch.is_grad_enabled()
        assert all(torch.equal(models[k], v) for k, v in before.items())
        assert all(torch.equal(model.evaluation.state_dict()[k], v) for k, v in frozen.items())
        assert module.training


class TestMeeting:
    """Between peers, the shared gradient is taken where they would meet."""

    def test_met(self) -> None:
        models = {"u": torch.tensor([[1.0], [2.0]]), "k": torch.tensor([3, 4]), "v": torch.tensor([5.0, 6.0])}
        got = with_common_shared(models, {"u", "k"})
        assert (got["u"].tolist(), got["k"].tolist(), got["v"].tolist()) == ([[1.5], [1.5]], [3, 4], [5.0, 6.0])
        assert models["u"].tolist() == [[1.0], [2.0]]
        assert with_common_shared(models, {"u"}, {"u": torch.tensor([9.0])})["u"].tolist() == [[9.0], [9.0]]
        server = replicate({"u": torch.tensor(0.1)}, 3)
        assert with_common_shared(server, {"u"})["u"] is server["u"]

    @BOTH
    @pytest.mark.parametrize("personal", ["v", "none"])
    def test_peers(self, engine: Any, personal: str) -> None:
        """At scattered u_i: D_u = (mean_i a_i (ubar - b_i))^2, D_v = mean_i (c_i (v_i - d_i))^2."""
        alg = ct.algorithms.dfedavgm_p(topology="ring", personal=personal, batch_size=None)
        e = experiment(Quadratic(), golden(), alg, engine)
        state = scattered(e).state
        middle = state.x["u"].mean()
        shared, own = float((a * (middle - b)).mean() ** 2), (c * (torch.tensor(V0) - d)) ** 2
        if personal == "none":
            shared, own = shared + float((c * (1 - d)).mean() ** 2), torch.zeros(4)
        got = MEASURES["gradients"](e, state)
        assert got == pytest.approx({"gradient_norm_shared": shared, "gradient_norm_personal": float(own.mean())})

    def test_personal_gradients_are_where_the_clients_are(self) -> None:
        """With a term that couples u and v, the mean u and the own u give different personal gradients."""
        x = [(torch.tensor([[0.0, k, 0.0, 0.0]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)) for k in B]
        e = experiment(Coupled(), ct.data.from_tensors(x, x), ct.algorithms.dfedavgm_p(topology="ring", personal="v"))
        state = scattered(e).state
        got = MEASURES["gradients"](e, state)
        u, v = state.x["u"], state.x["v"]
        assert got["gradient_norm_shared"] == pytest.approx(float((u.mean() + v - b).mean() ** 2))
        assert got["gradient_norm_personal"] == pytest.approx(float(((u + v - b) ** 2).mean()))

    @BOTH
    @pytest.mark.parametrize("name", ["fedavg-p", "scaffold-p", "fedrep", "dfedpgp", "osgp", "local", "ditto"])
    def test_every_family(self, engine: Any, name: str) -> None:
        """At the common start the golden values, whatever is shared and wherever the state keeps it."""
        known = ct.algorithms.build(name).settings
        options: dict[str, Any] = {"personal": "v"} if "personal" in known else {}
        if "topology" in known:
            options["topology"] = "random-push:2"
        e = experiment(Quadratic(), golden(), ct.algorithms.build(name, batch_size=None, **options), engine)
        got = MEASURES["gradients"](e, e.start().state)
        nothing_shared, nothing_personal = (0.0, 11.375), (1.25, 0.0)
        other = {"local": nothing_shared, "ditto": nothing_shared, "osgp": nothing_personal}
        assert tuple(got.values()) == pytest.approx(other.get(name, (1.0, 3.0)))


class Rows(nn.Module):
    """F = a/2 |w - b|^2 for a matrix w, with a vector beside it that a slice must leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3))
        self.bias = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] / 2 * (self.w - x[:, 1, None, None]).square().sum((1, 2)) + self.bias.square().sum()


class TestSharpness:
    """The loss around a point."""

    @BOTH
    @pytest.mark.parametrize("rho", [0.0, 0.05, 1.0])
    def test_closed_form(self, engine: Any, rho: float) -> None:
        """rho |g| + rho^2/2 <g, H g>/|g|^2 on a quadratic, which is rho |g| + a rho^2/2 where H = a I."""
        fed, model = golden((2, 1, 3, 1)), Model(Quadratic(), mean_output)
        got = sharpness(engine, model, replicate(model.start, 4), owned(fed), rho)
        gu, gv = a * (0.5 - b), c * (1 - d)
        squared = gu**2 + gv**2
        expected = rho * squared.sqrt() + rho**2 / 2 * (a * gu**2 + c * gv**2) / squared
        assert got.tolist() == pytest.approx(expected.tolist(), rel=1e-12)
        model.module.v.requires_grad_(False)
        only_u = sharpness(engine, Model(model.module, mean_output), replicate(model.start, 4), owned(fed), rho)
        assert only_u.tolist() == pytest.approx((rho * gu.abs() + a * rho**2 / 2).tolist(), rel=1e-12)

    @BOTH
    def test_at_the_minimum_and_without_samples(self, engine: Any) -> None:
        fed, model = golden(), Model(Quadratic(1.0, 0.0), mean_output)  # client 0's own minimum
        samples = Samples(fed.x, fed.y, (*fed.train[:3], EMPTY))
        got = sharpness(engine, model, replicate(model.start, 4), samples, 0.1)
        assert got[0] == 0.0
        assert got[3].isnan()
        assert bool((got[1:3] > 0).all())

    def test_a_model_beyond_the_limit_of_numbers_is_measured_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fed, model = golden((2, 1, 3, 1)), Model(Quadratic(), mean_output)
        together = sharpness(Serial(), model, replicate(model.start, 4), owned(fed), 0.1)
        monkeypatch.setattr(landscape, "NUMBERS", 1)  # the model has two
        assert torch.equal(sharpness(Serial(), model, replicate(model.start, 4), owned(fed), 0.1), together)

    @KINDS
    def test_both_engines_and_by_hand(self, kind: str) -> None:
        model, samples = Model(net(kind), cross_entropy), owned(ragged(kind))
        models = varied(model.module, 5)
        slow, fast = (sharpness(e, model, models, samples, 0.1) for e in (Serial(), Vectorized(3)))
        assert float((slow - fast).abs().max()) < 1e-10
        for i in range(5):
            here, g = by_hand(net(kind), models, i, samples, cross_entropy)
            worst = models | {k: models[k] + 0.1 * v / length(g) for k, v in g.items()}  # right for client i alone
            there, _ = by_hand(net(kind), worst, i, samples, cross_entropy)
            assert float(slow[i]) == pytest.approx(float(there - here), rel=1e-9)

    @BOTH
    def test_as_a_measure(self, engine: Any) -> None:
        e = experiment(Quadratic(), golden(), ct.algorithms.local(batch_size=None), engine)
        each = sharpness(engine, e.model, replicate(e.model.start, 4), e.train, 0.05)
        got = MEASURES["sharpness"](e, e.start().state)
        assert got == pytest.approx({"sharpness": float(each.mean()), "sharpness_worst": float(each.max())})

    @BOTH
    def test_top_eigenvalue(self, engine: Any) -> None:
        model, fed = Model(Quadratic(), mean_output), golden((2, 1, 3, 1))
        got = top_eigenvalue(engine, model, replicate(model.start, 4), owned(fed))
        assert got.tolist() == pytest.approx(torch.maximum(a, c).tolist(), rel=1e-6)
        flat = Samples(torch.zeros_like(fed.x), fed.y, fed.train)
        assert top_eigenvalue(engine, model, replicate(model.start, 4), flat).tolist() == [0.0] * 4

    def test_top_eigenvalue_of_the_whole_hessian(self) -> None:
        module, samples = net("mlp"), owned(ragged("mlp"))
        model, models = Model(module, cross_entropy), varied(net("mlp"), 5)
        slow, fast = (top_eigenvalue(e, model, models, samples, iterations=200) for e in (Serial(), Vectorized(2)))
        assert float((slow - fast).abs().max()) < 1e-10
        names, shapes = zip(*((k, v.shape[1:]) for k, v in models.items()), strict=True)

        def loss(flat: Tensor) -> Tensor:
            parts = torch.split(flat, [s.numel() for s in shapes])
            x = {k: p.view(s) for k, p, s in zip(names, parts, shapes, strict=True)}
            return cross_entropy(model.outputs(x, samples.x[samples.owned[2]]), samples.y[samples.owned[2]])

        hessian = torch.func.jacrev(torch.func.grad(loss))(torch.cat([models[k][2].flatten() for k in names]))
        eigenvalues = torch.linalg.eigvalsh(hessian)
        assert float(slow[2]) == pytest.approx(float(eigenvalues[eigenvalues.abs().argmax()]), rel=1e-6)

    @BOTH
    def test_slice_is_an_exact_parabola(self, engine: Any) -> None:
        model = Model(Rows(), mean_output)
        fed, grid = golden((2, 1, 3, 1)), [-1.0, -0.5, 0.0, 0.5, 1.0]
        got = loss_slice(engine, model, replicate(model.start, 4), owned(fed), grid)
        w = model.start["w"]
        expected = a / 2 * torch.stack([(w - k).square().sum() for k in b]) + 3
        assert got[:, 2, 2].tolist() == pytest.approx(expected.tolist(), rel=1e-12)  # slice(0, 0) is the loss
        # a |d|^2 along each direction, since every row of d is as long as the row of w, and no bias moves
        along = (got[:, 4, 2] - 2 * got[:, 2, 2] + got[:, 0, 2], got[:, 2, 4] - 2 * got[:, 2, 2] + got[:, 2, 0])
        for curvature in along:
            assert curvature.tolist() == pytest.approx((a * w.square().sum()).tolist(), rel=1e-10)
        assert got.diff(n=3, dim=1).abs().max() < 1e-11
        assert got.diff(n=3, dim=2).abs().max() < 1e-11
        other = loss_slice(engine, model, replicate(model.start, 4), owned(fed), grid, seed=1)
        assert not torch.allclose(other, got)

    def test_slices_agree_between_engines(self) -> None:
        model, samples = Model(net("batchnorm"), cross_entropy), owned(ragged("batchnorm"))
        models, grid = varied(model.module, 5), [-0.5, 0.0, 1.0]
        slow, fast = (loss_slice(e, model, models, samples, grid) for e in (Serial(), Vectorized(2)))
        assert float((slow - fast).abs().max()) < 1e-10
        for i in range(5):
            assert float(slow[i, 1, 1]) == pytest.approx(
                float(by_hand(net("batchnorm"), models, i, samples, cross_entropy)[0]), rel=1e-10
            )


def test_smallest_singular_value() -> None:
    g = torch.Generator().manual_seed(1)
    q = torch.linalg.qr(torch.randn(3, 6, 4, generator=g, dtype=torch.float64))[0]
    sizes = torch.tensor([[4.0, 3.0, 2.0, 1.5], [9.0, 8.0, 7.0, 0.0], [1.0, 1.0, 1.0, 0.25]], dtype=torch.float64)
    u, v = q * sizes[:, None, :], 2 * q[:, :4]
    least = torch.linalg.svdvals(v).amin(-1)
    assert smallest_singular_value([u]).tolist() == pytest.approx([1.5, 0.0, 0.25], abs=1e-12)
    assert smallest_singular_value([u, v]).tolist() == pytest.approx(torch.minimum(sizes[:, -1], least).tolist())
    assert float(smallest_singular_value([u[0].float()])) == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_the_noise_of_sampling_clients(m: int) -> None:
    """E |mean_S X - Xbar|^2 = (n-m)/(m n (n-1)) sum_i |X_i - Xbar|^2, over all cohorts of m of the golden gradients."""
    n, x = 4, torch.stack([a * (0.5 - b), c * (1 - d)], dim=1)
    spread = (x - x.mean(0)).square().sum()
    noise = torch.stack([(x[list(s)].mean(0) - x.mean(0)).square().sum() for s in combinations(range(n), m)]).mean()
    assert float(noise) == pytest.approx(float((n - m) / (m * n * (n - 1)) * spread), abs=1e-15)


@pytest.mark.parametrize("row", ["fedrod", "depthfl", "progfed", "flanc", "heterofl", "pfedlmt", "dispfl", "dfedpgp"])
def test_what_is_recorded_for_methods_with_modules_of_their_own(row: str) -> None:
    """Evaluation has one answer where training has several, and every engine finds the same numbers."""
    rows = []
    for engine in (Serial(), Vectorized(2)):
        e = experiment(net(kind_like(row, "groupnorm")), ragged("mlp"), build(row), engine)
        state = e.run_round(e.start(), 0, evaluate=False)[0].state
        rows.append(MEASURES["gradients"](e, state) | MEASURES["sharpness"](e, state))
    assert rows[0] == pytest.approx(rows[1], rel=1e-8)
    assert all(v >= 0 for v in rows[0].values())


def test_smallest_singular_values_are_recorded() -> None:
    """Right after a spectral start they are the roots of the layer's own; padding does not count."""
    whole = experiment(net("groupnorm"), ragged("groupnorm"), build("fedlmt, decaying"))
    sigma = torch.linalg.svdvals(net("groupnorm").get_parameter("4.weight").detach())
    found = MEASURES["singular-values"](whole, whole.start().state)["smallest_singular_value"]
    rank = whole.model.start["4.U"].shape[1]
    assert found == pytest.approx(float(sigma[rank - 1].sqrt()))
    padded = experiment(net("groupnorm"), ragged("groupnorm"), build("pfedlmt"))
    assert MEASURES["singular-values"](padded, padded.start().state)["smallest_singular_value"] > 0.01
    with pytest.raises(UserError, match="low rank"):
        experiment(net("mlp"), ragged("mlp"), build("fedavg")).changed(record=["singular-values"]).check()


def test_singular_values_by_block() -> None:
    """Each block of a residual network has its own number, the smallest of its layers; decomposed here by numpy."""
    fed = ct.data.federate("digits", clients=2, partition="iid", seed=0)
    module = ct.models.build("resnet8-bn:width=4", fed)
    e = experiment(module, fed, ct.algorithms.fedlmt(rank_ratio=0.5, keep_layers=1, participation=1.0))
    state = e.start().state
    found = MEASURES["singular-values"](e, state)
    start = e.model.start
    for block in range(3):
        layers = [f"stages.{block}.0.conv{c}" for c in (1, 2)]
        tall = [np.moveaxis(start[f"{layer}.U"].numpy(), 1, -1) for layer in layers]  # [c_out, k, 1, r]
        flat = [start[f"{layer}.V"].numpy() for layer in layers]  # [r, c_in, 1, k]
        factors = [u.reshape(-1, u.shape[-1]) for u in tall] + [v.reshape(len(v), -1) for v in flat]
        least = min(np.linalg.svd(f, compute_uv=False).min() for f in factors)
        assert found[f"smallest_singular_value_block_{block + 1}"] == pytest.approx(float(least), rel=1e-5)
    assert found["smallest_singular_value"] == min(v for k, v in found.items() if "block" in k)
    assert len(found) == 4


@pytest.mark.parametrize("engine", [Serial(), Vectorized(2)], ids=["serial", "vectorized"])
def test_train_accuracy_is_that_of_the_mean_model_on_all_training_samples(engine: Any) -> None:
    alg = ct.algorithms.dfedavg(topology="ring", epochs=2, batch_size=4, lr=0.1)
    fed = ragged("mlp")
    e = experiment(net("mlp"), fed, alg, engine)
    now, _ = e.run_round(e.start(), 0, evaluate=False)
    mean = {k: v.mean(0) for k, v in now.state.x.items()}
    answers = torch.func.functional_call(net("mlp"), mean, (fed.x,)).argmax(1)
    got = MEASURES["train-accuracy"](e, now.state)
    owned = torch.cat(list(fed.train))
    assert got == {"global_accuracy_train": float((answers == fed.y)[owned].double().mean())}


@pytest.mark.parametrize("engine", [Serial(), Vectorized(2)], ids=["serial", "vectorized"])
@pytest.mark.parametrize("method", ["fedper", "heterofl", "dfedavg"])
def test_own_models_are_measured_on_their_own_training_samples(method: str, engine: Any) -> None:
    """Sample by sample, through modules of torch: after the latest local training, and after aggregation."""
    kept: dict[str, Any] = {"capacities": "1-0.5"} if method == "heterofl" else {}
    kept |= {"topology": "ring"} if method == "dfedavg" else {"participation": 3}
    algorithm = ct.algorithms.build(method, **kept, epochs=1, batch_size=4, lr=0.05)
    fed = ragged("groupnorm", sizes=(30, 24, 40, 2, 33))
    e = experiment(net("groupnorm"), fed, algorithm, engine).changed(record=("own-train",))

    def right(module: nn.Module, tensors: Tensors, client: int) -> float:
        own = e.train.owned[client]
        answers = torch.func.functional_call(module, tensors, (e.train.x[own],)).argmax(1)
        return float((answers == e.train.y[own]).double().mean())

    now, trained = e.start(), {}
    for t in range(3):
        r = e.round(t)
        made = e.program.train(now.state, r)
        for g in made.groups or [ModelGroup(np.arange(len(r.cohort)), e.model, made.models)]:
            for k, client in enumerate(r.cohort[g.places].tolist()):
                trained[client] = right(g.model.module, rows(g.models, k), client)
        now, row = e.run_round(now, t, evaluate=t == 2)
    own = [c.module() for c in e.clients(now.state, 2)]
    mixed = [right(module, dict(module.state_dict()), i) for i, module in enumerate(own)]
    latest = [trained.get(i, mixed[i]) for i in range(5)]
    for point, each in (("after_mix", mixed), ("after_train", latest)):
        assert row[f"personal_accuracy_train_{point}"] == pytest.approx(np.mean(each))  # type: ignore[literal-required]
        weighted = np.average(each, weights=e.train.sizes)
        assert row[f"personal_accuracy_train_{point}_weighted"] == pytest.approx(weighted)  # type: ignore[literal-required]
    assert latest != mixed
    plain = e.changed(record=())
    _, other = plain.run_round(plain.start(), 0, evaluate=True)
    assert not [k for k in other if "train_after" in k]  # it costs a pass, so only who asks has it


def test_train_accuracy_needs_classes() -> None:
    e = experiment(Quadratic(), golden(), ct.algorithms.dfedavg(topology="ring"))
    with pytest.raises(UserError, match="no classes"):
        MEASURES["train-accuracy"](e, e.start().state)
