"""The first model of every client, where each draws its own instead of all starting from one."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import torch
from torch import nn

from .. import models
from ..algorithms.base import Algorithm
from ..core import rng
from ..core.errors import UserError
from ..core.schema import Init
from ..core.tensors import Integers, Tensors, replicate, stack
from ..models.accept import accepted
from ..models.model import Model
from ..models.parts import origin_of

INITS: tuple[Init, ...] = get_args(Init)
COMMON, PER_CLIENT = INITS
First = Callable[[int], Tensors]
"""client -> the values it begins with, in the form that the method trains."""


def drawn(model: Callable[[], nn.Module], key: int) -> nn.Module:
    """Return what a function builds from torch's generator with that key, whatever was drawn before."""
    with rng.torch_draws(key):
        return accepted(model())


def first_models(model: nn.Module | Callable[[], nn.Module], given: Model, algorithm: Algorithm, seed: int) -> First:
    """Return each client's own draw; ``given``: the common model, which has the loss and the arithmetic of all."""
    make = _built_again(given) if isinstance(model, nn.Module) else _drawn_again(model)

    def first(client: int) -> Tensors:
        module = make(rng.key(seed, "init", client))
        return algorithm.adapt(replace(given, module=module)).start

    if not _differ(first(0), first(1)):
        raise UserError(
            f"init={PER_CLIENT} needs a function that draws a new model at every call, this one builds the same again: "
            "leave torch's seed alone in it, and build no model with a seed of its own"
        )
    return first


def everybodys(first: First | None, common: Tensors, clients: Integers) -> Tensors:
    """Stack what these clients begin with; without draws of their own it is one model, in memory once."""
    if first is None:
        same: Tensors = replicate(common, len(clients))
        return same
    each: Tensors = stack([first(int(i)) for i in clients])
    return {k: v.to(common[k].device) for k, v in each.items()}


def _built_again(given: Model) -> Callable[[int], nn.Module]:
    """Return a function that builds a model by its name again, with another seed."""
    origin = origin_of(given.module)
    if not origin:
        raise UserError(
            f"init={PER_CLIENT} cannot draw a {type(given.module).__name__} anew: give fit a function that builds it, "
            "as in fit(lambda: Net(), ...), or a model of coterie.models.build"
        )
    if _differ({k: v.cpu() for k, v in given.start.items()}, Model(models.rebuild_trusted(origin), given.loss).start):
        raise UserError(
            f"init={PER_CLIENT} draws every model anew, and this one holds values of its own: leave init out"
        )
    return lambda key: models.rebuild_trusted({**origin, "seed": key})


def _drawn_again(model: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def make(key: int) -> nn.Module:
        module = drawn(model, key)
        if isinstance(getattr(module, "origin", {}), dict):  # something else is the module's own
            module.origin = {**origin_of(module), "seed": key}  # type: ignore[assignment]  # a method may draw more
        return module

    return make


def _differ(a: Tensors, b: Tensors) -> bool:
    return any(not torch.equal(v, b[k]) for k, v in a.items())
