"""Modules as people have them: wrappers are taken off, and what cannot be trained is refused in a sentence."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.errors import UserError

COMPILED = "_orig_mod"  # the child of what ``torch.compile`` returns
PARALLEL = nn.DataParallel, nn.parallel.DistributedDataParallel
# What a parameter may be, and how that is mended; the first that applies is told.
REFUSED: tuple[tuple[Callable[[Any], object], str], ...] = (
    (is_lazy, "has no values yet: call the model once on a few samples first, as in model(federation.sample(2))"),
    (lambda p: p.is_meta, "is on the meta device and has no values: build the model on the CPU"),
    (
        lambda p: not bool(torch.isfinite(p).all()),
        "is not finite before any training: look at how it is drawn, or at the file that it was read from",
    ),
    (
        torch.is_complex,
        "is complex: hold its real and its imaginary part as two real parameters, and join them with torch.complex",
    ),
    (
        lambda p: p._backward_hooks or p._post_accumulate_grad_hooks,
        "has a hook, which nobody would call, because every client has tensors of its own: leave the hook out, and "
        "change the gradient in the forward pass or in a method of your own",
    ),
)


def accepted(module: object) -> nn.Module:
    """Return a copy of the module without wrappers, whose parameters can be trained; refuse others.

    >>> accepted(nn.DataParallel(nn.Linear(2, 1)))
    Linear(in_features=2, out_features=1, bias=True)
    """
    if not isinstance(module, nn.Module):
        raise UserError(
            f"the model is a {type(module).__name__}: give a torch.nn.Module, or a function that returns one"
        )
    module = _unwrapped(module)
    _check_scripted(module)
    for name, tensor in module.named_parameters():
        for applies, sentence in REFUSED:
            if applies(tensor):
                raise UserError(f"the parameter {name} {sentence}")
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(
            "the model has no parameter that can be trained: set requires_grad of those that are frozen, or give a "
            "model with parameters"
        )
    return _without_wrappers(_copied(module))


def _check_scripted(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise UserError(
                f"{name or 'the model'} is a TorchScript module, whose tensors cannot be exchanged: give the module "
                "that it was made from"
            )


def _copied(module: nn.Module) -> nn.Module:
    """Copy a module; tensors it has computed and kept, as weight normalization does, without their graphs."""
    held = (v for part in module.modules() for v in vars(part).values() if isinstance(v, Tensor))
    try:
        return copy.deepcopy(module, {id(v): v.detach() for v in held if not v.is_leaf})
    except Exception as error:
        said = (str(error) or repr(error)).splitlines()[0]
        raise UserError(
            f"the model cannot be copied ({said}): leave out of it what copy.deepcopy refuses, such as open files"
        ) from error


def _wrapped(module: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper wraps."""
    return module.module if isinstance(module, PARALLEL) else dict(module.named_children()).get(COMPILED)


def _unwrapped(module: nn.Module) -> nn.Module:
    """Take off the wrappers around a module."""
    while (inner := _wrapped(module)) is not None:
        module = inner
    return module


def _without_wrappers(module: nn.Module) -> nn.Module:
    """Take off the wrappers inside a module, which is changed."""
    for parent, name, part in list(_inside(module)):
        setattr(parent, name, _without_wrappers(_unwrapped(part)))
    return module


def _inside(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield the outermost wrappers inside a module: where each is, its name there, and itself."""
    for name, part in module.named_children():
        if _wrapped(part) is not None:
            yield module, name, part
        else:
            yield from _inside(part)
