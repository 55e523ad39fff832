"""What a step follows instead of the plain gradient: corrections, which compose in the order they are listed.

Each is written for one client and looks up what it needs of that client by name, in ``aux``:

    proximal            "reference"     the model that the client began the round with, unless a method gives another
    control_variate     "control"       what the gradient of some parameters is shifted by
    debiased            "weight"        the client's weight in push-sum
    masked              "mask"          which entries are alive

Each function gives a tuple, empty where its strength is 0, so that ``sam(rho) + proximal(mu)`` is a composition: SAM
around the plain gradient, then the pull, which is taken at the unperturbed point. ``proximal(mu) + sam(rho)`` perturbs
the pull, too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.tensors import Tensors, add, floating, norm, split, sub
from ..data.batches import Batch
from ..engines.base import Grad, StepInfo
from ..exchange.mixing import ratio
from .steps import REFERENCE, Aux, Correction

CONTROL, WEIGHT, MASK = "control", "weight", "mask"
Corrections = tuple[Correction, ...]


@dataclass(frozen=True)
class Sam(Correction):
    """The gradient at the worst point nearby."""

    rho: float
    gradients = 2

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """g(x + rho g(x) / |g(x)|)."""

        def ascended(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            with replayed(batch.x.device) as again:
                g, info = grad(x, frozen, batch)
                again()
                scale = self.rho / (norm(g) + 1e-12)
                worst = {k: v + scale * g[k] for k, v in x.items()}
                return grad(worst, frozen, batch)[0], info

        return ascended


def sam(rho: float) -> Corrections:
    """The gradient at the worst point nearby: g(x + rho g(x) / |g(x)|), one norm over all that moves.

    Both passes see the same batch and the same dropout; running statistics are those of the first.

    Reference: Foret et al., "Sharpness-Aware Minimization", 2021, equation 2 and 3.
    """
    return (Sam(rho),) if rho else ()


@contextmanager
def replayed(device: torch.device) -> Iterator[Callable[[], None]]:
    """Torch's generator, which the yielded function sets back to where it was on entering."""
    get, put = (torch.cuda.get_rng_state, torch.cuda.set_rng_state) if device.type == "cuda" else (_get, _put)
    state = get()
    yield lambda: put(state)


def _get() -> Tensor:
    return torch.random.get_rng_state()


def _put(state: Tensor) -> None:
    torch.random.set_rng_state(state)


@dataclass(frozen=True)
class ControlVariate(Correction):
    """The gradient shifted by a vector."""

    needs = CONTROL

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """g(x) + control, for the names that the control variate has."""

        def shifted(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            g, info = grad(x, frozen, batch)
            control = aux[CONTROL]
            return g | add({k: g[k] for k in control if k in g}, control), info

        return shifted


def control_variate() -> Corrections:
    """g(x) + control, for the names that the control variate has: Scaffold's c - c_i."""
    return (ControlVariate(),)


@dataclass(frozen=True)
class Proximal(Correction):
    """The gradient of a proximal term around a reference model, added or followed in a step of its own."""

    strength: float
    split: bool
    needs = REFERENCE

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """g(x) + strength (x - reference)."""

        def pulled(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            g, info = grad(x, frozen, batch)
            return add(g, self._away(x, aux), self.strength), info

        return grad if self.split else pulled

    def after_step(self, x: Tensors, aux: Aux, lr: float | Tensor) -> Tensors:
        """x - lr strength (x - reference), where the pull is a step of its own."""
        return add(x, self._away(x, aux), -lr * self.strength) if self.split else x

    def _away(self, x: Tensors, aux: Aux) -> Tensors:
        return sub(x, {k: aux[REFERENCE][k] for k in x})


def proximal(strength: float, split: bool = False) -> Corrections:
    """g(x) + strength (x - reference): the gradient of (strength / 2) |x - reference|^2 is added.

    split: it is a step of its own after each gradient step, x <- x - lr strength (x - reference).
    """
    return (Proximal(strength, split),) if strength else ()


@dataclass(frozen=True)
class FewSamples(Correction):
    """The gradient of a part from some of the samples of a batch."""

    names: frozenset[str]
    size: int

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """The named part from the first samples, the rest from all of them."""

        def both(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            u, v = split(x, self.names)
            exact, info = grad(v, frozen | u, batch)
            size = self.size
            few = Batch(batch.x[:size], batch.y[:size], None if batch.mask is None else batch.mask[:size])
            noisy, _ = grad(u, frozen | v, few)
            return {k: (noisy | exact)[k] for k in x}, info

        return both


def few_samples(names: frozenset[str], size: int) -> Corrections:
    """The gradient of the named part from the first ``size`` samples of a batch, that of the rest from all of them.

    A batch of everything that a client has is shuffled anew in every step: its first samples are a random batch.
    """
    return (FewSamples(names, size),)


@dataclass(frozen=True)
class Debiased(Correction):
    """The gradient at the ratio that a numerator and its weight are."""

    shared: frozenset[str]
    needs = WEIGHT

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """g at u / mu."""

        def at_ratio(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            mu = aux[WEIGHT]
            g, info = grad(model_of(x, mu, self.shared), model_of(frozen, mu, self.shared), batch)
            return g, info._replace(buffers=model_of(info.buffers, 1 / mu, self.shared))

        return at_ratio


def debiased(shared: frozenset[str]) -> Corrections:
    """g at u / mu: push-sum holds a biased numerator u, steps on it, and takes every gradient at the ratio.

    No factor 1/mu enters the step: the derivative is that of F at z = u / mu.
    """
    return (Debiased(shared),)


def model_of(u: Tensors, mu: Tensor, shared: frozenset[str]) -> Tensors:
    """u / mu for the shared part of one client; what is personal and what is whole-numbered stays."""
    return u | ratio(floating(split(u, shared)[0]), mu)


@dataclass(frozen=True)
class Masked(Correction):
    """Steps that leave what is dead at zero."""

    needs = MASK

    def after_step(self, x: Tensors, aux: Aux, lr: float | Tensor) -> Tensors:
        """x * mask."""
        return {k: v * aux[MASK][k] for k, v in x.items()}


def masked() -> Corrections:
    """Zero where the mask is, after every step."""
    return (Masked(),)
