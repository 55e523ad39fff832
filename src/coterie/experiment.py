"""One experiment, ready to be played round by round: who takes part, what they do, what is measured."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from . import chance, measure
from .algorithms.base import Algorithm, Form, Problem, Program, Round, Trained
from .algorithms.quantised import quantised
from .batches import Integers, Samples
from .data import Federation
from .engines.base import Engine
from .errors import RequestError
from .measure.report import Row
from .models.cost import cost
from .problem import Model, products
from .run import Client
from .tensors import Tensors, finite, floating, rows, split
from .topology import silenced


class Progressed(NamedTuple):
    """What is carried from round to round."""

    state: Any
    after_train: Tensor  # [n] each client's accuracy when it last trained; NaN before that
    accuracies: Tensors | None = None  # [n] each client's, by protocol, if this round was evaluated; not saved


@dataclass(frozen=True)
class Experiment:
    """A model, its data, a program and an engine."""

    model: Model
    federation: Federation
    algorithm: Algorithm
    engine: Engine
    seed: int
    rounds: int
    silent: float = 0.0  # how likely a message between peers is dropped
    record: Sequence[str] = ()  # what is measured beside accuracies, costs and consensus: names of MEASURES

    @classmethod
    def of(
        cls,
        model: Model,
        federation: Federation,
        algorithm: Algorithm,
        engine: Engine,
        seed: int,
        rounds: int,
        silent: float = 0.0,
        record: Sequence[str] = (),
    ) -> "Experiment":
        """With the model as the algorithm wants it."""
        return cls(algorithm.adapt(model), federation, algorithm, engine, seed, rounds, silent, record)

    @cached_property
    def program(self) -> Program[Any]:
        """The algorithm, bound to this model and these clients."""
        problem = Problem(self.model, self.federation.clients, self.engine.gradient, self.rounds, self.seed)
        program = self.algorithm.bind(problem)
        bits = self.algorithm.settings.get("quantise")
        return program if bits is None else quantised(program, bits)

    @cached_property
    def train(self) -> Samples:
        """The training samples."""
        fed = self.federation
        return Samples(fed.x, fed.y, fed.train, fed.preparation)

    @cached_property
    def tests(self) -> Samples:
        """The clients' own test samples."""
        fed = self.federation
        return Samples(fed.test_x, fed.test_y, fed.test, fed.preparation)

    @cached_property
    def _known_flops(self) -> dict[nn.Module, int]:
        return {}

    def flops_a_sample(self, model: Model) -> int:
        """Forward and backward of one sample: three times the forward pass."""
        if model.module not in self._known_flops:
            self._known_flops[model.module] = 3 * cost(model.evaluation, self.federation.sample(2)).flops
        return self._known_flops[model.module]

    @property
    def measurable(self) -> bool:
        """Whether there are classes to get right, and samples to try."""
        return self.federation.classes is not None and len(self.federation.test_y) > 0

    def check(self) -> None:
        """Refuses what does not fit together, before anything is trained or written."""
        for name in self.record:
            measure.check_measure(name, self.model)
        if not 0 <= self.silent <= 1:
            raise RequestError(f"silent={self.silent} is out of range: it must be a probability between 0 and 1")
        if self.silent and self.program.topology is None:
            raise RequestError(
                f"silent={self.silent} is for clients that mix with each other, {self.algorithm.name} has a server: "
                "lower its participation instead"
            )
        self.round(0)

    def start(self) -> Progressed:
        """Before the first round."""
        n, program = self.federation.clients, self.program
        state = program.init(self.model.start, n)
        if program.prepare is not None:
            state = program.prepare(state, replace(self.round(0), cohort=np.arange(n)))
        return Progressed(state, torch.full((n,), torch.nan, dtype=torch.float64))

    def round(self, t: int) -> Round:
        """Round ``t``, counted from 0."""
        graph = self.program.topology
        W = None if graph is None else graph(t).to(self.federation.x.device)
        if W is not None and self.silent:
            W = silenced(W, self.silent, self.program.keeps, chance.generator(self.seed, "silent", t))
        return Round(t, self.cohort(t), W, self.train, self.engine, self.seed)

    def cohort(self, t: int) -> Integers:
        """Who takes part in round ``t``: drawn without replacement, in ascending order."""
        n, wanted = self.federation.clients, self.program.participation
        m = wanted if isinstance(wanted, int) else max(1, round(wanted * n))
        if not 1 <= m <= n:
            raise RequestError(f"participation={wanted} asks for {m} of {n} clients: use a fraction up to 1.0")
        if m == n:
            return np.arange(n)
        return np.sort(chance.generator(self.seed, "sample", t).choice(n, m, replace=False))

    def play(self, before: Progressed, t: int, evaluate: bool) -> tuple[Progressed, Row]:
        """Round ``t`` and its row of measurements."""
        r = self.round(t)
        began = self._now()
        with products(self.model.precision):  # mixing has all digits
            trained = self.program.train(before.state, r)
        check_finite(trained, r)
        state = self.program.exchange(before.state, trained, r)
        seconds = self._now() - began
        after_train = self._after_train(before.after_train, trained, r, evaluate)
        sent = self.program.traffic(before.state, r)
        known = trained.loss[trained.steps > 0]
        accuracies = self.accuracies(state, after_train, t) if evaluate else None
        row = {
            "round": t + 1,
            **self._evaluate(state, accuracies),
            "train_loss": float(known.mean()) if len(known) else None,
            "consensus_distance": self._consensus_distance(state),
            **self._recorded(state, evaluate),
            "bytes_sent": sent.bytes,
            "parameters_sent": sent.parameters,
            "messages_sent": sent.messages,
            "flops": sum(count * self.flops_a_sample(model) for model, count in trained.passes),
            "seconds": seconds,
        }
        return Progressed(state, after_train, accuracies), row

    def _consensus_distance(self, state: Any) -> float | None:
        program = self.program
        centre = None if program.consensus is None else program.consensus(state)
        return measure.consensus_distance(program.models(state), program.shared, centre)

    def _recorded(self, state: Any, evaluate: bool) -> Row:
        """What was asked for, in the rounds that are evaluated."""
        return {k: v for name in self.record if evaluate for k, v in measure.MEASURES[name](self, state).items()}

    def _after_train(self, known: Tensor, trained: Trained, r: Round, evaluate: bool) -> Tensor:
        """Each client's accuracy right after its latest training.

        Where only some take part, each cohort is measured in its own round: its trained models are gone afterwards.
        """
        everybody = len(r.cohort) == self.federation.clients
        if not self.measurable or (everybody and not evaluate):
            return known
        for form in trained.forms or (Form(np.arange(len(r.cohort)), self.model, trained.models),):
            who = r.cohort[form.places]
            accuracies = measure.personal_accuracies(self.engine, form.model, form.models, self.tests, who)
            known = known.index_copy(0, torch.from_numpy(who), accuracies)
        return known

    def accuracies(self, state: Any, after_train: Tensor, t: int) -> Tensors | None:
        """[n] every client's accuracy after round ``t``, by protocol; one that never trained has what it was given."""
        if not self.measurable:
            return None
        with products(self.model.precision):
            mixed = self._accuracies(self.program.models(state))
            tuned = self._finetuned(state, t)
            extra = {} if tuned is None else {measure.FINETUNED: self._accuracies(tuned)}
        return {"after_mix": mixed, "after_train": torch.where(after_train.isnan(), mixed, after_train), **extra}

    def _evaluate(self, state: Any, accuracies: Tensors | None) -> Row:
        """The accuracies of a round over the clients, and that of the one model they agree on."""
        if accuracies is None:
            return measure.unmeasured(self.program.finetune is not None)
        consensus = self.program.consensus
        agreed = measure.averaged(self.program.models(state)) if consensus is None else consensus(state)
        with products(self.model.precision):
            common = measure.global_accuracy(self.model, agreed, self.tests)
        over_clients = {k: v for p, each in accuracies.items() for k, v in measure.accuracy_row(p, each).items()}
        return {**over_clients, "global_accuracy": common}

    def _accuracies(self, models: Tensors) -> Tensor:
        everyone = np.arange(self.federation.clients)
        return measure.personal_accuracies(self.engine, self.model, models, self.tests, everyone)

    def _finetuned(self, state: Any, t: int) -> Tensors | None:
        """Everybody's model after fine-tuning, where the method has it; the state stays as it is."""
        if self.program.finetune is None:
            return None
        return self.program.finetune(state, replace(self.round(t), cohort=np.arange(self.federation.clients)))

    def clients(self, state: Any) -> list[Client]:
        """Every client's own model, in memory of its own; one that was fine-tuned is its own in all parts."""
        tuned = self._finetuned(state, max(0, self.rounds - 1))  # the models whose accuracy the last row tells
        models, shared = (self.program.models(state), self.program.shared) if tuned is None else (tuned, frozenset())
        out = []
        for i in range(self.federation.clients):
            own = {k: v.cpu().clone() for k, v in rows(models, i).items()}
            out.append(Client(*split(own, shared), self.model))
        return out

    def _now(self) -> float:
        if self.federation.x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def check_finite(trained: Trained, r: Round) -> None:
    """Stops before a diverged client spoils the others."""
    models = floating(trained.models) or trained.sent
    total = torch.stack([v.sum() for v in (*models.values(), trained.loss[trained.steps > 0])]).sum()
    if bool(total.isfinite()):  # a NaN or an infinity would show in the sum: one pass in the usual case
        return
    lost = ~trained.loss.isfinite() & (trained.steps > 0)
    bad = lost | ~finite(models)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        what = "loss" if bool(lost[first]) else "model"
        raise RequestError(
            f"the {what} of client {int(r.cohort[first])} is not finite any more in round {r.index + 1}: "
            "lower lr, or set clip; every round before it is kept"
        )
