"""Corrections: the direction that a step follows instead of the plain gradient. They compose in their order.

Each is written for one client and looks up what it needs of that client by name, in ``aux``:

    proximal            "reference"     the model that the client began the round with, unless a method gives another
    control_variate     "control"       the shift of the gradient of some parameters
    debiased            "weight"        the client's weight in push-sum
    masked              "mask"          which entries are alive

Each function returns a tuple, empty where its strength is 0, so that ``sam(rho) + proximal(mu)`` is a composition: SAM
around the plain gradient, then the pull, which is taken at the unperturbed point. ``proximal(mu) + sam(rho)`` perturbs
the pull, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import checked
from ..core.tensors import Tensors, add, floating, norm, rows, split, sub
from ..data.batches import Batch, Batches
from ..engines.base import Grad, StepInfo
from ..exchange.mixing import ratio
from .steps import REFERENCE, Aux, Correction

CONTROL, WEIGHT, MASK = "control", "weight", "mask"
Corrections = tuple[Correction, ...]


SamForm = Literal["plain", "adaptive"]
"""How far SAM climbs along each entry of the gradient: equally far, or in proportion to the weight."""


@dataclass(frozen=True)
class Sam(Correction):
    """g(x + rho T T g(x) / |T g(x)|), where T is 1 in the plain form and |x| + eta in the adaptive form."""

    rho: float
    form: SamForm = "plain"
    eta: float = 0.0
    gradients = 2

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """Return the gradient after an ascent along it."""

        def ascended(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            rewind = rewinder(batch.y.device)
            g, info = grad(x, frozen, batch)
            rewind()
            scales = None if self.form == "plain" else {k: v.abs() + self.eta for k, v in x.items()}
            scaled = g if scales is None else {k: scales[k] * v for k, v in g.items()}
            length = self.rho / (norm(scaled) + 1e-12)
            climb = scaled if scales is None else {k: scales[k] * v for k, v in scaled.items()}
            worst = {k: v + length * climb[k] for k, v in x.items()}
            return grad(worst, frozen, batch)[0], info

        return ascended


@checked("function")
def sam(rho: float, form: SamForm = "plain", eta: float = 0.0) -> Corrections:
    """Follow the gradient at the worst point nearby, with one norm over all trained parameters.

    form: "plain" takes g(x + rho g(x) / |g(x)|); "adaptive" takes g(x + rho T T g(x) / |T g(x)|) with T = |x| + eta,
        entry by entry, so that the radius does not depend on the scale of the weights.

    Both passes see the same batch and the same dropout; running statistics are those of the first.

    Reference: Foret et al., "Sharpness-Aware Minimization", 2021, equation 2 and 3; Kwon et al., "ASAM", 2021, for the
    adaptive form.
    """
    return (Sam(rho, form, eta),) if rho else ()


def rewinder(device: torch.device) -> Callable[[], None]:
    """Return a function that sets torch's generator back to its present state."""
    if device.type == "cuda":
        state = torch.cuda.get_rng_state()
        return lambda: torch.cuda.set_rng_state(state)
    state = torch.random.get_rng_state()
    return lambda: torch.random.set_rng_state(state)


@dataclass(frozen=True)
class ControlVariate(Correction):
    """g(x) + control."""

    needs = CONTROL

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """Return the shifted gradient."""

        def shifted(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            g, info = grad(x, frozen, batch)
            control = aux[CONTROL]
            return g | add({k: g[k] for k in control if k in g}, control), info

        return shifted


def control_variate() -> Corrections:
    """Follow g(x) + control, for the names that the control variate has: Scaffold's c - c_i."""
    return (ControlVariate(),)


@dataclass(frozen=True)
class Proximal(Correction):
    """g(x) + strength (x - reference)."""

    strength: float
    split: bool
    needs = REFERENCE

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """Return the gradient with the pull, unless the pull is a step of its own."""

        def pulled(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            g, info = grad(x, frozen, batch)
            return add(g, self._away(x, aux), self.strength), info

        return grad if self.split else pulled

    def after_step(self, x: Tensors, aux: Aux, lr: float | Tensor) -> Tensors:
        """Return x - lr strength (x - reference), where the pull is a step of its own."""
        return add(x, self._away(x, aux), -lr * self.strength) if self.split else x

    def _away(self, x: Tensors, aux: Aux) -> Tensors:
        return sub(x, {k: aux[REFERENCE][k] for k in x})


@checked("function")
def proximal(strength: float, split: bool = False) -> Corrections:
    """Follow g(x) + strength (x - reference), which adds the gradient of (strength / 2) |x - reference|^2.

    split: the pull is a step of its own after each gradient step, x <- x - lr strength (x - reference).
    """
    return (Proximal(strength, split),) if strength else ()


@dataclass(frozen=True)
class FewSamples(Correction):
    """g of the first ``size`` samples for ``names``, g of all samples for the rest."""

    names: frozenset[str]
    size: int

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """Return both gradients together."""

        def both(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            u, v = split(x, self.names)
            exact, info = grad(v, frozen | u, batch)
            size = self.size
            mask = None if batch.mask is None else batch.mask[:size]
            few = batch._replace(x=rows(batch.x, slice(size)), y=batch.y[:size], mask=mask)
            noisy, seen = grad(u, frozen | v, few)
            return {k: (noisy | exact)[k] for k in x}, info._replace(unreached=info.unreached | seen.unreached)

        return both

    def passes(self, once: int, batches: Batches) -> int:
        """Add the first samples of every step, which go twice."""
        return once + int((batches.steps * np.minimum(batches.taken, self.size)).sum())


def few_samples(names: frozenset[str], size: int) -> Corrections:
    """Follow the gradient of the first ``size`` samples of a batch for ``names``, and of all samples for the rest.

    A batch of all samples of a client is shuffled anew in every step: its first samples are a random batch.
    """
    return (FewSamples(names, size),)


@dataclass(frozen=True)
class Debiased(Correction):
    """g(u / mu)."""

    shared: frozenset[str]
    needs = WEIGHT

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """Return the gradient at the ratio."""

        def at_ratio(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            mu = aux[WEIGHT]
            g, info = grad(debias(x, mu, self.shared), debias(frozen, mu, self.shared), batch)
            return g, info._replace(buffers=debias(info.buffers, 1 / mu, self.shared))

        return at_ratio


def debiased(shared: frozenset[str]) -> Corrections:
    """Follow g at u / mu: push-sum holds a biased numerator u, steps on it, and takes every gradient at the ratio.

    No factor 1/mu enters the step: the derivative is that of F at z = u / mu.
    """
    return (Debiased(shared),)


def debias(u: Tensors, mu: Tensor, shared: frozenset[str]) -> Tensors:
    """Return u / mu for the shared part of one client; personal and integer tensors stay."""
    return u | ratio(floating(split(u, shared)[0]), mu)


@dataclass(frozen=True)
class Masked(Correction):
    """x * mask after every step."""

    needs = MASK

    def after_step(self, x: Tensors, aux: Aux, lr: float | Tensor) -> Tensors:
        """Return x * mask."""
        return {k: v * aux[MASK][k] for k, v in x.items()}


def masked() -> Corrections:
    """Set x to zero where the mask is zero, after every step."""
    return (Masked(),)
