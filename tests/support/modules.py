"""Modules of many kinds, as people write them: each takes six numbers and has scores for three classes."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils import checkpoint


class Recurrent(nn.Module):
    """A sequence of three steps with two numbers each."""

    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.layer = kind(2, 5, batch_first=True, **options)
        self.head = nn.Linear(10 if options.get("bidirectional") else 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x.view(-1, 3, 2))[0][:, -1])
        return out


class Cells(nn.Module):
    """The same, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.view(-1, 3, 2).unbind(1):
            state = self.cell(step, state)
        assert state is not None
        out: Tensor = self.head(state[0])
        return out


class Applied(nn.Module):
    """A hidden layer, a head, and what happens in between."""

    def __init__(self, between: Callable[["Applied", Tensor], Tensor]) -> None:
        super().__init__()
        self.hidden, self.head, self.between = nn.Linear(6, 6), nn.Linear(6, 3), between

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.between(self, x))
        return out


class TwoBranches(nn.Module):
    """Python decides by the samples which layer computes; the other one gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x) if x[:, 0].mean() > 0 else self.other(x)
        return out


class SharedSubmodule(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.second(torch.relu(self.first(x))))
        return out


class TiedWeights(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.decode(torch.relu(self.encode(x))))
        return out


class Unused(nn.Module):
    """A layer that the loss does not reach, behind the one that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.extra = nn.Linear(6, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class Embedded(nn.Module):
    """Six numbers as words of a vocabulary of five."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4, **options), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed((2 * x.abs()).long().clamp(max=4)).flatten(1))
        return out


class Counting(nn.Module):
    """A buffer of integers, which every forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layer(x)
        return out


class Averaging(nn.Module):
    """Statistics of one's own, which every forward pass puts in place of the last ones, in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        out: Tensor = self.layer(x - self.mean)
        return out


class Stateful(nn.Module):
    """A state that one batch leaves for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.state = nn.Linear(6, 3), torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        self.state = 0.5 * self.state + x.mean(0)
        out: Tensor = self.layer(x + self.state)
        return out


class Remembering(nn.Module):
    """An attribute that holds the last outputs, with their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.last = self.layer(torch.zeros(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        return self.last


class OwnFunction(torch.autograd.Function):
    """A rectifier with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out: Tensor = g * (x > 0)
        return out


class Rotating(nn.Module):
    """Six numbers turned by complex ones."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        turn, self.head = torch.ones(6, dtype=torch.complex64) * 1j, nn.Linear(6, 3)
        if frozen:
            self.register_buffer("turn", turn)
        else:
            self.turn = nn.Parameter(turn)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head((x * self.turn).imag)
        return out


class Answering(nn.Module):
    """A linear layer that answers with something else than its outputs."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.answer = nn.Linear(6, 3), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.layer(x))


@dataclass
class Output:
    """What the models of Hugging Face return: the scores beside other things."""

    logits: Tensor
    loss: Tensor | None = None


class Scaled(nn.Module):
    """Parameters without dimensions and without entries, and a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.nothing = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.zeros(0))
        self.weights = nn.ParameterList([nn.Parameter(torch.full((6, 3), 0.1 * i)) for i in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x @ self.weights[0] + x @ self.weights[1])


class Masked(nn.Linear):
    """Hides three of its outputs behind a buffer; ``counted``: which a forward pass writes into."""

    mask: torch.Tensor

    def __init__(self, hidden: float, counted: bool = False) -> None:
        super().__init__(6, 6)
        self.counted = counted
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, hidden, hidden, hidden]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.counted:
            self.mask += 0.0
        return (super().forward(x) + self.mask).softmax(-1)[:, :3]


def two_layers(*between: nn.Module) -> nn.Module:
    """Two linear layers with something between them."""
    return nn.Sequential(nn.Linear(6, 6), *between, nn.Linear(6, 3))


def hooked(**hooks: Callable[..., Any]) -> nn.Module:
    """Two layers; the first has these hooks."""
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    for name, hook in hooks.items():
        getattr(module[0], f"register_{name}_hook")(hook)
    return module


def pruned(module: nn.Module) -> nn.Module:
    """Half of the weights of the first layer are masked."""
    prune.l1_unstructured(module[0], "weight", 0.5)
    return module


def written_into(module: Applied, x: Tensor) -> Tensor:
    """Values that are written into a new tensor."""
    out = torch.zeros(len(x), 6)
    out[:] = module.hidden(x)
    return out


VECTORIZED, SERIAL = "vectorized", "serial"
# What trains, and on which engine ``auto`` trains it.
TRAINED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a linear layer": (lambda: nn.Linear(6, 3), VECTORIZED),
    "scores as logits of an output": (lambda: Answering(Output), VECTORIZED),
    "two layers": (lambda: two_layers(nn.ReLU()), VECTORIZED),
    "an LSTM": (lambda: Recurrent(nn.LSTM), SERIAL),
    "an LSTM of two layers, both ways": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), SERIAL),
    "a GRU": (lambda: Recurrent(nn.GRU), SERIAL),
    "an RNN": (lambda: Recurrent(nn.RNN), SERIAL),
    "cells of an LSTM": (Cells, SERIAL),
    "a layer used twice": (lambda: Applied(lambda m, x: m.hidden(torch.relu(m.hidden(x)))), VECTORIZED),
    "a submodule with two names": (SharedSubmodule, VECTORIZED),
    "tied weights": (TiedWeights, VECTORIZED),
    "Python decides by the samples": (TwoBranches, SERIAL),
    "a layer that the loss does not reach": (Unused, VECTORIZED),
    "Python decides by a weight": (
        lambda: Applied(lambda m, x: m.hidden(x) * (2 if m.hidden.weight.mean().item() > 0 else 1)),
        SERIAL,
    ),
    "as many numbers as there are": (
        lambda: Applied(lambda m, x: m.hidden(x) + x[x > 0].mean()),
        SERIAL,
    ),
    "numpy": (lambda: Applied(lambda m, x: m.hidden(x) * float(x.numpy().mean())), SERIAL),
    "written into a tensor": (lambda: Applied(written_into), SERIAL),
    "in place": (lambda: Applied(lambda m, x: F.relu_(m.hidden(x))), VECTORIZED),
    "in place, of the samples": (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)), SERIAL),
    "a function of one's own": (lambda: Applied(lambda m, x: OwnFunction.apply(m.hidden(x))), SERIAL),
    "a checkpoint of activations": (
        lambda: Applied(lambda m, x: checkpoint.checkpoint(m.hidden, x, use_reentrant=False)),
        SERIAL,
    ),
    "an embedding": (Embedded, VECTORIZED),
    "an embedding with padding": (lambda: Embedded(padding_idx=0), VECTORIZED),
    "an embedding scaled by frequency": (lambda: Embedded(scale_grad_by_freq=True), VECTORIZED),
    "an embedding with sparse gradients": (lambda: Embedded(sparse=True), SERIAL),
    "batch normalization": (lambda: two_layers(nn.BatchNorm1d(6)), VECTORIZED),
    "batch normalization, cumulative": (lambda: two_layers(nn.BatchNorm1d(6, momentum=None)), SERIAL),
    "batch normalization without memory": (
        lambda: two_layers(nn.BatchNorm1d(6, track_running_stats=False)),
        VECTORIZED,
    ),
    "layer normalization": (lambda: two_layers(nn.LayerNorm(6)), VECTORIZED),
    "instance normalization": (
        lambda: two_layers(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, affine=True), nn.Flatten()),
        VECTORIZED,
    ),
    "weight normalization": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 3)),
        VECTORIZED,
    ),
    "spectral normalization": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 3)),
        SERIAL,
    ),
    "a counter": (Counting, VECTORIZED),
    "statistics of one's own": (Averaging, VECTORIZED),
    "a forward hook": (lambda: hooked(forward=lambda module, inputs, out: 2 * out), VECTORIZED),
    "a backward hook": (lambda: hooked(full_backward=lambda module, given, got: None), SERIAL),
    "parameters of odd shapes": (Scaled, VECTORIZED),
    "half of it is frozen": (lambda: nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3)), VECTORIZED),
    "weight normalization of the old kind": (
        lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 3)),
        VECTORIZED,
    ),
    "outputs that it remembers": (Remembering, VECTORIZED),
    "pruned weights": (lambda: pruned(two_layers()), VECTORIZED),
    "features without a gradient": (lambda: Applied(lambda m, x: m.hidden(x).detach()), VECTORIZED),
    "a buffer of complex numbers": (lambda: Rotating(frozen=True), VECTORIZED),
    "an infinite mask": (lambda: Masked(-math.inf), VECTORIZED),
    "torch's transformer": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (3, 2)),
            nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True),
            nn.Flatten(),
            nn.Linear(6, 3),
        ),
        VECTORIZED,
    ),
}


def parallel(module: nn.Module) -> nn.Module:
    """The module, as one process of several has it."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        return nn.parallel.DistributedDataParallel(module)
    finally:
        distributed.destroy_process_group()


# What trains as the module inside it.
WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "torch.compile": torch.compile,
    "torch.compile inside": lambda module: nn.Sequential(torch.compile(module)),
    "module.compile": lambda module: (module.compile(), module)[1],
    "DataParallel": nn.DataParallel,
    "DataParallel inside": lambda module: nn.Sequential(nn.DataParallel(module)),
    "DistributedDataParallel": parallel,
    "DataParallel around torch.compile": lambda module: nn.DataParallel(torch.compile(module)),
}


