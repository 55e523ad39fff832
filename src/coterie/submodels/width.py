"""Sub-models that are narrower: fewer channels of every hidden layer, really cut out.

The structure is read off two models of the same kind, the full one and a narrower one. A dimension whose size is the
same in both is never cut: the input of the first layer, the output of the last. All others are cut by one rule:

    dimensions of equal full width C share one set of channels, whatever layer they belong to

so that what a residual network adds stays aligned, and the input of a layer follows the output of the one before. A
linear layer behind a flattened image has C m inputs, m positions for every channel; it is cut by whole channels. The
projections of an attention are made of equal pieces, one per head, and all are cut alike: every head is narrower, none
is lost. ``layered`` makes a cut with one set of channels per layer instead.

Reference: Diao et al. 2021 (HeteroFL: the first channels), Alam et al. 2022 (FedRolex: a rolling window), Caldas et al.
2018 (federated dropout: a random subset).
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import models
from ..core.arguments import checked
from ..core.errors import UserError
from ..core.tensors import Tensors
from ..models.parts import WidthRate, origin_of

Shapes = Mapping[str, torch.Size]
Key = int | str
"""The key of a set of channels: the full width of all dimensions that share it, or the layer it belongs to."""
Indices = Mapping[Key, Tensor]
"""The channels that are kept, by their key."""
Pieces = Mapping[str, Mapping[int, tuple[int, int]]]
"""Tensor -> dimension -> (projections, heads): the dimension consists of that many equal pieces, heads side by side."""


def prefix(C: int, k: int) -> Tensor:
    """Choose the first k of C channels.

    >>> prefix(4, 2)
    tensor([0, 1])
    """
    return torch.arange(k)


def window(C: int, k: int, t: int) -> Tensor:
    """Choose k of C channels from t on, around the end; -t rolls the other way.

    >>> window(4, 2, t=3), window(4, 2, t=-3)
    (tensor([3, 0]), tensor([1, 2]))
    """
    return (t + torch.arange(k)) % C


def permuted(C: int, k: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw k of C channels, in the order of the draw."""
    return torch.randperm(C, generator=generator)[:k]


