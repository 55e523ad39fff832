"""The published models: sizes, costs, initial values, and how they behave."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

import coterie as ct
from coterie import models
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, entries, stack
from coterie.data.batches import Batch
from coterie.local.personal import head, personal_names
from coterie.models.model import Model, cross_entropy
from coterie.models.trials import padding_matters

IMAGE = (3, 32, 32)
SMALL: dict[str, dict[str, Any]] = {
    "resnet8-gn": {"input_shape": (2, 8, 8)},
    "resnet8-bn": {"input_shape": (2, 8, 8)},
    "resnet18-gn": {"input_shape": (1, 8, 8), "width": 4, "groups": 2},
    "resnet18-bn": {"input_shape": (1, 9, 9), "width": 4},
    "vgg11-gn": {"input_shape": (1, 32, 32), "rate": 1 / 16, "groups": 4},
    "transformer-mlm": {"input_shape": (6,), "dim": 8, "heads": 2, "hidden": 12, "layers": 2},
}


def meta(name: str, classes: int = 10, shape: tuple[int, ...] = IMAGE, **options: Any) -> nn.Module:
    """A model without memory: enough to count."""
    with torch.device("meta"):
        return models.build(name, classes=classes, input_shape=shape, **options)


def small(name: str) -> nn.Module:
    return models.build(name, classes=5, **SMALL[name]).double()


def samples(name: str, n: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(1)
    shape = SMALL[name]["input_shape"]
    if name == "transformer-mlm":
        return torch.randint(0, 6, (n, *shape), generator=g)
    return torch.randn(n, *shape, generator=g, dtype=torch.float64)


def test_a_model_is_drawn_without_seeding_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would put their generators back."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    small("resnet8-gn")
    assert not seeded


SIZES = [
    ("resnet18-gn", 10, 11_173_962),
    ("resnet18-gn", 100, 11_220_132),
    ("resnet18-gn", 200, 11_271_432),
    ("resnet18-bn", 10, 11_173_962),
    ("resnet18-bn:rate=0.25", 10, 701_466),
    ("resnet18-bn:rate=0.5", 10, 2_797_610),
    ("resnet18-bn:rate=0.75", 10, 6_288_442),
    ("resnet8-gn", 10, 78_042),
    ("resnet8-bn", 10, 78_042),
    ("vgg11-gn", 10, 9_231_114),
    ("vgg11-gn", 100, 9_277_284),
    ("logreg", 10, 3_072 * 10 + 10),
    ("split-logreg", 2, 3_072),
    ("mlp", 10, (3_072 + 1) * 64 + (64 + 1) * 64 + (64 + 1) * 10),
    ("cnn", 10, (75 + 1) * 32 + (800 + 1) * 64 + (1_600 + 1) * 512 + (512 + 1) * 10),
    ("small-cnn", 10, (27 + 1) * 16 + (144 + 1) * 32 + (2_048 + 1) * 64 + (64 + 1) * 10),
]


@pytest.mark.parametrize(("name", "classes", "parameters"), SIZES)
def test_sizes(name: str, classes: int, parameters: int) -> None:
    assert entries(meta(name, classes).parameters()) == parameters


def test_every_model_has_a_size() -> None:
    """That of the transformer has a test of its own below, because it takes tokens and not images."""
    assert {name.partition(":")[0] for name, _, _ in SIZES} | {"transformer-mlm"} == set(models.BUILDERS)


@pytest.mark.parametrize(("classes", "parameters"), [(10, 5_130), (100, 51_300), (200, 102_600)])
def test_the_head_of_resnet18(classes: int, parameters: int) -> None:
    module = meta("resnet18-gn", classes)
    personal = {k: v for k, v in module.named_parameters() if k in head(module)}
    assert set(personal) == {"linear.weight", "linear.bias"}
    assert entries(personal.values()) == parameters
    assert entries(module.parameters()) - parameters == 11_168_832


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet18-bn", 558.50),
        ("resnet18-bn:rate=0.25", 35.82),
        ("resnet18-bn:rate=0.5", 140.84),
        ("resnet18-bn:rate=0.75", 315.07),
    ],
)
def test_published_costs(name: str, millions: float) -> None:
    assert models.cost(meta(name), torch.zeros(1, *IMAGE, device="meta")).flops / 1e6 == pytest.approx(
        millions, abs=0.005
    )


@pytest.mark.parametrize("name", SMALL)
def test_products_are_counted_as_torch_does(name: str) -> None:
    module = small(name).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(samples(name, 1))
    assert 2 * models.cost(module, samples(name, 1)).macs == counter.get_total_flops()


def test_the_transformer_has_the_published_size_and_cost() -> None:
    module = meta("transformer-mlm", 33_279, (64,))
    assert entries(module.parameters()) == 10_357_119
    price = models.cost(module, torch.zeros(1, 64, dtype=torch.int64, device="meta"))
    assert price.flops / 1e6 == pytest.approx(390, abs=0.5)  # 0.39e12 over 1,000 uploads in FedLMT's Table 2
    assert head(module) == {"linear.weight", "linear.bias"}


def initial(name: str, classes: int) -> Tensors:
    return models.build(name, classes=classes, input_shape=IMAGE).state_dict()


def test_initial_values_with_batch_normalization() -> None:
    x = initial("resnet18-bn", 10)
    assert float(x["stages.3.1.conv2.weight"].std()) == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    norms = {k: v for k, v in x.items() if "norm" in k or "shortcut.1" in k}
    assert len(norms) == 2 * 20
    assert all(torch.equal(v, torch.full_like(v, k.endswith("weight"))) for k, v in norms.items())


def test_initial_values_with_group_normalization() -> None:
    bound = 1 / math.sqrt(32 * 9)  # PyTorch's own: uniform
    assert bound * 0.99 < float(initial("resnet8-gn", 10)["stages.1.0.conv2.weight"].abs().max()) <= bound
    x = initial("vgg11-gn", 100)
    assert float(x["classifier.weight"].std()) == pytest.approx(0.01, rel=0.02)
    assert float(x["features.8.weight"].std()) == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.02)
    assert not any(v.any() for k, v in x.items() if k.endswith("bias"))


@pytest.mark.parametrize("name", SMALL)
def test_a_model_is_rebuilt_from_its_origin(name: str) -> None:
    module = small(name)
    again = models.build(**module.origin).double()  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_models_can_be_lifted_over_clients(name: str) -> None:
    module = small(name).eval()
    clients = [{k: v + 0.01 * i for k, v in module.named_parameters()} for i in range(3)]
    clients = [{k: v.detach() for k, v in x.items()} for x in clients]
    x = samples(name)
    y = torch.randint(0, 5, x.shape if name == "transformer-mlm" else x.shape[:1])

    def loss(tensors: Tensors) -> Tensor:
        return cross_entropy(functional_call(module, tensors, (x,)), y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = vmap(grad(loss))(stack(clients))
    for i, mine in enumerate(clients):
        for k, g in grad(loss)(mine).items():
            torch.testing.assert_close(together[k][i], g, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["resnet8-bn", "transformer-mlm"])
def test_models_train_on_every_engine(name: str) -> None:
    y = torch.arange(12) % 5
    x = samples(name, 12)
    target = x.clamp(max=4) if name == "transformer-mlm" else y
    pairs = [(x[: 6 + i], target[: 6 + i]) for i in (0, 6)]
    fed = ct.data.from_tensors(train=pairs, test=pairs, classes=5)
    alg = ct.algorithms.fedavg(epochs=1, batch_size=3, lr=0.01, participation=1.0)
    options = {**SMALL[name], "dropout": 0.0} if name == "transformer-mlm" else SMALL[name]
    ends = []
    for engine in ("serial", "vectorized:2"):
        module = models.build(name, classes=5, **options).double()
        run = ct.fit(module, fed, alg, rounds=2, engine=engine, progress=False)
        ends.append(run.clients[0].module().state_dict())
    for k, v in ends[0].items():
        torch.testing.assert_close(ends[1][k], v, rtol=1e-9, atol=1e-10)


def test_batch_normalization_uses_the_batch_in_training_and_in_evaluation() -> None:
    module, x = small("resnet8-bn"), samples("resnet8-bn")
    assert not dict(module.named_buffers())
    assert torch.equal(module.train()(x), module.eval()(x))
    assert not torch.allclose(module(x)[:1], module(x[:1]))
    model, used = Model(module, cross_entropy), torch.tensor([True, True, False])
    assert torch.allclose(model.outputs(model.start, x, used)[:2], model.outputs(model.start, x[:2]))
    y = torch.zeros(3, dtype=torch.int64)
    assert not padding_matters(model, Batch(x, y, None), y)


def test_the_transformer_looks_back_only() -> None:
    module, x = small("transformer-mlm").eval(), samples("transformer-mlm")
    before = module(x)
    assert before.shape == (3, 5, 6)
    changed = x.clone()
    changed[:, 3] = (x[:, 3] + 1) % 6
    moved = (module(changed) - before).abs().amax((0, 1))
    assert moved[:3].max() < 1e-12
    assert moved[3:].min() > 1e-6


def test_the_transformer_takes_the_mask_and_shorter_rows() -> None:
    module = small("transformer-mlm").eval()
    masked = torch.full((2, 6), 5)
    assert torch.isfinite(module(masked)).all()
    torch.testing.assert_close(module(masked[:, :4]), module(masked)[:, :, :4])


def test_an_untrained_transformer_is_as_perplexed_as_it_has_tokens() -> None:
    module = models.build("transformer-mlm", classes=2_000, input_shape=(64,), hidden=256).eval()
    tokens = torch.randint(0, 2_000, (8, 64), generator=torch.Generator().manual_seed(0))
    perplexity = float(cross_entropy(module(tokens), tokens).detach().exp())
    assert 2_000 / 2 < perplexity < 2_000 * 2


@pytest.mark.parametrize(
    ("name", "shape", "options", "sentence"),
    [
        ("resnet18-gn", IMAGE, {"rate": 0.25}, "groups=32 does not divide a layer's 16 channels: choose groups=16"),
        ("resnet8-gn", IMAGE, {"groups": 5}, "groups=5 does not divide"),
        ("vgg11-gn", IMAGE, {"groups": 48}, "choose groups=16"),
        ("vgg11-gn", (1, 8, 8), {}, "images of 8 x 8 are too small for vgg11-gn, which needs 32 x 32"),
        ("resnet8-bn", (64,), {}, "not samples of shape [64]: use mlp or logreg"),
        ("transformer-mlm", IMAGE, {}, "takes rows of tokens"),
        ("transformer-mlm", (8,), {"heads": 3}, "heads=3 does not divide dim=128"),
        (
            "transformer-mlm",
            (8,),
            {"dropout": 1.0},
            "dropout=1.0 is out of range: it must be a number at least 0",
        ),
        ("resnet8-bn", IMAGE, {"rate": 0.0}, "rate=0.0 is out of range: it must be a number above 0 and at most 1"),
        ("mlp", IMAGE, {"rate": 1.5}, "rate=1.5 is out of range: it must be a number above 0 and at most 1"),
        ("mlp", IMAGE, {"rate": "half"}, "rate='half' does not fit model mlp: rate takes a number"),
        ("mlp", IMAGE, {"width": 2.5}, "width=2.5 does not fit model mlp: width takes an integer"),
        ("mlp", IMAGE, {"width": 0}, "width=0 is out of range: it must be a number at least 1"),
        ("mlp", IMAGE, {"width": True}, "width takes an integer"),
        ("logreg", IMAGE, {"rate": 0.5}, "model logreg has no option 'rate': it takes no options"),
        ("resnet8-bn", IMAGE, {"groups": 2}, "it takes width, rate"),
    ],
)
def test_wrong_requests_are_one_sentence(
    name: str, shape: tuple[int, ...], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        models.build(name, classes=10, input_shape=shape, **options)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_may_be_typed_in_the_name() -> None:
    assert entries(models.build("mlp:width=40,rate=0.5", classes=2, input_shape=(3,)).parameters()) == 542
    assert entries(models.build("small-cnn:rate=1", classes=10, input_shape=(1, 8, 8)).parameters()) == 13_706


class TestSplitLogistic:
    """The objective of FedAvg-P, section 5, against its closed forms."""

    def objective(self, rho: float = 0.01) -> tuple[Model, Batch]:
        draw = torch.Generator().manual_seed(0)
        model = Model(models.build("split-logreg", classes=2, input_shape=(1, 3, 3), rho=rho).double(), cross_entropy)
        x = torch.rand(7, 1, 3, 3, generator=draw, dtype=torch.float64)
        return model, Batch(x, torch.tensor([0, 1, 1, 0, 1, 0, 0]), None)

    def value(self, u: Tensor, v: Tensor, rho: float = 0.01) -> Tensor:
        model, batch = self.objective(rho)
        return model.objective({"u": u, "v": v}, {}, batch)[0]

    def test_where_everything_is_zero(self) -> None:
        model, batch = self.objective()
        u, v = (model.start[k].requires_grad_() for k in ("u", "v"))
        assert (len(u), len(v)) == (5, 4)
        loss = self.value(u, v)
        assert loss.item() == pytest.approx(math.log(2))
        c = 2 * batch.y.double() - 1
        expected = -(c[:, None] * batch.x.flatten(1)).sum(0) / (2 * len(c))
        assert torch.allclose(torch.cat(torch.autograd.grad(loss, (u, v))), expected)

    def test_anywhere(self) -> None:
        draw = torch.Generator().manual_seed(1)
        u, v = (torch.randn(n, generator=draw, dtype=torch.float64, requires_grad=True) for n in (5, 4))
        _, batch = self.objective()
        c, x = 2 * batch.y.double() - 1, batch.x.flatten(1)
        margin = x[:, :5] @ u + x[:, 5:] @ v
        R = sum(w.square().sum() / (1 + w.square().sum()) for w in (u, v))
        assert torch.allclose(self.value(u, v), torch.log(1 + torch.exp(-c * margin)).mean() + 0.01 * R)
        assert torch.autograd.gradcheck(self.value, (u, v))

    def test_the_regularizer_lets_large_weights_go(self) -> None:
        def regularizer(u: Tensor) -> Tensor:
            return self.value(u, torch.zeros(4).double(), rho=1.0) - self.value(u, torch.zeros(4).double(), rho=0.0)

        u = torch.full((5,), 1e4, dtype=torch.float64, requires_grad=True)
        assert regularizer(u).item() == pytest.approx(1)
        assert torch.autograd.grad(regularizer(u), u)[0].norm() < 1e-10
        small = torch.linspace(-1, 1, 5).double()
        assert torch.allclose(regularizer(small), regularizer(-small))

    @pytest.mark.parametrize("wrong", [{"classes": 3}, {"classes": 2, "rho": -1.0}])
    def test_it_says_what_it_is_for(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(UserError, match=r"two classes|rho=-1.0 is out of range"):
            models.build("split-logreg", input_shape=(4,), **wrong)


class TestTiedTensors:
    """A tensor of two layers is shared or personal under both of its names."""

    @staticmethod
    def tied() -> nn.Sequential:
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        net[2].weight = net[0].weight
        return net

    @pytest.mark.parametrize(
        ("pattern", "one", "other"),
        [
            ("head", "2", "0"),
            ("2.*", "2", "0"),
            ("2.weight", "2", "0"),
            ("0.*", "0", "2"),
            (["0.weight", "2.bias"], "0", "2"),
        ],
    )
    def test_a_pattern_of_one_name_is_refused(self, pattern: str | list[str], one: str, other: str) -> None:
        """Its weight would be averaged, or kept, with that of the other layer."""
        refusal = rf"{one}\.weight .* is the same tensor as {other}\.weight, .*: name the personal part"
        with pytest.raises(ct.UserError, match=refusal):
            personal_names(self.tied(), pattern)

    def test_patterns_of_both_names_or_of_neither_are_taken(self) -> None:
        assert personal_names(self.tied(), "2.bias") == {"2.bias"}
        assert personal_names(self.tied(), "*.weight, 2.bias") == {"0.weight", "2.bias"}
        assert personal_names(self.tied(), "all") == {"0.weight", "0.bias", "2.bias"}

    def test_a_buffer_of_two_layers_is_one_tensor_too(self) -> None:
        net = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
        net[1].running_mean = net[0].running_mean
        with pytest.raises(ct.UserError, match=r"1\.running_mean .* is the same tensor as 0\.running_mean"):
            personal_names(net, "1.*")

    def test_a_layer_that_is_registered_twice_has_one_name(self) -> None:
        """As ``self.net = nn.Sequential(self.body, self.head)`` does, beside the layers themselves."""
        net = nn.Module()
        net.body, net.head = nn.Linear(4, 4), nn.Linear(4, 2)
        net.net = nn.Sequential(net.body, net.head)
        for pattern in ("head", "head.*"):
            assert personal_names(net, pattern) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("nothing", ["", " , ", []])
def test_nothing_personal_is_said_so(nothing: str | list[str]) -> None:
    with pytest.raises(ct.UserError, match="personal is empty: write head, all, none"):
        personal_names(nn.Linear(4, 2), nothing)
    assert personal_names(nn.Linear(4, 2), "none") == frozenset()
