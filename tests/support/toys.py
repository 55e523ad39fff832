"""Small problems with known answers, and small models of every kind."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.data import Federation
from coterie.data.batches import Batch
from coterie.engines import Engine, Serial
from coterie.engines.capture import Body, PlayOver, Wanted, flat
from coterie.engines.pieces import SIZE, Program, cut, in_turn
from coterie.models.model import Model, cross_entropy
from coterie.models.resnet import ResNet
from coterie.models.transformer import TransformerLayer
from coterie.training.experiment import Experiment, RunState
from coterie.training.select_engine import Attempt, Candidate, Work, take_first_steps

# The golden instance: F_i(u, v) = a_i/2 (u - b_i)^2 + c_i/2 (v - d_i)^2 with four clients.
A, B = [1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0, 1.0]
C, D = [2.0, 1.0, 1.0, 2.0], [0.0, 1.0, -1.0, 2.0]
U0, V0 = [1.0, 0.0, 0.5, -1.0], [1.0, 1.0, 1.0, 1.0]
CPU = torch.device("cpu")
FEDAVG = ct.algorithms.fedavg(epochs=1, participation=1.0)
PLAIN: dict[str, Any] = {
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip": None,
    "lr_decay": 1.0,
    "batch_size": None,
}


class Quadratic(nn.Module):
    """A client's sample is (a, b, c, d); the output is its loss."""

    def __init__(self, u: float = 0.5, v: float = 1.0) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.tensor(u, dtype=torch.float64))
        self.v = nn.Parameter(torch.tensor(v, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = x.unbind(1)
        return a / 2 * (self.u - b) ** 2 + c / 2 * (self.v - d) ** 2


class Coupled(Quadratic):
    """F(u, v) = (u + v - b)^2 / 2: tells alternating updates from joint ones."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.u + self.v - x[:, 1]) ** 2 / 2


def mean_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a model that puts out its losses."""
    return outputs.mean()


def golden(copies: Sequence[int] = (1, 1, 1, 1)) -> Federation:
    """The golden instance as data; ``copies``: how many equal samples each client holds."""
    rows = [
        torch.tensor([row] * k, dtype=torch.float64)
        for row, k in zip(zip(A, B, C, D, strict=True), copies, strict=True)
    ]
    pairs = [(x, torch.zeros(len(x), dtype=torch.float64)) for x in rows]
    return ct.data.from_tensors(train=pairs, test=pairs)


def experiment(
    module: nn.Module,
    federation: Federation,
    algorithm: Algorithm,
    engine: Engine | None = None,
    seed: int = 0,
    drop_messages: float = 0.0,
    rounds: int = 10,
) -> Experiment:
    """An experiment on the serial engine unless another one is given; float targets bring their own loss."""
    loss = mean_output if federation.classes is None else cross_entropy
    return Experiment.of(
        Model(module, loss), federation, algorithm, engine or Serial(), seed, rounds, drop_messages=drop_messages
    )


def play(e: Experiment, rounds: int, start: RunState | None = None) -> RunState:
    """Some rounds without evaluation."""
    now = start or e.start()
    for t in range(rounds):
        now, _ = e.run_round(now, t, evaluate=False)
    return now


def models(e: Experiment, rounds: int) -> dict[str, Tensor]:
    """Everybody's model after some rounds."""
    return e.program.models(play(e, rounds).state)


def scattered(e: Experiment) -> RunState:
    """The golden start, where every client begins at its own u."""
    now = e.start()
    x = {**now.state.x, "u": torch.tensor(U0, dtype=torch.float64)}
    return now._replace(state=now.state._replace(x=x))


class Tokens(nn.Module):
    """Embeddings and an attention layer over eight tokens."""

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        width = round(8 * rate)
        self.embed = nn.Embedding(12, width)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = self.norm(h + self.attend(h, h, h, need_weights=False)[0])
        return self.head(h.mean(1))


class Dropping(nn.Module):
    """Drops tokens, attention, and its own weights; ours, torch's, or torch's with the tokens first."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.embed, self.head = kind, nn.Embedding(12, 8), nn.Linear(8, 3)
        first = kind == "batch first"
        layer = TransformerLayer(8, 2, 4, 12, 0.3) if kind == "ours" else None
        self.layer = layer or nn.TransformerEncoderLayer(8, 2, 12, 0.3, batch_first=first)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = self.layer(h.transpose(0, 1)).transpose(0, 1) if self.kind == "tokens first" else self.layer(h)
        weight = nn.functional.dropout(self.head.weight, 0.2, self.training)
        return nn.functional.linear(h.mean(1), weight, self.head.bias)


def dropping(kind: str) -> nn.Module:
    """A small transformer with dropout and fixed values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Dropping(kind).double()


def _mlp(rate: float = 1.0) -> nn.Module:
    width = round(8 * rate)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 3))


