"""Networks of any width made of the same filters (FLANC).

A 3 x 3 convolution of c_in channels is a bank of m filters of n channels each, applied to every group of n input
channels, and a 1 x 1 convolution that mixes the results:

    W[o, g n + c] = sum_b A[o, g m + b] B[b, c]          B: the bank, [m, n, 3, 3];   A: the coefficients

m and n follow the widths of the full network, so that networks of all widths have banks of the same shapes, which they
share. Coefficients, normalizations, shortcuts, stem and head belong to one width.

Reference: Mei et al. 2022, "Resource-Adaptive Federated Learning with All-In-One Neural Composition".
Differs from the paper in: input channels that n does not divide are filled up with zeros; every bank is drawn by itself
where the released code cuts the two banks of a block out of one orthogonal tensor.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import UserError
from ..core.tensors import Tensors
from ..models.resnet import ResidualBlock
from .lowrank import replace_layers
from .staged import check_stages, linear_like, norm_like, same_for_all

LARGEST_SHARE = 16  # the published ones are below 2


class BasisConv2d(nn.Module):
    """A 3 x 3 convolution of stride ``stride`` whose filters are mixtures of those of a bank [m, n, 3, 3]."""

    def __init__(self, before: int, channels: int, stride: int, bank: Tensor) -> None:
        super().__init__()
        self.stride, self.size, (m, n) = stride, list(bank.shape), bank.shape[:2]
        self.groups = -(-before // n)
        self.bank = nn.Parameter(bank)
        self.coefficients = nn.Conv2d(self.groups * m, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, h, w] -> [B, channels, h / stride, w / stride]."""
        m, n = self.bank.shape[:2]
        groups = F.pad(x, (0, 0, 0, 0, 0, self.groups * n - x.shape[1])).reshape(-1, n, *x.shape[2:])
        # Groups are samples here: one convolution for all of them, which also lifts over clients.
        h = F.conv2d(groups, self.bank, stride=self.stride, padding=1)
        return self.coefficients(h.reshape(-1, self.groups * m, *h.shape[2:]))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return f"bank={self.size}, groups={self.groups}, stride={self.stride}"


def composed(module: nn.Module, fraction: float, n_basis: float = 0.25, basis_fraction: float = 0.125) -> nn.Module:
    """Return a residual network of another width whose 3 x 3 convolutions are composed of banks.

    A block of c channels gets round(fraction * c); its two banks have m = round(n_basis * c) filters of
    n = round(basis_fraction * c_in) channels, where c_in channels enter the block in ``module``. The stem stays as it
    is. New layers have initial values of their own, always the same ones: banks of orthonormal rows, equal in all
    widths.

    ``module``: a residual network of ``models``; ``fraction``: above 0, also above 1.

    >>> from coterie import models
    >>> net = composed(models.build("resnet8-gn:groups=2", classes=10, input_shape=(1, 8, 8)), 1.5)
    >>> net.stages[1][0].conv2.bank.shape, net.linear.in_features
    (torch.Size([8, 2, 3, 3]), 96)
    """
    for name, value in (("fraction", fraction), ("n_basis", n_basis), ("basis_fraction", basis_fraction)):
        if not 0 < value <= LARGEST_SHARE:
            raise UserError(
                f"{name}={value} must be above 0 and at most {LARGEST_SHARE}: it is a share of the full widths"
            )
    new: dict[int, nn.Module] = {}
    blocks = list(_blocks(module))
    before = blocks[0].conv1.in_channels
    with same_for_all("composition"):
        for number, block in enumerate(blocks):
            width = _share(fraction, block.conv1.out_channels)
            shape = _share(n_basis, block.conv1.out_channels), _share(basis_fraction, block.conv1.in_channels), 3, 3
            banks = [_bank(shape, f"bank/{number}/{which}") for which in (1, 2)]
            new |= _block(block, before, width, banks)
            before = width
        new[id(module.linear)] = linear_like(module, before)
    for layer in new.values():
        layer.to(module.get_parameter("linear.weight")).train(module.training)
    return replace_layers(module, new)


def bank_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the banks, which networks of all widths share.

    >>> from coterie import models
    >>> bank_names(composed(models.build("resnet8-bn", classes=10, input_shape=(1, 8, 8)), 0.5))[:2]
    ('stages.0.0.conv1.bank', 'stages.0.0.conv2.bank')
    """
    layers = {f"{name}.bank" for name, layer in module.named_modules() if isinstance(layer, BasisConv2d)}
    return tuple(name for name, _ in module.named_parameters() if name in layers)


def join_networks(widest: nn.Module, others: Mapping[str, nn.Module]) -> nn.Module:
    """Put the own layers of other composed networks into the widest one, which answers as before.

    Those have the names ``others.KEY.name``. The banks are there once, with the names they have in the widest.

    >>> from coterie import models
    >>> net = models.build("resnet8-gn:groups=2", classes=10, input_shape=(1, 8, 8))
    >>> both = join_networks(composed(net, 1.0), {"0_5": composed(net, 0.5)})
    >>> len(both.others["0_5"].state_dict()) + len(bank_names(both)) == len(composed(net, 0.5).state_dict())
    True
    """
    for name in bank_names(widest):
        layer, _, own = name.rpartition(".")
        for other in others.values():
            delattr(other.get_submodule(layer), own)
    widest.others = nn.ModuleDict(dict(others))
    return widest


def orthogonality(names: Collection[str]) -> Callable[[Tensors], Tensor]:
    """Return the regularizer: the sum over banks of mean((B B^T - I)^2), B a bank as m rows; 0 for orthonormal rows.

    ``names``: from ``bank_names``.

    >>> bank = torch.zeros(2, 1, 3, 3)
    >>> bank[0, 0, 0, 0] = bank[1, 0, 1, 1] = 1
    >>> float(orthogonality(["0.bank"])({"0.bank": bank})), float(orthogonality(["0.bank"])({"0.bank": 2 * bank}))
    (0.0, 4.5)
    """

    def value(tensors: Tensors) -> Tensor:
        total = next(iter(tensors.values())).new_zeros(())
        for name in names:
            B = tensors[name].flatten(1)
            total = total + (B @ B.T - torch.eye(len(B), dtype=B.dtype, device=B.device)).square().mean()
        return total

    return value


def _blocks(module: nn.Module) -> Iterator[ResidualBlock]:
    check_stages(module)
    for stage in module.get_submodule("stages").children():
        for block in stage.children():
            if not isinstance(block, ResidualBlock):
                raise UserError(
                    f"a {type(block).__name__} cannot be composed of a basis: build the stages of "
                    "coterie.models.resnet.ResidualBlock, or take a residual network by name"
                )
            yield block


def _share(fraction: float, width: int) -> int:
    return max(1, round(fraction * width))


def _bank(shape: tuple[int, ...], purpose: str) -> Tensor:
    """Draw rows that are orthonormal, if there are no more of them than columns; the same ones for every width."""
    with same_for_all(purpose):
        return nn.init.orthogonal_(torch.empty(shape))


def _block(block: ResidualBlock, before: int, width: int, banks: list[Tensor]) -> dict[int, nn.Module]:
    """Return the layers that replace those of a block, by the id of the old ones."""
    stride = block.conv1.stride[0]
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or before != width:
        shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), norm_like(block.norm1, width))
    return {
        id(block.conv1): BasisConv2d(before, width, stride, banks[0]),
        id(block.norm1): norm_like(block.norm1, width),
        id(block.conv2): BasisConv2d(width, width, 1, banks[1]),
        id(block.norm2): norm_like(block.norm2, width),
        id(block.shortcut): shortcut,
    }
