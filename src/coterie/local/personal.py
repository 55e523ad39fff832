"""Which parameters are personal: the head, or whatever the given patterns match."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

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
    return frozenset(prefix + k for k, _ in module.get_submodule(layer).named_parameters())


def personal_names(module: nn.Module, patterns: Patterns, constants: Collection[str] = ()) -> frozenset[str]:
    """The parameters (and buffers) that never leave a client.

    ``constants``: the names of what training never changes, which belongs to no client.
    ``patterns``: "head", "all", "none", or shell patterns over the names, as a list or separated by commas. A tensor of
    two layers has two names, of which both or neither must be chosen, and is returned by the first.

    >>> sorted(personal_names(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), "0.*, 1.bias"))
    ['0.bias', '0.weight', '1.bias']
    """
    tensors = _tensors_by_name(module)
    given = patterns.split(",") if isinstance(patterns, str) else patterns
    wanted = [p for p in (p.strip() for p in given) if p]
    if not wanted:
        raise UserError("personal is empty: write head, all, none, or patterns of the names of parameters")
    values = {id(tensors[k]) for k in constants}
    fixed = {k for k, v in tensors.items() if id(v) in values}  # by all names of a tensor that two layers have
    chosen: set[str] = set()
    for pattern in wanted:
        if pattern == "none":
            continue
        matched = head(module) if pattern == "head" else _matches(tuple(tensors), pattern)
        if not matched:
            raise UserError(
                f"personal pattern {shown(pattern)} matches no parameter: choose among {', '.join(tensors)}"
            )
        if matched <= fixed:
            raise UserError(
                f"personal pattern {shown(pattern)} names only constants ({', '.join(sorted(matched))}), which no "
                "training changes and all clients share: name a part that trains, or set requires_grad of these"
            )
        chosen |= matched - fixed
    return _whole_tensors(tensors, chosen)


def _tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    """Return every tensor by all of its names; a layer that is registered twice has its first name alone."""
    found: dict[str, Tensor] = {}
    for kind in (nn.Module.named_parameters, nn.Module.named_buffers):
        for name, layer in module.named_modules():
            prefix = name + "." if name else ""
            found |= {prefix + k: v for k, v in kind(layer, recurse=False, remove_duplicate=False)}
    return found


def _whole_tensors(tensors: dict[str, Tensor], chosen: Collection[str]) -> frozenset[str]:
    """Return the first names of the chosen tensors; refuse one that is chosen by some of its names only."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    for same in names.values():
        inside, outside = ([k for k in same if (k in chosen) is part] for part in (True, False))
        if inside and outside:  # it is one tensor: it would be shared, or kept, under both names
            raise UserError(
                f"{inside[0]} of the personal part is the same tensor as {outside[0]}, which is not of it: name the "
                f"personal part by patterns that match both or neither of {', '.join(tensors)}"
            )
    return frozenset(same[0] for same in names.values() if same[0] in chosen)


def _matches(names: Sequence[str], pattern: str) -> frozenset[str]:
    everything = "*" if pattern == "all" else pattern
    return frozenset(k for k in names if fnmatchcase(k, everything))
