"""A module and a loss as functions of named tensors."""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.errors import UserError
from ..core.rng import torch_draws
from ..core.schema import Precision
from ..core.tensors import SIMD_WIDTH, Tensors, Tree, first_of, tree_map
from ..data.batches import Batch
from ..engines.base import Objective, StepInfo
from ..engines.dropout import CounterDropout
from ..engines.half import HalfProducts
from ..engines.norms import MaskPadding
from ..engines.rounding import rounded

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean over the batch."""


def cross_entropy(outputs: Tensor, targets: Tensor, reduction: Literal["mean", "none"] = "mean") -> Tensor:
    """Return the mean cross-entropy over the batch, the default loss, or with "none" that of every answer.

    It is written out: under vmap, F.cross_entropy goes through slow decompositions, which load sympy too.
    """
    if targets.is_floating_point():  # class probabilities
        return F.cross_entropy(outputs, targets, reduction=reduction)
    if outputs.dim() == 2 and outputs.shape[1] < SIMD_WIDTH and outputs.device.type == "cpu":
        likely = outputs.T.log_softmax(0).gather(0, targets[None]).T  # samples side by side: five times faster
    else:
        likely = outputs.log_softmax(1).gather(1, targets.unsqueeze(1))
    return -likely.mean() if reduction == "mean" else -likely.squeeze(1)


def sample_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return [B] the loss of every sample alone."""
    if loss is cross_entropy:  # the same numbers without a second vmap
        each = cross_entropy(outputs, targets, "none")
        return each.flatten(1).mean(1) if each.dim() > 1 else each
    return vmap(lambda o, y: loss(o[None], y[None]), randomness="different")(outputs, targets)


def answer(module: nn.Module, x: Tree, tensors: Tensors | None = None) -> Any:
    """Return what a module answers to samples; ``tensors``: the values that it computes with, its own unless given.

    Several inputs are arguments: those of a dictionary by their names, those of a tuple in their order. Of an output
    that has ``logits``, as those of Hugging Face models do, these are the answer.
    """
    args, named = ((), x) if isinstance(x, dict) else (x if isinstance(x, tuple) else (x,), {})
    output: Any = module(*args, **named) if tensors is None else functional_call(module, tensors, args, named)
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


class Stateless:
    """A module as a function of its tensors.

    ``functional_call`` puts the tensors into the module while it runs, so that a call in another thread needs a module
    of its own. Copies are made when they are missing, without the values, which are never used.
    """

    def __init__(self, origin: nn.Module, ready: nn.Module) -> None:
        self.origin, self.training = origin, ready.training
        self.free = deque([ready])

    def __call__(self, tensors: Tensors, x: Tree) -> Tensor:
        """What the module with these tensors answers."""
        try:
            module = self.free.pop()
        except IndexError:
            values = (*self.origin.parameters(), *self.origin.buffers())
            module = copy.deepcopy(self.origin, {id(v): v for v in values}).train(self.training)
        try:
            return cast(Tensor, answer(module, x, tensors))
        finally:
            self.free.append(module)


