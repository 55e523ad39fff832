"""Any module in low-rank form, back again, and the regularizers of such a form.

``factorize`` and ``recover`` make modules of modules; ``factorize_tensors`` and ``recover_tensors`` do the same to the
named tensors of one client, which a server works on.

Reference: Liu et al. 2024, "FedLMT" (the layout and the rank); Khodak et al. 2021 (spectral initialization).
Differs from the paper in: the released code unrolls a convolution without exchanging its middle dimensions when it
factorizes a trained model, which approximates nothing.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ..core import rng
from ..core.arguments import checked
from ..core.errors import UserError, unknown
from ..core.tensors import Tensors
from ..models.parts import origin_of
from .factors import TERMS, LowRank, LowRankConv2d, LowRankEmbedding, LowRankLinear, matrices, product, spectral

# Exactly these classes: a subclass means something of its own, as attention's output layer, whose weight is read
# without calling it. Transposed convolutions are left alone.
LARGEST_RATIO = 16  # no k x k kernel has a rank of more than k times its channels, and none is larger than this
LAYERS: dict[type[nn.Module], Any] = {
    nn.Conv2d: LowRankConv2d,
    nn.Linear: LowRankLinear,
    nn.Embedding: LowRankEmbedding,
}
FactorInit = Literal["kaiming", "spectral"]
RankMode = Literal["channels", "definition"]

Keep = int | str | Sequence[str]
"""How many layers stay whole, or shell patterns over their names."""


class Pair(NamedTuple):
    """The names of a layer's two factors, and of the weight they stand for."""

    U: str
    V: str
    weight: str

    def matrices(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """Return U with k c_out rows and V with k c_in rows, both with r columns."""
        return matrices(tensors[self.U], tensors[self.V])


@checked("function")
def factorize(
    module: nn.Module,
    rank_ratio: float,
    keep_layers: Keep = 1,
    init: FactorInit = "spectral",
    seed: int = 0,
    rank_mode: RankMode = "channels",
) -> nn.Module:
    """Return a copy of a module whose convolutions, linear layers and embeddings are products of two factors.

    W = U V^T of rank r = max(1, round(rank_ratio * c_out)), and round(rank_ratio * min(m, n)) for matrices. A ratio
    above full rank is legal. 1 x 1 convolutions stay as they are; biases stay too. With ``rank_mode`` "definition" a
    kernel counts as the matrix it is unrolled to: r = max(1, round(rank_ratio * min(k c_out, k c_in))), as Definition
    3.1 of FedLMT has it, and 1 is the largest ratio.

    Args:
        module: Any module.
        rank_ratio: The rank, as a share of the full one.
        keep_layers: How many layers stay whole, in the order of ``named_modules``, the first layer included; the last
            linear layer stays whole then as well. Or the names of all that stay whole, as shell patterns in a list or
            separated by commas, where "stem" is the first layer, "head" the last linear one and "none" nothing.
        init: "spectral" (the nearest product) or "kaiming" (fresh random factors, which depend on ``seed`` alone).
        seed: The seed of random factors.
        rank_mode: "channels" or "definition".

    >>> net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> factorize(net, 0.25)[2]
    LowRankLinear(8, 8, rank=2)
    """
    layers = factorable(module, keep_layers).values()
    return _with_products(module, layers, rank_ratio, init, seed, rank_mode)


def factorize_trained(
    module: nn.Module, rank_ratio: float, keep_layers: Keep, init: FactorInit, seed: int, rank_mode: RankMode
) -> nn.Module:
    """Return ``factorize`` of the layers that train: a frozen weight stays whole, because its factors would not."""
    chosen = factorable(module, keep_layers).values()
    layers = [layer for layer in chosen if layer.get_parameter("weight").requires_grad]
    return _with_products(module, layers, rank_ratio, init, seed, rank_mode)


def _with_products(
    module: nn.Module, layers: Iterable[nn.Module], rank_ratio: float, init: FactorInit, seed: int, rank_mode: RankMode
) -> nn.Module:
    """Return a copy of a module with two factors in place of each of these layers."""
    if not 0 < rank_ratio <= LARGEST_RATIO:
        raise UserError(
            f"rank_ratio={rank_ratio} must be above 0 and at most {LARGEST_RATIO}: 0.25 keeps a quarter of the rank"
        )
    if init not in get_args(FactorInit):
        raise unknown("init", init, get_args(FactorInit))
    if rank_mode not in get_args(RankMode):
        raise unknown("rank_mode", rank_mode, get_args(RankMode))
    if rank_mode == "definition" and rank_ratio > 1:
        raise UserError(
            f"rank_ratio={rank_ratio} is above full rank by Definition 3.1: choose at most 1, or rank_mode=channels"
        )
    generator = torch.Generator("cpu").manual_seed(rng.key(seed, "factors"))
    new: dict[int, nn.Module] = {}
    for layer in layers:
        kind, weight, rank = LAYERS[type(layer)], layer.get_parameter("weight"), _rank(layer, rank_ratio, rank_mode)
        factors = spectral(weight, rank) if init == "spectral" else kind.drawn(weight, rank, generator)
        new[id(layer)] = kind(layer, *factors)
    return replace_layers(module, new)


@checked("function")
def recover(module: nn.Module) -> nn.Module:
    """Return a module of ordinary layers that computes the same as one in low-rank form.

    >>> net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    >>> recover(factorize(net, 1.0))[1]
    Linear(in_features=8, out_features=8, bias=True)
    """
    return replace_layers(module, {id(layer): layer.ordinary() for _, layer in _low_rank(module)})


@checked("function")
def factor_pairs(module: nn.Module) -> tuple[Pair, ...]:
    """Return the names of the factors of a module in low-rank form, in the order of its layers.

    >>> factor_pairs(factorize(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), 0.5, keep_layers="stem"))
    (Pair(U='1.U', V='1.V', weight='1.weight'),)
    """
    prefixes = [f"{name}." if name else "" for name, _ in _low_rank(module)]
    return tuple(Pair(f"{p}U", f"{p}V", f"{p}weight") for p in prefixes)


def front_names(module: nn.Module) -> frozenset[str]:
    """Return the names before the first low-rank layer, or before the head if it is earlier: pFedLMT's common part."""
    head = _head(module)
    names: list[str] = []
    for name, layer in module.named_modules():
        if isinstance(layer, LowRank) or name == head:
            break
        own = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        names += [f"{name}.{k}" if name else k for k, _ in own]
    return frozenset(names)


def recover_tensors(template: nn.Module, tensors: Tensors) -> Tensors:
    """Return the tensors of the ordinary model; ``template``: the low-rank module that ``tensors`` belong to."""
    pairs = {p.U: p for p in factor_pairs(template)}
    seconds = {p.V for p in pairs.values()}
    full: Tensors = {}
    for name, value in tensors.items():
        if name in pairs:
            full[pairs[name].weight] = product(value, tensors[pairs[name].V])
        elif name not in seconds:
            full[name] = value
    return full


def factorize_tensors(template: nn.Module, tensors: Tensors) -> Tensors:
    """Return the tensors of the low-rank module ``template`` that are nearest to those of an ordinary model."""
    pairs = {p.weight: p for p in factor_pairs(template)}
    low: Tensors = {}
    for name, value in tensors.items():
        if name in pairs:
            pair = pairs[name]
            low[pair.U], low[pair.V] = spectral(value, template.get_parameter(pair.U).shape[1])
        else:
            low[name] = value
    return low


def column_dimensions(template: nn.Module) -> dict[str, int]:
    """Return the dimension in which each factor has its columns: in a convolution, the channels between its halves."""
    pairs = factor_pairs(template)
    return {p.U: 1 for p in pairs} | {p.V: 0 if template.get_parameter(p.V).dim() == 4 else 1 for p in pairs}


def truncate_tensors(template: nn.Module, tensors: Tensors) -> Tensors:
    """Return the first columns of factors, as many as ``template`` has; of nearest products these are nearest, too."""
    columns = column_dimensions(template)
    wanted = {k: template.get_parameter(k).shape[at] for k, at in columns.items()}
    return {k: v.narrow(columns[k], 0, wanted[k]) if k in columns else v for k, v in tensors.items()}


def penalty(pairs: Sequence[Pair], coefficients: Mapping[str, float]) -> Callable[[Tensors], Tensor]:
    """Return the regularizer: the chosen terms with their coefficients, summed over all layers.

    ``pairs``: from ``factor_pairs``; ``coefficients``: as ``{"frobenius": 1e-4, "l2": 1e-5}``.

    >>> x = {"0.U": torch.ones(3, 1), "0.V": torch.ones(2, 1)}
    >>> float(penalty([Pair("0.U", "0.V", "0.weight")], {"frobenius": 0.5, "l2": 1.0})(x))  # 6 / 2 + 3 + 2
    8.0
    """
    for name, coefficient in coefficients.items():
        if name not in TERMS:
            raise unknown("regularizer", name, TERMS)
        if not coefficient >= 0:
            raise UserError(f"the coefficient {coefficient} of {name} must be at least 0")
    terms = [(TERMS[name], c) for name, c in coefficients.items() if c]

    def value(tensors: Tensors) -> Tensor:
        total = next(iter(tensors.values())).new_zeros(())
        for pair in pairs:
            U, V = pair.matrices(tensors)
            for term, c in terms:
                total = total + c * term(U, V)
        return total

    return value


def replace_layers(module: nn.Module, new: dict[int, nn.Module]) -> nn.Module:
    """Return a copy of a module with new layers in place of those with these ids."""
    changed = copy.deepcopy(module, dict(new))  # deepcopy takes from its memo what it finds there
    if origin_of(changed):
        del changed.origin  # models.build would make another module of it
    return changed


def _low_rank(module: nn.Module) -> Iterator[tuple[str, LowRank]]:
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, LowRank))


