"""The cost of a model, counted in one forward pass."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from ..core.rng import torch_draws
from ..core.tensors import Tree, first_of
from ..core.tensors import count as count_of
from ..engines.watch import Watch
from .model import answer

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
_POOLS = (nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd)


class Cost(NamedTuple):
    """The cost of one sample's forward pass."""

    macs: int  # multiply-adds of convolutions, linear layers and attention
    flops: int  # those, plus 5 for every normalized number and 1 for every averaged one
    activations: int  # numbers in the outputs of the layers
    convolutional: bool


class _Products(Watch):
    """A counter of what ``FlopCounterMode`` counts, by the same formulas."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None:  # the operation may be made of others that have one
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        return result


def cost(module: nn.Module, samples: Tree) -> Cost:
    """Count a forward pass of ``samples`` ([n, ...]) through ``module``; return the cost of one of them.

    Some modules need two samples: a single number has no batch statistics. The convention is that of Table 1 of
    FedLMT: multiply-adds, plus 5 for every element of a normalization, plus 1 for every one of an average pooling.

    >>> cost(nn.Linear(784, 10), torch.zeros(1, 784)).macs
    7840
    """
    extra, activations, products = 0, 0, _Products()

    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal extra, activations
        activations += output.numel() if isinstance(output, Tensor) else 0
        if isinstance(layer, _NORMS):
            extra += 5 * inputs[0].numel()
        elif isinstance(layer, _POOLS):
            extra += inputs[0].numel()

    leaves = [m for m in module.modules() if not list(m.children())]
    hooks = [m.register_forward_hook(count) for m in leaves]
    was_training = module.training
    try:
        with torch.no_grad(), torch_draws(device=first_of(samples).device), products:
            answer(module.eval(), samples)
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    macs = products.flops // 2
    convolutional = any(isinstance(m, nn.modules.conv._ConvNd) for m in leaves)
    n = count_of(samples)
    return Cost(macs // n, (macs + extra) // n, activations // n, convolutional)
