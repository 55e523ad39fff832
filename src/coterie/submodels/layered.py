"""A cut in which every layer has channels of its own, as the code released with FedRolex has for federated dropout.

    a layer's inputs are the channels that the layer before it puts out; its outputs are a set of its own

So a chain of layers stays one network, whichever channels are drawn; but where a residual network adds two layers'
outputs, their channels differ. Layers come in the order of ``named_modules``. A layer that runs beside others, such as
the convolution of a shortcut, has their inputs and outputs: its block says so in an attribute ``beside``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from ..core.errors import UserError
from ..local.personal import head_layer
from .width import Cut, Dimension, Key, Pieces, Shapes, matching_shapes, pieces_of

PRODUCTS = (nn.modules.conv._ConvNd, nn.Linear)
NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


class Ends(NamedTuple):
    """The input and output channels of a layer; None: all, as the input of the first layer and the classes."""

    inputs: Key | None
    outputs: tuple[Key, ...] | None  # several: projections side by side


def layered(full: nn.Module, small: nn.Module) -> Cut:
    """Return the cut to the size of ``small`` in which no two layers share their channels.

    >>> from coterie import models
    >>> full = models.build("mlp", classes=10, input_shape=(64,))
    >>> cut = layered(full, models.build("mlp:rate=0.25", classes=10, input_shape=(64,)))
    >>> cut.widths, cut.full
    ({'1': 16, '3': 16}, {'1': 64, '3': 64})
    """
    whole, part = matching_shapes(full, small)
    pieces = pieces_of(full)
    places: dict[str, tuple[Dimension, ...]] = dict.fromkeys(whole, ())
    widths: dict[Key, int] = {}
    sizes: dict[Key, int] = {}
    for name, layer, ends in _layers(full, pieces):
        weight, dim = f"{name}.weight", _outputs(layer)
        for key in ends.outputs or ():
            if key not in sizes:
                equal = _equal(pieces, weight, dim)
                sizes[key], widths[key] = whole[weight][dim] // equal, part[weight][dim] // equal
        for own in (*layer._parameters, *layer._buffers):
            at = f"{name}.{own}" if name else own
            if at in whole:
                places[at] = tuple(_dimensions(at, layer, ends, whole, pieces, sizes))
    return Cut(whole, widths, places, sizes)


def _layers(module: nn.Module, pieces: Pieces) -> Iterator[tuple[str, nn.Module, Ends]]:
    """Yield every layer that has tensors, with its name and its ends."""
    tied = len(list(module.named_parameters(remove_duplicate=False))) - len(list(module.named_parameters()))
    if tied:
        raise UserError("layers that share a tensor cannot have channels of their own: leave aligned as it is")
    now: Key | None = None
    head, earlier, beside = head_layer(module), dict[str, Ends](), dict[str, tuple[str, str]]()
    for name, layer in module.named_modules(remove_duplicate=False):
        before = f"{name}." if name else ""
        beside |= {before + k: (before + a, before + b) for k, (a, b) in getattr(layer, "beside", {}).items()}
        if not (any(True for _ in layer.parameters(recurse=False)) or any(True for _ in layer.buffers(recurse=False))):
            continue
        if name in beside:
            first, last = beside[name]
            ends = Ends(earlier[first].inputs, earlier[last].outputs)
        elif isinstance(layer, NORMS):
            ends = Ends(now, None if now is None else (now,))
        elif isinstance(layer, (*PRODUCTS, nn.Embedding)):
            parts = pieces.get(f"{name}.weight", {}).get(0, (1, 1))[0]
            outputs = (name,) if parts == 1 else tuple(f"{name}/{p}" for p in range(parts))
            ends = Ends(now, None if name == head else outputs)
        else:
            raise UserError(
                f"channels of {name or 'the module'} ({type(layer).__name__}) cannot be drawn layer by layer: "
                "leave aligned as it is"
            )
        earlier[name] = ends
        now = None if ends.outputs is None else ends.outputs[-1]
        yield name, layer, ends


def _dimensions(
    at: str, layer: nn.Module, ends: Ends, shapes: Shapes, pieces: Pieces, sizes: dict[Key, int]
) -> Iterator[Dimension]:
    """Yield the dimensions in which a layer's tensor is cut."""
    shape = shapes[at]
    if not shape:  # a counter
        return
    out = _outputs(layer)
    if ends.outputs is not None:
        equal = _equal(pieces, at, out)
        keys = tuple(key for key in ends.outputs for _ in range(equal // len(ends.outputs)))
        yield _place(at, out, keys, shape[out], sizes)
    if ends.inputs is not None and isinstance(layer, PRODUCTS) and len(shape) > 1:
        yield _place(at, 1, (ends.inputs,) * _equal(pieces, at, 1), shape[1], sizes)


def _place(at: str, dim: int, keys: tuple[Key, ...], size: int, sizes: dict[Key, int]) -> Dimension:
    span = size // len(keys)
    block, rest = divmod(span, sizes[keys[0]])
    if rest or not block:
        raise UserError(
            f"dimension {dim} of {at} has {span} entries, which are not the {sizes[keys[0]]} channels of the layer "
            "before it: leave aligned as it is, or name layers that run beside others in an attribute beside"
        )
    return Dimension(dim, keys, block, span)


def _outputs(layer: nn.Module) -> int:
    """Return the dimension of a weight that holds a layer's outputs."""
    return 1 if isinstance(layer, nn.Embedding) else 0


def _equal(pieces: Pieces, at: str, dim: int) -> int:
    projections, heads = pieces.get(at, {}).get(dim, (1, 1))
    return projections * heads