def random(C: int, k: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw k of C channels, in ascending order."""
    return permuted(C, k, generator).sort().values


class Dimension(NamedTuple):
    """A dimension that is cut."""

    dim: int
    keys: tuple[Key, ...]  # which channels it follows, one key per piece
    block: int  # entries of one channel there
    span: int  # entries of a piece

    def entries(self, indices: Indices, device: torch.device) -> Tensor:
        """Return the entries of the dimension that are kept."""
        within = torch.arange(self.block, device=device)
        channels = {key: indices[key].to(device) for key in self.keys}
        if self.block > 1:
            channels = {key: (c[:, None] * self.block + within).flatten() for key, c in channels.items()}
        pieces = [channels[key] + piece * self.span if piece else channels[key] for piece, key in enumerate(self.keys)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@dataclass(frozen=True)
class Cut:
    """The dimensions of a model that are cut, and their widths.

    >>> full = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> small = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    >>> cut = Cut.between(full, small)
    >>> cut.widths
    {4: 2}
    >>> x = cut.extract({"0.bias": torch.tensor([1., 2., 3., 4.])}, cut.indices(prefix))
    >>> x
    {'0.bias': tensor([1., 2.])}
    >>> cut.embed(x, cut.indices(prefix))
    ({'0.bias': tensor([1., 2., 0., 0.])}, {'0.bias': tensor([1., 1., 0., 0.])})
    """

    shapes: Shapes  # of the full model
    widths: Mapping[Key, int]  # of a set of channels -> how many are kept
    places: Mapping[str, tuple[Dimension, ...]]
    full: Mapping[Key, int]  # of a set of channels -> how many there are

    @classmethod
    def between(cls, full: nn.Module, small: nn.Module) -> "Cut":
        """Return the cut that makes a model of the size of ``small`` out of ``full``."""
        whole, part = matching_shapes(full, small)
        pieces = pieces_of(full)
        widths = _widths(whole, part, pieces)
        return cls(whole, widths, _places(whole, part, widths, pieces), {C: int(C) for C in widths})

    def indices(self, choose: Callable[[int, int], Tensor]) -> dict[Key, Tensor]:
        """Choose channels for every key: ``choose(C, k)`` is k of C, as ``prefix`` or ``partial(window, t=3)``."""
        return {key: choose(self.full[key], k) for key, k in self.widths.items()}

    def extract(self, full: Tensors, indices: Indices) -> Tensors:
        """Cut the tensors of the sub-model out of the full ones."""
        small: Tensors = {}
        for name, value in full.items():
            for place in self.places[name]:
                value = value.index_select(place.dim, place.entries(indices, value.device))
            small[name] = value
        return small

    def embed(self, small: Tensors, indices: Indices) -> tuple[Tensors, Tensors]:
        """Return (the tensors at their places in the full model, zero elsewhere; the mass: 1 at these places or 0)."""
        values = {k: self._spread(k, v, indices) for k, v in small.items()}
        return values, {k: self._spread(k, torch.ones_like(v), indices) for k, v in small.items()}

    def _spread(self, name: str, value: Tensor, indices: Indices) -> Tensor:
        for place in self.places[name]:
            size = list(value.shape)
            size[place.dim] = self.shapes[name][place.dim]
            value = value.new_zeros(size).index_copy(place.dim, place.entries(indices, value.device), value)
        return value


@checked("function")
def narrow(module: nn.Module, rate: WidthRate) -> nn.Module:
    """Return a model with ceil(rate * C) channels where ``module`` has C; its values do not matter.

    Models by name are built again; a module of your own brings a function ``at_width(rate)`` that does so.

    >>> narrow(models.build("mlp", classes=10, input_shape=(64,)), 0.25)[3]
    Linear(in_features=16, out_features=16, bias=True)
    """
    origin = origin_of(module)
    own: Callable[[float], nn.Module] | None = getattr(module, "at_width", None)
    if rate == 1:
        return copy.deepcopy(module)
    if "name" not in origin and own is None:
        raise UserError(
            "this module cannot be narrowed: take a model by name, or give it a function at_width(rate) that builds "
            "the narrower one"
        )
    small = own(rate) if own else models.rebuild({**origin, "rate": rate * origin.get("rate", 1.0)})
    return small.to(next(module.parameters())).train(module.training)


def matching_shapes(full: nn.Module, small: nn.Module) -> tuple[Shapes, Shapes]:
    """Return the shapes of two models that differ in nothing but widths; refuse others."""
    whole, part = _shapes(full), _shapes(small)
    if whole.keys() != part.keys() or any(len(whole[k]) != len(part[k]) for k in whole):
        raise UserError("the smaller model has other tensors: build both alike, with other widths only")
    if pieces_of(full) != pieces_of(small):
        raise UserError("the smaller model has another number of heads: keep their number and make each narrower")
    return whole, part


def pieces_of(module: nn.Module) -> Pieces:
    """Return the dimensions of a module that consist of equal pieces: those of attention, by its heads.

    A module of your own says so itself, in an attribute ``pieces``, for the names of its own tensors.

    >>> pieces_of(nn.MultiheadAttention(8, 2))["in_proj_weight"]
    {0: (3, 2)}
    """
    found: dict[str, Mapping[int, tuple[int, int]]] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.MultiheadAttention):
            projected = {k: {0: (1, layer.num_heads)} for k in ("q_proj_weight", "k_proj_weight", "v_proj_weight")}
            joined = {k: {0: (3, layer.num_heads)} for k in ("in_proj_weight", "in_proj_bias")}
            own = {**projected, **joined, "out_proj.weight": {1: (1, layer.num_heads)}}
        else:
            own = getattr(layer, "pieces", {})
        found |= {f"{name}.{k}" if name else k: v for k, v in own.items()}
    return found


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {k: v.shape for k, v in (*module.named_parameters(), *module.named_buffers())}


def _widths(full: Shapes, small: Shapes, pieces: Pieces) -> dict[Key, int]:
    """Return full width -> channels kept, from the outputs of the layers, the first dimension of a tensor."""
    widths: dict[Key, int] = {}
    for name, shape in full.items():
        if not shape or shape[0] == small[name][0]:
            continue
        equal = math.prod(pieces.get(name, {}).get(0, (1, 1)))
        C, k = shape[0] // equal, small[name][0] // equal
        if k > C or widths.setdefault(C, k) != k:
            raise UserError(
                f"{name} goes from {C} to {k} channels where others go to {min(widths.get(C, C), C)}: "
                "layers of equal width must be cut alike, and none may grow"
            )
    return widths


def _places(full: Shapes, small: Shapes, widths: Mapping[Key, int], pieces: Pieces) -> dict[str, tuple[Dimension, ...]]:
    places: dict[str, tuple[Dimension, ...]] = {}
    before = 0  # the latest layer's output width
    for name, shape in full.items():
        cut = [d for d, (C, k) in enumerate(zip(shape, small[name], strict=True)) if k != C]
        equal = {d: math.prod(n) for d, n in pieces.get(name, {}).items()}
        places[name] = tuple(_place(name, d, shape, small[name], widths, before, equal.get(d, 1)) for d in cut)
        if 0 in cut:
            before = shape[0] if 0 not in equal else 0
    return places


def _place(
    name: str, dim: int, shape: torch.Size, small: torch.Size, widths: Mapping[Key, int], before: int, equal: int
) -> Dimension:
    """Return how one dimension is cut: by channels of its width, in pieces, or by blocks of the width before it."""
    C, k = shape[dim] // equal, small[dim] // equal
    readings = [Dimension(dim, (C,) * equal, 1, C)] if dim < 2 and widths.get(C) == k else []
    block = C // before if before else 0
    if dim == 1 and len(shape) == 2 and block > 1 and (before * block, widths[before] * block) == (C, k):
        readings.append(Dimension(dim, (before,), block, C))
    if len(readings) != 1:
        what = "belongs to no layer's output" if not readings else f"may be {C} channels or {before} of {block} entries"
        raise UserError(
            f"dimension {dim} of {name}, cut from {C} to {k}, {what}: give the layers widths that can be told apart"
        )
    return readings[0]
