"""A module and a loss, seen as functions of named tensors."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from .batches import Batch
from .engines.base import Objective, Seen
from .tensors import Tensors

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean over the batch."""

PRECISIONS = ("fp32", "tf32", "bf16")
"""All of single precision; its products rounded to 10 bits on a GPU; products in bfloat16."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The default loss: the mean cross-entropy over the batch."""
    if targets.is_floating_point():  # class probabilities
        return F.cross_entropy(outputs, targets)
    # The same written out: under vmap, F.cross_entropy goes through slow decompositions.
    return -outputs.log_softmax(1).gather(1, targets.unsqueeze(1)).mean()


def batch_loss(loss: Loss, outputs: Tensor, batch: Batch) -> Tensor:
    """The mean over the samples of a batch, padding left out."""
    if batch.mask is None:
        return loss(outputs, batch.y)
    each = sample_losses(loss, outputs, batch.y)
    weight = batch.mask.to(each)
    return (each * weight).sum() / weight.sum()


def sample_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """[B] the loss of every sample alone."""
    if loss is cross_entropy:  # the same numbers without a second vmap
        each = F.cross_entropy(outputs, targets, reduction="none")
        return each.flatten(1).mean(1) if each.dim() > 1 else each
    return vmap(lambda o, y: loss(o[None], y[None]), randomness="different")(outputs, targets)


@dataclass(frozen=True)
class Model:
    """A module taken apart: its parameters and buffers are arguments, the module itself only computes.

    Two copies are kept, one in training and one in evaluation mode, so that no mode is ever switched back and forth.
    """

    module: nn.Module
    loss: Loss
    penalty: Callable[[Tensors], Tensor] | None = None  # of the tensors themselves, added to the loss
    source: "Model | None" = None  # the model this one was adapted from, where a method needs that too
    precision: str = "fp32"  # of its forward and backward pass, one of PRECISIONS; weights keep their type

    def like(self, module: nn.Module, loss: Loss | None = None) -> "Model":
        """Another module in the same arithmetic, with the same loss unless another is given, and without a penalty."""
        return Model(module, loss or self.loss, precision=self.precision)

    @cached_property
    def training(self) -> nn.Module:
        """The module in training mode."""
        return copy.deepcopy(self.module).train()

    @cached_property
    def evaluation(self) -> nn.Module:
        """The module in evaluation mode."""
        return copy.deepcopy(self.module).eval()

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of what is trained."""
        return tuple(k for k, p in self.module.named_parameters() if p.requires_grad)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """The names of what is carried along untrained: running statistics, frozen parameters."""
        return tuple(k for k in self.start if k not in self.parameters)

    @cached_property
    def running(self) -> tuple[str, ...]:
        """The names of running statistics, which a forward pass in training mode renews."""
        return tuple(k for k, _ in self.module.named_buffers())

    @cached_property
    def start(self) -> Tensors:
        """The values the module came with."""
        module = self.module
        return {k: v.detach().clone() for k, v in (*module.named_parameters(), *module.named_buffers())}

    @cached_property
    def objective(self) -> Objective:
        """The training loss of a batch."""
        return self._objective(self.training)

    @cached_property
    def still(self) -> Objective:
        """The loss of a batch in evaluation mode: no dropout, running statistics as they are."""
        return self._objective(self.evaluation)

    def _objective(self, module: nn.Module) -> Objective:
        def value(x: Tensors, held: Tensors, batch: Batch) -> tuple[Tensor, Seen]:
            fresh = {k: held[k].clone() for k in self.running}  # BatchNorm writes into its buffers
            with self.arithmetic(batch.x.device):
                outputs = functional_call(module, x | held | fresh, (batch.x,))
                loss = batch_loss(self.loss, outputs, batch)
            if self.penalty is not None:
                loss = loss + self.penalty(x | held)
            return loss, Seen(loss, fresh)

        return value

    def outputs(self, tensors: Tensors, x: Tensor) -> Tensor:
        """What the model with these tensors answers, in evaluation mode."""
        with self.arithmetic(x.device):
            return cast(Tensor, functional_call(self.evaluation, tensors, (x,)))

    def arithmetic(self, device: torch.device) -> AbstractContextManager[object]:
        """bf16: products in half precision, sums and weights in single."""
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    def rebuilt(self, tensors: Tensors) -> nn.Module:
        """A module of its own that holds these values, on the device they are on."""
        module = copy.deepcopy(self.module).to(next(iter(tensors.values())).device)
        with torch.no_grad():
            for k, v in (*module.named_parameters(), *module.named_buffers()):
                v.copy_(tensors[k])
        return module.eval()


@contextmanager
def products(precision: str) -> Iterator[None]:
    """How a GPU multiplies single-precision numbers meanwhile: rounded to 10 bits for ``tf32`` only."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def draws_numbers(model: Model, x: Tensor) -> bool:
    """Whether a forward pass in training mode draws random numbers, as dropout does."""
    state = torch.cuda.get_rng_state if x.is_cuda else torch.get_rng_state
    with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        before = state()
        functional_call(model.training, {k: v.clone() for k, v in model.start.items()}, (x,))
        return not torch.equal(before, state())


def couples_samples(model: Model, x: Tensor, y: Tensor) -> bool:
    """Whether a sample's loss depends on which other samples share its batch (as under BatchNorm).

    Found by trying: the first sample's output beside two different companies, and the batch loss against the mean of
    the single ones. Where it does, batches must never be padded.
    """
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        warnings.simplefilter("ignore")  # a loss may complain of a single sample
        answers = []
        for company in (x, x[:1].expand_as(x)):
            torch.manual_seed(0)  # equal dropout in both
            buffers = {k: v.clone() for k, v in model.start.items()}
            answers.append(functional_call(model.training, buffers, (company,)))
        alone = sample_losses(model.loss, answers[0], y).mean()
        together = model.loss(answers[0], y)
    steady = torch.allclose(answers[0][:1], answers[1][:1], rtol=1e-4, atol=1e-6)
    return not (steady and torch.allclose(alone, together, rtol=1e-4, atol=1e-6))
