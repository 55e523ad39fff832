"""Runs of the package itself on small problems, from which everything is measured."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...algorithms.base import Algorithm, Program
from ...data import Federation
from ...local.corrections import Sam
from ...measure import averaged
from ...models.model import Model
from ...training.experiment import Experiment
from ...training.prepare import prepare
from ...training.settings import RunSettings
from .outcome import Condition
from .quadratic import QuadraticProblem, local_steps


def experiment_of(model: Model, federation: Federation, algorithm: Algorithm, rounds: int, seed: int) -> Experiment:
    """Return the experiment on the engine that suits it."""
    return prepare(model, federation, algorithm, RunSettings(rounds=rounds, seed=seed, device="cpu")).experiment


class PhaseFacts(NamedTuple):
    """How a part of the model is trained in a round."""

    lr: float
    steps: int  # of every client
    rho: float  # the radius of its sharpness-aware steps; 0: they are plain
    exact: bool  # every step sees all samples of the client


class Noisy(Protocol):
    """A problem whose samples have noise."""

    def variance(self, batch_size: int | None, replacement: bool) -> float:
        """Return sigma^2 of a batch."""


class BoundMethod(NamedTuple):
    """The method that a theorem is about, bound to the problem.

    What all methods have is read from the program; ``settings`` are for what the theorem itself names and no other
    method has, such as outer rates.
    """

    name: str
    program: Program[Any]
    settings: dict[str, Any]

    def part(self, name: str) -> PhaseFacts:
        """Return how the parameter of that name is trained."""
        phase = next(p for p in self.program.phases if name in p.trains)
        lr = phase.group.lr if phase.group is not None and name in phase.group.names else phase.lr
        rho = next((c.rho for c in phase.corrections if isinstance(c, Sam)), 0.0)
        return PhaseFacts(float(lr), local_steps(phase.amount, self.batch_size), rho, phase.full_batch)

    @property
    def plain_sam(self) -> Condition:
        """The condition that a step climbs by its radius; in the adaptive form the distance grows with the weights."""
        steps = (c for phase in self.program.phases for c in phase.corrections if isinstance(c, Sam))
        return Condition("SAM climbs by rho g / |g|", all(c.form == "plain" for c in steps), "take sam=plain")

    def variance(self, problem: "Noisy") -> float:
        """Return sigma^2 of a batch of the method."""
        return problem.variance(self.batch_size, self.program.training.replacement)

    @property
    def batch_size(self) -> int | None:
        """The samples in a batch; None: all of a client."""
        return self.program.training.batch_size


class Trajectory(NamedTuple):
    """The points of a run on the quadratic problem, before the first round and after every one."""

    w: Tensor  # [T + 1, n, 2d] every client's model (u_i, v_i)
    center: Tensor  # [T + 1, 2d] what they agree on: the mean model, or push-sum's mean numerator

    @property
    def dim(self) -> int:
        """The dimension of the shared part, and of the personal one."""
        return self.w.shape[2] // 2

    def with_shared(self, u: Tensor, v: Tensor) -> Tensor:
        """Return points [T, n, 2d] with the shared part ``u`` [T, d] for everybody and the personal parts of ``v``."""
        return torch.cat([u[:, None].expand(-1, v.shape[1], -1), v[..., self.dim :]], 2)


Runs = Sequence[Trajectory]
"""One run per seed."""


def run_trajectory(problem: QuadraticProblem, algorithm: Algorithm, rounds: int, seed: int) -> Trajectory:
    """Run ``rounds`` rounds on the quadratic problem."""
    experiment = experiment_of(problem.model, problem.federation, algorithm, rounds, seed)
    program, now = experiment.program, experiment.start()
    w, center = [], []
    for t in range(rounds + 1):
        models = program.models(now.state)
        common = averaged(models) if program.consensus is None else program.consensus(now.state)
        w.append(torch.cat([models["u"], models["v"]], 1))
        center.append(torch.cat([common["u"], common["v"]]))
        if t < rounds:
            now, _ = experiment.run_round(now, t, evaluate=False)
    return Trajectory(torch.stack(w), torch.stack(center))
