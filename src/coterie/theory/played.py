"""The rounds of the package itself, from which everything is measured."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithms.base import Algorithm, Program
from ..core.tensors import Tensors
from ..data import Federation
from ..engines import Serial
from ..local.corrections import Sam
from ..measure import averaged
from ..models.model import Model
from ..training.experiment import Experiment
from ..training.select_engine import select_engine
from .quadratic import ClientObjectives, local_steps


def experiment_of(model: Model, federation: Federation, algorithm: Algorithm, rounds: int, seed: int) -> Experiment:
    """One experiment on the engine that suits it."""
    experiment = Experiment.of(model, federation, algorithm, Serial(), seed, rounds)
    engine = select_engine("auto", experiment.model, federation, experiment.program, rounds, federation.clients).engine
    experiment = replace(experiment, engine=engine)
    experiment.check()
    return experiment


def states(experiment: Experiment) -> Iterator[Any]:
    """The state before the first round and after every one."""
    now = experiment.start()
    yield now.state
    for t in range(experiment.rounds):
        now, _ = experiment.run_round(now, t, evaluate=False)
        yield now.state


class PhaseFacts(NamedTuple):
    """How a part of the model is trained in a round."""

    lr: float
    steps: int  # of every client
    rho: float  # the radius of its sharpness-aware steps; 0: they are plain
    exact: bool  # every step sees all samples of the client


class Bound(NamedTuple):
    """The method that a theorem speaks of, bound to the problem.

    What all methods have is read from the program; ``settings`` are for what the theorem itself names and no other
    method has, such as outer rates.
    """

    name: str
    program: Program[Any]
    settings: dict[str, Any]

    def part(self, name: str) -> PhaseFacts:
        """How the parameter of that name is trained."""
        t = self.program.training
        phase = next(p for p in self.program.phases if name in p.trains)
        own = phase.group is not None and name in phase.group.names
        lr = phase.group.lr if own and phase.group is not None else phase.lr
        rho = next((c.rho for c in phase.corrections if isinstance(c, Sam)), 0.0)
        return PhaseFacts(float(lr), local_steps(phase.amount, t.batch_size), rho, phase.full_batch)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None: all of a client."""
        return self.program.training.batch_size


class Path(NamedTuple):
    """Where a run on the quadratic problem has passed, before the first round and after every one."""

    w: Tensor  # [T + 1, n, 2d] every client's model (u_i, v_i)
    center: Tensor  # [T + 1, 2d] what they agree on: the mean model, or push-sum's mean numerator

    @property
    def dim(self) -> int:
        """Of the shared part, and of the personal one."""
        return self.w.shape[2] // 2

    def with_shared(self, u: Tensor, v: Tensor) -> Tensor:
        """[T, n, 2d] the points with the shared part ``u`` [T, d] for everybody and the personal parts of ``v``."""
        return torch.cat([u[:, None].expand(-1, v.shape[1], -1), v[..., self.dim :]], 2)


def path(problem: ClientObjectives, algorithm: Algorithm, rounds: int, seed: int) -> Path:
    """A run of ``rounds`` rounds on the quadratic problem."""
    experiment = experiment_of(problem.model, problem.federation, algorithm, rounds, seed)
    program = experiment.program
    w, center = [], []
    for state in states(experiment):
        models = program.models(state)
        w.append(_vector(models, 1))
        agreed = averaged(models) if program.consensus is None else program.consensus(state)
        center.append(_vector(agreed, 0))
    return Path(torch.stack(w), torch.stack(center))


def _vector(x: Tensors, axis: int) -> Tensor:
    return torch.cat([x["u"], x["v"]], axis)