def _convolutional(norm: Callable[[int], nn.Module], rate: float = 1.0) -> nn.Module:
    channels, width = round(4 * rate), round(8 * rate)
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1, bias=False),
        norm(channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * channels, width),
        nn.ReLU(),
        nn.Linear(width, 3),
    )


def _residual(norm: Callable[[int], nn.Module]) -> nn.Module:
    return ResNet(1, 3, (4, 8), 1, norm)


ZOO: dict[str, Callable[..., nn.Module]] = {
    "mlp": _mlp,
    "groupnorm": partial(_convolutional, partial(nn.GroupNorm, 2)),
    "batchnorm": partial(_convolutional, nn.BatchNorm2d),
    "tokens": Tokens,
}
STAGED = {"residual": partial(_residual, partial(nn.GroupNorm, 1))}  # for methods that know stages


def net(kind: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A small model of that kind with fixed values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = (ZOO | STAGED)[kind]().to(dtype)
    if kind != "residual":
        module.at_width = ZOO[kind]  # how it is narrowed
    return module


def ragged(kind: str, dtype: torch.dtype = torch.float64, sizes: Sequence[int] = (5, 4, 7, 2, 6)) -> Federation:
    """Clients of unequal size, one of them smaller than a batch; images, or tokens for a model of tokens."""
    g = torch.Generator().manual_seed(3)

    def draw(n: int, shift: int) -> tuple[Tensor, Tensor]:
        y = (torch.randint(0, 2, (n,), generator=g) + shift) % 3
        if kind == "tokens":
            return (torch.randint(0, 4, (n, 8), generator=g) + 4 * y[:, None]).clamp(max=11), y
        return torch.randn(n, 1, 4, 4, generator=g, dtype=dtype) + y[:, None, None, None], y

    train = [draw(n, i) for i, n in enumerate(sizes)]
    return ct.data.from_tensors(train=train, test=[draw(5 + i, i) for i in range(len(sizes))], classes=3)


def communication(parameters: int | Sequence[int], participants: int, rounds: int) -> float:
    """How many parameters travel, in 1e9 and one direction; several counts are held by equally many participants."""
    return float(np.mean(parameters)) * participants * rounds / 1e9


def computation(flops: int | Sequence[int], participants: int, rounds: int) -> float:
    """Forward FLOPs, in 1e12, if every participant saw one sample in each round: the unit of FedLMT's tables."""
    return float(np.mean(flops)) * participants * rounds / 1e12


def candidate(
    module: nn.Module, x: Tensor, work: Work, device: torch.device = CPU, attempt: Attempt | None = None
) -> Candidate:
    """A model that an engine is wanted for, with samples of one class; it is tried with two clients of FedAvg."""
    y = torch.zeros(len(x), dtype=torch.int64)
    fed = ct.data.from_tensors(train=[(x, y)] * 2, test=[(x, y)] * 2, classes=2)
    model, steps = Model(module, cross_entropy), partial(take_first_steps, experiment(module, fed, FEDAVG))
    return Candidate(model, Batch(x, y, None), y, work, device, attempt or steps)


def in_place(wanted: Sequence[Wanted], begun: Callable[[int], object]) -> list[PlayOver]:
    """Run programs as they are."""

    def play(body: Body, memory: Sequence[Tensor]) -> None:
        for old, new in zip(memory, [v.clone() for v in body(*memory)], strict=False):
            old.copy_(new)

    def built(number: int, body: Body) -> PlayOver:
        begun(number)
        return lambda memory: partial(play, body, memory)

    return [built(number, body) for number, (body, _) in enumerate(wanted, 1)]


def traced(body: Body, tensors: Sequence[Tensor], size: int = SIZE) -> Program:
    """Trace a program, which then runs as it is, in pieces of about ``size`` operations."""
    with torch.no_grad():
        body(*tensors)
        graph = flat(body, tensors)
    pieces = cut(graph, size)
    return in_turn(graph, pieces, [lambda tensors, run=piece.module: run(*tensors) for piece in pieces])