@dataclass(frozen=True)
class Model:
    """A module whose parameters and running statistics are arguments; the module computes, and holds its constants.

    Constants are what training never changes: frozen parameters, and buffers that no forward pass writes into. All
    clients have the same, so that they stand in the module once, and in no state, message or file of a client.
    One copy is in training mode and one in evaluation mode, so that no mode is ever switched.
    A module may bring a regularizer of its own: a function ``penalty(tensors)`` of its tensors by name.
    """

    module: nn.Module
    loss: Loss
    penalty: Callable[[Tensors], Tensor] | None = None  # of the tensors themselves, added to the loss
    source: "Model | None" = None  # the model this one was adapted from, where a method needs that too
    precision: Precision = "fp32"  # of its forward and backward pass, weights keep their type
    constant: frozenset[str] | None = None  # the names of its constants; None: its frozen parameters

    def __hash__(self) -> int:
        return hash(self.module)  # a loss of one's own, such as a dataclass, may have no hash

    def like(self, module: nn.Module, loss: Loss | None = None) -> "Model":
        """Return a model of another module with the same precision and, unless another is given, the same loss.

        Its constants are its frozen parameters and those buffers that are constants here. They are named now: a method
        may freeze others later, in a form that trains a part of what all share.
        """
        buffers = self.constants.keys() & {k for k, _ in module.named_buffers()}
        constant = frozen_parameters(module) | buffers
        return Model(module, loss or self.loss, precision=self.precision, constant=constant)

    @cached_property
    def training(self) -> nn.Module:
        """The module in training mode."""
        return self._copy().train()

    @cached_property
    def evaluation(self) -> nn.Module:
        """The module in evaluation mode."""
        return self._copy().eval()

    def _copy(self) -> nn.Module:
        """Return a copy of the module on the same constants."""
        return copy.deepcopy(self.module, {id(v): v for k, v in _named(self.module) if k in self.constants})

    @cached_property
    def constants(self) -> Tensors:
        """The values that training never changes, in the memory of the module."""
        names = frozen_parameters(self.module) if self.constant is None else self.constant
        return {k: v.detach() for k, v in _named(self.module) if k in names}

    def with_constants(self, values: Tensors) -> "Model":
        """Return the model with these constants and no others; ``values``: of tensors that the module has."""
        module = copy.deepcopy(self.module)
        own = {k: v for k, v in _named(module) if k in values}
        with torch.no_grad():
            for k, v in own.items():
                v.copy_(values[k])
        source = self.source and self.source.with_constants(values)
        return replace(self, module=module, source=source, constant=frozenset(own))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that are trained."""
        return tuple(k for k, p in self.module.named_parameters() if p.requires_grad and k not in self.constants)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """The names of the tensors that are not trained and no constants: running statistics."""
        return tuple(k for k in self.start if k not in self.parameters)

    @cached_property
    def running(self) -> tuple[str, ...]:
        """The names of the running statistics, which a forward pass in training mode updates."""
        return tuple(k for k, _ in self.module.named_buffers() if k not in self.constants)

    @cached_property
    def start(self) -> Tensors:
        """The values that a client begins with, channels first: engines choose other layouts. Constants are no part."""
        given, own = ((k, v) for k, v in _named(self.module) if k not in self.constants), torch.contiguous_format
        return {k: v.detach().clone(memory_format=own) for k, v in given}

    @cached_property
    def objective(self) -> Objective:
        """The training loss of a batch; where the batch has a key of dropout masks, they are those of the key."""
        return self._objective(Stateless(self.module, self.training), keyed=True)

    @cached_property
    def eval_objective(self) -> Objective:
        """The loss of a batch in evaluation mode: no dropout, running statistics as they are."""
        return self._objective(self._evaluate, keyed=False)

    @cached_property
    def penalties(self) -> tuple[Callable[[Tensors], Tensor], ...]:
        """The terms that are added to the loss: the method's and the module's own, unless that is no function."""
        return tuple(p for p in (self.penalty, getattr(self.module, "penalty", None)) if callable(p))

    def _objective(self, forward: Callable[[Tensors, Tree], Tensor], keyed: bool) -> Objective:
        # A forward pass is given the buffers among the constants, too, because it would write into others unnoticed.
        fixed = {k: self.constants[k] for k, _ in self.module.named_buffers() if k in self.constants}
        versions = {k: v._version for k, v in fixed.items()}

        def value(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensor, StepInfo]:
            # A forward pass writes into running statistics, or puts others in their place in ``tensors``.
            tensors = x | frozen | {k: frozen[k].clone() for k in self.running} | fixed
            with self._modes(batch.y.device, batch.mask):
                dropout = CounterDropout(batch.dropout) if keyed and batch.dropout is not None else nullcontext()
                with dropout:
                    outputs = forward(tensors, batch.x)
                if fixed:
                    check_unwritten(fixed, versions, tensors)
                if batch.mask is None:
                    loss = self.loss(outputs, batch.y)
                else:  # padding is left out of the mean
                    each = sample_losses(self.loss, outputs, batch.y)
                    weight = batch.mask.to(each)
                    loss = (each * weight).sum() / weight.sum()
            for penalty in self.penalties:
                loss = loss + penalty(x | frozen | self.constants)
            return loss, StepInfo(loss, {k: tensors[k].detach() for k in self.running})

        return value

    def outputs(self, tensors: Tensors, x: Tree, mask: Tensor | None = None) -> Tensor:
        """Return the outputs of the model with these tensors in evaluation mode, which leaves all of them as they are.

        ``mask``: as a batch has it.
        """
        with self._modes(next(iter(tensors.values())).device, mask):
            return self._evaluate(tensors | {k: tensors[k].clone() for k in self.running}, x)

    @contextmanager
    def _modes(self, device: torch.device, mask: Tensor | None) -> Iterator[None]:
        """Compute meanwhile as ``precision`` says, and without padding in the statistics of a batch.

        For bf16, products are in half precision, sums and weights in single.
        """
        half = self.precision == "bf16"
        with ExitStack() as modes:
            if half:
                modes.enter_context(torch.autocast(device.type, torch.bfloat16, cache_enabled=False))
                modes.enter_context(HalfProducts())
            if (half or mask is not None) and self._normalizes_batches:
                modes.enter_context(MaskPadding(mask))
            yield

    @cached_property
    def attends(self) -> bool:
        """Whether it has layers of attention, for which torch has a kernel of its own in evaluation."""
        return any(isinstance(m, nn.MultiheadAttention) for m in self.module.modules())

    @cached_property
    def _normalizes_batches(self) -> bool:
        return any(isinstance(m, _BatchNorm) for m in self.module.modules())

    @cached_property
    def _evaluate(self) -> "Stateless":
        return Stateless(self.module, self.evaluation)

    def is_batch_independent(self, x: Tree) -> bool:
        """Try once whether the answer to a sample is independent of the other samples, in evaluation mode."""
        if "alone" not in self._found:
            with torch.no_grad(), torch_draws(device=first_of(x).device):
                others = tree_map(lambda v: v[:1].repeat_interleave(len(v), 0), x)  # before a module may write into x
                company = self.outputs(self.start, x), self.outputs(self.start, others)
            self._found["alone"] = torch.allclose(company[0][:1], company[1][:1], rtol=1e-4, atol=1e-5)
        return self._found["alone"]

    @cached_property
    def _found(self) -> dict[str, bool]:
        return {}

    def to_module(self, tensors: Tensors) -> nn.Module:
        """Return a new module that holds these values, on their device."""
        module = copy.deepcopy(self.module).to(next(iter(tensors.values())).device)
        with torch.no_grad():
            for k, v in _named(module):
                if k not in self.constants:
                    v.copy_(tensors[k])
        return module.eval()


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and the buffers of a module, each once and by its first name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def frozen_parameters(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that are not to be trained.

    >>> sorted(frozen_parameters(nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))))
    ['0.bias', '0.weight']
    """
    return frozenset(k for k, p in module.named_parameters() if not p.requires_grad)


def check_unwritten(fixed: Tensors, versions: Mapping[str, int], after: Tensors) -> None:
    """Refuse a forward pass that writes into a buffer which all clients share, or puts another in its place."""
    for name, v in fixed.items():
        if after[name] is not v or v._version != versions[name]:
            raise UserError(
                f"the buffer {name} changes in training, and no forward pass on the first samples has changed it, so "
                "that it was taken for a constant of all clients: write into it in every pass in training mode"
            )


def products(precision: str) -> AbstractContextManager[None]:
    """Let a GPU round the factors of single-precision products to 10 bits meanwhile, for ``tf32`` only."""
    switchable: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    return rounded(precision == "tf32") if switchable else nullcontext()
