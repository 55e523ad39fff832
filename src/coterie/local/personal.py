"""Which parameters are personal: the head, or whatever the given patterns match."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from ..core.annotations import shown
from ..core.errors import UserError

Patterns = str | Sequence[str]


def head_layer(module: nn.Module) -> str:
    """The name of the last linear layer.

    >>> head_layer(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    '2'
    """
    linear: list[str] = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        names = ", ".join(k for k, _ in module.named_parameters())
        raise UserError(f"this model has no linear layer to be its head: name the personal part by patterns of {names}")
    return linear[-1]


def head(module: nn.Module) -> frozenset[str]:
    """The names of the last linear layer's parameters: the usual personal part.

    >>> sorted(head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))))
    ['2.bias', '2.weight']
    """
    layer = head_layer(module)
    prefix = layer + "." if layer else ""
    own = {prefix + k: v for k, v in module.get_submodule(layer).named_parameters()}
    names = {id(v): k for k, v in module.named_parameters()}
    for name, tensor in own.items():
        if (other := names[id(tensor)]) not in own:
            raise UserError(
                f"{name} of the last linear layer is the same tensor as {other}, which is not of the head: name the "
                f"personal part by patterns of {', '.join(names.values())}"
            )
    return frozenset(own)


def personal_names(module: nn.Module, patterns: Patterns) -> frozenset[str]:
    """The parameters (and buffers) that never leave a client.

    ``patterns``: "head", "all", "none", or shell patterns over the names, as a list or separated by commas.

    >>> sorted(personal_names(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), "0.*, 1.bias"))
    ['0.bias', '0.weight', '1.bias']
    """
    names = [k for k, _ in (*module.named_parameters(), *module.named_buffers())]
    given = patterns.split(",") if isinstance(patterns, str) else patterns
    wanted = [p for p in (p.strip() for p in given) if p]
    if not wanted:
        raise UserError("personal is empty: write head, all, none, or patterns of the names of parameters")
    chosen: set[str] = set()
    for pattern in wanted:
        if pattern == "none":
            continue
        matched = head(module) if pattern == "head" else _matches(names, pattern)
        if not matched:
            raise UserError(f"personal pattern {shown(pattern)} matches no parameter: choose among {', '.join(names)}")
        chosen |= matched
    return frozenset(chosen)


def _matches(names: Sequence[str], pattern: str) -> frozenset[str]:
    everything = "*" if pattern == "all" else pattern
    return frozenset(k for k in names if fnmatchcase(k, everything))
