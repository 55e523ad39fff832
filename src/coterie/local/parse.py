"""An optimizer from what people have at hand: a name, a function of one's own by name, or an optimizer."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

import torch

from ..core.custom import import_function, own_name
from ..core.errors import UserError, noted, unknown
from ..core.spec import Spec, bind, parameters, parse, spelled
from ..core.tensors import Tensors
from .optimizers import Adam, Optimizer, Sgd, Slots

OptimizerLike = str | Optimizer


def sgd(momentum: float, weight_decay: float) -> Sgd:
    """SGD with momentum and L2 decay."""
    return Sgd(momentum, weight_decay)


def adam(weight_decay: float, betas: tuple[float, ...] = Adam().betas, eps: float = Adam().eps) -> Adam:
    """Adam with L2 decay."""
    return Adam(betas, eps, weight_decay)


def adamw(weight_decay: float, betas: tuple[float, ...] = Adam().betas, eps: float = Adam().eps) -> Adam:
    """Adam with decoupled decay."""
    return Adam(betas, eps, weight_decay, decoupled=True)


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {"sgd": sgd, "adam": adam, "adamw": adamw}
SETTINGS = ("momentum", "weight_decay", "betas", "eps")  # what an optimizer may take of the settings, by these names


def maker(text: str) -> tuple[Callable[..., Optimizer], Spec]:
    """Return the function that makes the optimizer of a text, and the options that were typed for it."""
    spec = parse(spelled(text, OPTIMIZERS))
    if spec.name in OPTIMIZERS:
        return OPTIMIZERS[spec.name], spec
    name = own_name(text)
    if name is None:
        raise unknown("optimizer", spec.name, OPTIMIZERS)
    return import_function(name, "optimizer"), Spec(name, spec.args[1:], spec.options)


def named(saved: object, known: Collection[str]) -> bool:
    """Tell whether a saved text names something known or a function of one's own; what is not a text is not asked.

    >>> named("adam", OPTIMIZERS), named("mine:lion,b=0.9", OPTIMIZERS), named("__main__.Lion", OPTIMIZERS)
    (True, True, False)
    """
    return not isinstance(saved, str) or parse(saved).name in known or own_name(saved) is not None


def taken(given: OptimizerLike) -> Collection[str]:
    """Return the settings that an optimizer takes; one that is made already takes none.

    >>> taken("sgd"), taken("adam"), taken(Sgd())
    (['momentum', 'weight_decay'], ['weight_decay', 'betas', 'eps'], [])
    """
    takes = parameters(maker(given)[0]) if isinstance(given, str) else {}
    return [name for name in SETTINGS if name in takes]


def build(given: OptimizerLike, settings: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer; a function takes those of the ``settings`` that it has a parameter for.

    >>> build("adamw", {"momentum": 0.9, "weight_decay": 0.1, "betas": None, "eps": None}).decoupled
    True
    """
    if not isinstance(given, str):
        return given
    filled = {k: settings[k] for k in taken(given) if settings[k] is not None}
    return _made(given, tuple(filled.items()))


@cache
def _made(text: str, filled: tuple[tuple[str, Any], ...]) -> Optimizer:
    make, spec = maker(text)
    own = spec.name not in OPTIMIZERS  # the others are told all that they take by settings
    free = {k: p for k, p in parameters(make).items() if own and k not in dict(filled)}
    options = bind("optimizer", spec, free)
    with noted(f"It happened in {spec.name}, which makes the optimizer."):
        made = make(**dict(filled), **options)
    if not (callable(getattr(made, "init", None)) and callable(getattr(made, "step", None))):
        raise UserError(f"{spec.name} returned {type(made).__name__}: return an optimizer, with init and step")
    return made


def check_optimizer(optimizer: Optimizer, x: Tensors) -> None:
    """Refuse an optimizer of one's own that cannot be a part of a step: it takes one from ``x`` on trial."""
    name = type(optimizer).__name__
    try:
        hash(optimizer)
    except TypeError as error:
        raise UserError(
            f"the optimizer {name} has no hash ({error}): make it a NamedTuple or a frozen class"
        ) from error
    before = {k: v.clone() for k, v in x.items()}
    with torch.no_grad(), noted(f"It happened in a trial step of the optimizer {name}."):
        state = optimizer.init(before)
        _check_slots(name, "init", state, x)
        kept = {slot: {k: v.clone() for k, v in values.items()} for slot, values in state.items()}
        result = optimizer.step(before, {k: torch.ones_like(v) for k, v in x.items()}, state, 0.1)
    new, after = _pair(name, result)
    _check_alike(f"step of the optimizer {name} returned a point", new, x)
    _check_slots(name, "step", after, x)
    if after.keys() != kept.keys():
        raise UserError(
            f"the optimizer {name} begins with the slots {_names(kept)} and goes on with {_names(after)}: let init "
            "return all slots"
        )
    for slot, values in kept.items():
        _check_alike(f"step of the optimizer {name} returned a slot {slot!r}", after[slot], values)
    if not all(torch.equal(v, before[k]) for k, v in x.items()) or not all(
        torch.equal(v, state[slot][k]) for slot, values in kept.items() for k, v in values.items()
    ):
        raise UserError(f"the optimizer {name} writes into what its step is given: let it return new tensors")


def _pair(name: str, result: object) -> tuple[Tensors, Slots]:
    """Return a point and a state; refuse what is no pair of them."""
    if isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, dict) for part in result):
        return result
    raise UserError(
        f"step of the optimizer {name} returned {type(result).__name__}, not a point and a state: end it with "
        "return new, state, the point by parameter and the state by slot"
    )


def _check_slots(name: str, function: str, state: Slots, x: Tensors) -> None:
    """Refuse a state that is not by slot and by parameter, so that phases could not split it."""
    fits = isinstance(state, dict) and all(isinstance(v, dict) and v.keys() == x.keys() for v in state.values())
    if not fits or not all(isinstance(v, torch.Tensor) for values in state.values() for v in values.values()):
        raise UserError(
            f"{function} of the optimizer {name} returned a state that has not one tensor by slot and by "
            'parameter: return {"momentum": zeros_like(x)}, or {} where nothing is carried'
        )


def _check_alike(what: str, new: Tensors, old: Tensors) -> None:
    """Refuse tensors of other names, shapes or types: what a step hands on has the form of what it was given."""
    if new.keys() != old.keys():
        raise UserError(f"{what} with other parameters than it was given: return all of them by their names")
    for k, v in old.items():
        if not isinstance(new[k], torch.Tensor):
            raise UserError(f"{what} whose {k} is not a tensor but {type(new[k]).__name__}: return a tensor")
        if new[k].shape != v.shape or new[k].dtype != v.dtype:
            raise UserError(
                f"{what} whose {k} has the shape {tuple(new[k].shape)} and the type {new[k].dtype}, which were "
                f"{tuple(v.shape)} and {v.dtype}: return what has the form of what it was given"
            )


def _names(state: Slots) -> str:
    return ", ".join(state) or "none"