def nan_weight(layer: nn.Module) -> None:
    nn.init.constant_(layer.get_parameter("weight"), float("nan"))


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(6, 3)


def with_hook_on_a_parameter() -> nn.Module:
    module = nn.Linear(6, 3)
    module.weight.register_hook(lambda g: 2 * g)
    return module


def holding(thing: Any) -> nn.Module:
    module = nn.Linear(6, 3)
    module.thing = thing
    return module


# What is refused, and what the sentence says.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 3)), r"0\.weight has no values yet: call the model"),
    "lazy statistics": (
        lambda: nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(6, 3)),
        r"0\.weight has no values yet: call the model",
    ),
    "scripted": (lambda: torch.jit.script(nn.Linear(6, 3)), "^the model is a TorchScript module.*: give the module"),
    "traced": (
        lambda: nn.Sequential(torch.jit.trace(nn.Linear(6, 3), torch.zeros(2, 6))),
        "^0 is a TorchScript module.*: give the module",
    ),
    "on the meta device": (on_meta, "weight is on the meta device and has no values: build"),
    "not finite": (lambda: nn.Linear(6, 3).apply(nan_weight), "weight is not finite before any training: look"),
    "an infinite mask that it writes": (
        lambda: Masked(-math.inf, counted=True),
        "buffer mask is not finite.*: if it is a mask .* hold -1e9",
    ),
    "complex": (lambda: Rotating(frozen=False), "turn is complex: hold its real and its imaginary part"),
    "frozen": (lambda: nn.Linear(6, 3).requires_grad_(False), "no parameter that can be trained: set requires_grad"),
    "without parameters": (nn.Flatten, "no parameter that can be trained: .* give a model with parameters"),
    "a hook on a parameter": (with_hook_on_a_parameter, "weight has a hook.*: leave the hook out"),
    "writes into a weight": (lambda: Embedded(max_norm=0.1), r"writes into its parameter embed\.weight .*: let it"),
    "a state in an attribute": (Stateful, "keeps something that all clients would share.*: keep it in a buffer"),
    "draws of Python": (
        lambda: Applied(lambda m, x: m.hidden(x) * random.random()),
        "draws elsewhere than from torch: .* draw with torch",
    ),
    "without gradients": (
        lambda: Answering(torch.detach),
        "depends on no parameter of the model: compute its outputs without",
    ),
    "a generator that cannot be copied": (lambda: holding(i for i in [1]), "cannot be copied .*: leave"),
    "outputs of another shape": (lambda: nn.Linear(6, 2), "2 outputs, the data have 3 classes: build it for 3"),
    "inputs of another shape": (lambda: nn.Linear(5, 3), r"the data have \(6,\): build it for these data"),
    "two outputs": (
        lambda: Answering(lambda out: (out, out)),
        "answers with tuple.*: wrap it in a module that returns the scores.* as logits",
    ),
    "one number": (lambda: Answering(lambda out: out.mean()), r"answers with \(\).*: end it with a layer of 3 outputs"),
    "a function that builds no module": (lambda: lambda: 3, "the model is a int: give a torch.nn.Module"),
}