def _head(module: nn.Module) -> str | None:
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else None


def _rank(layer: nn.Module, ratio: float, mode: str) -> int:
    shape = layer.get_parameter("weight").shape
    if len(shape) == 4:
        c_out, c_in, high, wide = shape
        full = c_out if mode == "channels" else min(high * c_out, wide * c_in)
    else:
        full = min(shape)
    return max(1, round(ratio * full))


def factorable(module: nn.Module, keep: Keep) -> dict[str, nn.Module]:
    """Return the layers that become products; refuse those that cannot."""
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if type(layer) in LAYERS and getattr(layer, "kernel_size", None) != (1, 1)
    }
    whole = _whole(list(layers), _head(module), keep)
    chosen = {name: layer for name, layer in layers.items() if name not in whole}
    owners: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(value), []).append(name)
    for name, layer in chosen.items():
        shared = owners[id(layer.get_parameter("weight"))]
        obstacle = f"a weight that is shared ({', '.join(shared)})" if len(shared) > 1 else _obstacle(layer)
        if obstacle:
            raise UserError(f"layer {name!r} cannot be factorized because of {obstacle}: name it in keep_layers")
    return chosen


def _obstacle(layer: nn.Module) -> str | None:
    """Return the property of a layer that a product of two layers could not imitate."""
    if isinstance(layer, nn.Conv2d):
        if layer.groups != 1:
            return f"its {layer.groups} groups"
        return None if layer.padding_mode == "zeros" else f"its padding mode {layer.padding_mode!r}"
    if isinstance(layer, nn.Embedding):
        special = [k for k in ("max_norm", "scale_grad_by_freq", "sparse") if getattr(layer, k)]
        return f"its option {special[0]}" if special else None
    return None


def _whole(names: Sequence[str], head: str | None, keep: Keep) -> set[str]:
    """Return the names of the layers that stay whole."""
    special = {"none": [], "stem": names[:1], "head": [] if head is None else [head]}
    if isinstance(keep, int):
        if keep < 1:
            raise UserError(
                f"keep_layers={keep} must be at least 1, or 'none' to factorize the first layer too, which is typed "
                "'none,' where none is the method's own choice"
            )
        return {*names[:keep], *special["head"]}
    whole: set[str] = set()
    for pattern in filter(None, (p.strip() for p in (keep.split(",") if isinstance(keep, str) else keep))):
        matched = special.get(pattern) or [name for name in names if fnmatchcase(name, pattern)]
        if not matched and pattern != "none":
            raise UserError(f"{pattern!r} in keep_layers matches no layer: choose among {', '.join(names)}")
        whole.update(matched)
    return whole
