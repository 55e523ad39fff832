"""Select an engine for a run from the model's cost, the free memory, and the first steps on trial."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import Parameter
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..algorithms.base import ModelGroup, Program, Round
from ..algorithms.options import Training
from ..algorithms.update import model_groups
from ..core import memory
from ..core.annotations import PositiveInt
from ..core.errors import UserError, unknown
from ..core.rng import torch_draws
from ..core.spec import bind, parse
from ..core.tensors import replicate, size_in_bytes, split, tree_map
from ..data import Federation
from ..data.batches import Amount, Batch, Batches
from ..engines.base import Engine
from ..engines.graphed import Graphed
from ..engines.serial import Serial
from ..engines.vectorized import Vectorized
from ..engines.watch import WatchDraws
from ..local.steps import Correction, Phase
from ..measure.evaluate import sample_statistics
from ..models.cost import Cost, cost
from ..models.model import Model
from ..models.trials import draws_randomness, is_known_code, padding_matters, runs_known_code
from .checks import PROBE, check_room, probe_of
from .experiment import Experiment
from .initial_models import everybodys

Attempt = Callable[[Engine], object]
"""Takes the first steps on an engine; raises what the run would raise there."""


@dataclass(frozen=True)
class FirstSteps(Round):
    """A round in which every phase has one step."""

    def batches(self, stream: int, amount: Amount, batch_size: int | None, replacement: bool = False) -> Batches:
        """Return the first batch of every member."""
        return super().batches(stream, Amount(steps=1), batch_size, replacement)


def first_steps(e: Experiment, engine: Engine) -> FirstSteps:
    """Return the first steps of the two largest clients: one without samples would try nothing.

    Where clients are unequal, one of them has a sample less, so that a batch is padded as it will be.
    """
    two, sizes = np.sort(np.argsort(-e.train.sizes, kind="stable")[:2]), e.train.sizes
    few = min(PROBE, e.program.training.batch_size or PROBE)
    owned = [e.train.owned[0][:0]] * len(sizes)
    for place, client in enumerate(two):
        owned[client] = e.train.owned[client][: few - (place if few > 2 and sizes.min() < sizes.max() else 0)]
    samples, everybody = replace(e.train, owned=tuple(owned)), np.arange(len(sizes))
    return FirstSteps(
        0, two, e.round(0).Ws, samples, engine, e.settings.seed, everybody, two, e.dropout, e.smallest_batch
    )


def take_first_steps(e: Experiment, engine: Engine) -> None:
    """Let two clients train one step of every phase, tune one and be evaluated, each on a few of its own samples.

    They have what they would begin with, so that an engine sees what it will see, one model for all or one for each.
    """
    r = first_steps(e, engine)
    two, samples, start = r.cohort, r.samples, e.model.start
    program, state = _begun(e, r)
    before, after = program.models(state), program.train(state, r).models
    common = [k for k in e.model.parameters if k in after]  # a submodel may have names of its own
    if all(torch.equal(before[k], after[k]) for k in common):
        check_reached(e.model, e.federation)
    groups = [ModelGroup(np.arange(len(two)), e.model, replicate(start, len(two)))]  # as one model is evaluated
    groups += model_groups(e.model, program.submodels, program.models(state), r)
    groups += () if program.finetune is None else program.finetune(state, r)
    for group in groups if e.measurable else ():
        sample_statistics(engine, group.model, group.models, samples, two[group.places], e.metrics)


def _begun(e: Experiment, r: Round) -> tuple[Program[Any], Any]:
    """Return what a method does for the clients of a round, and the state that they begin with."""
    program, start = e.changed(shard=r.cohort).program, e.model.start
    state = program.init(start, everybodys(e.first, start, r.cohort))
    return program, state if program.prepare is None else program.prepare(state, r)


def parts_of(phase: Phase, t: Training) -> tuple[object, ...]:
    """Return what a step of a phase runs besides the model and its loss."""
    return (*phase.corrections, t.optimizer_of(phase))


def check_corrections(e: Experiment) -> None:
    """Refuse corrections and optimizers of one's own that go another way the next time: engines ask once for many.

    Two clients take their first steps twice. What torch draws is the same each time.
    """
    t = e.program.training
    own = [part for phase in e.program.phases for part in parts_of(phase, t) if not is_known_code(part)]
    if not own:
        return
    r = first_steps(e, Serial(e.federation.y.device))
    program, state = _begun(e, r)
    first, second = (program.train(state, r).models for _ in range(2))
    if any(not torch.allclose(v, second[k], rtol=1e-3, atol=1e-5, equal_nan=True) for k, v in first.items()):
        names = ", ".join(sorted({type(part).__name__ for part in own}))
        one, fix = "one of the corrections", "let it look up in aux what it needs"
        if not any(isinstance(part, Correction) for part in own):
            one, fix = "the optimizer", "let it carry in its state what it needs"
        raise UserError(
            f"the same steps end elsewhere when they are taken again, so {one} {names} keeps something that all "
            f"clients would share, or draws elsewhere than from torch: {fix}, and draw with torch"
        )


def check_reached(model: Model, federation: Federation) -> None:
    """Refuse a loss that depends on no parameter; an error of autograd would say so without a way out."""
    x = {k: model.start[k].detach().requires_grad_() for k in model.parameters}
    batch = Batch(federation.sample(2), federation.y[:2].clone(), None)
    with torch_draws(device=batch.y.device):
        loss, _ = model.objective(x, split(model.start, model.buffers)[0], batch)
    if not loss.requires_grad:
        raise UserError(
            "the loss depends on no parameter of the model: compute its outputs without torch.no_grad, detach or argmax"
        )


_CHUNK = Parameter("chunk", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=PositiveInt)
# The engines and what is typed behind their names, as in vectorized:16; ray has one of these on every worker.
TAKES: dict[str, dict[str, Parameter]] = {
    "auto": {},
    "serial": {},
    "vectorized": {"chunk": _CHUNK},
    "graphed": {"chunk": _CHUNK},
}

# Above this many multiply-adds a step, a CPU runs per-client convolutions faster one client at a time: measured
# 0.6 ms against 1.0 ms a client-step for vmap and loop at 1.5 million, 22 ms against 19 ms at 210 million.
CONVOLUTIONS_PAY_BELOW = 20_000_000

# Above this many multiply-adds a step one client fills a GPU, and side by side its convolutions only get slower:
# measured 4.9 ms against 2.8 ms a client-step for ResNet-18 (70 billion), 0.09 against 0.3 ms for a CNN (0.6 billion).
FILLS_A_GPU = 5_000_000_000
# More clients side by side on a CPU gain nothing and take memory: measured 17, 14 and 14 us a client-step of logistic
# regression for 1,000, 2,000 (half a gigabyte) and 10,000 at once.
WORKING_SET = 512 * 2**20
BUILDING_PAYS_FROM = 2_000  # client-steps: building a program takes up to a minute
# Clients under way at a time where one fills the GPU, but not in every kernel: measured 3.0, 2.5 and 2.4 ms per
# client-step of ResNet-18 for 1, 2 and 3, and 2.8, 2.1 and 1.8 ms for a low-rank one. With 4, rounds are 8 % longer.
LANES = 3
ONE_BY_ONE = "clients train one after another, on the serial engine"


class Choice(NamedTuple):
    """An engine and why it was taken."""

    engine: Engine
    reason: str
    warning: str | None = None  # why clients do not run as fast as they could


class Work(NamedTuple):
    """What an engine is wanted for."""

    clients: int
    batch_size: int  # of a training step
    steps: int  # about how many steps all clients make in the whole run


def select_engine(engine: str, experiment: Experiment, clients: int) -> Choice:
    """Select the engine that a text asks for, to run so many of the clients."""
    check_room(experiment, clients)
    check_corrections(experiment)
    federation, program = experiment.federation, experiment.program
    largest = int(federation.sizes.max())
    whole = any(phase.full_batch for phase in program.phases)
    batch = largest if whole else min(program.training.batch_size or largest, largest)
    per_epoch, first = np.full(1, -(-largest // batch)), np.zeros(1, np.int64)
    steps = sum(int(phase.amount.of(per_epoch, first, federation.clients)[0]) for phase in program.phases)
    work = Work(clients, batch, experiment.settings.rounds * clients * steps)
    attempt = partial(take_first_steps, experiment)
    parts = tuple(part for phase in program.phases for part in parts_of(phase, program.training))
    return choose(
        engine,
        Candidate(experiment.model, probe_of(federation), federation.y, work, federation.y.device, attempt, parts),
    )


def choose(text: str, candidate: "Candidate") -> Choice:
    """Return the engine a text asks for; ``auto`` decides by the model's cost."""
    spec = parse(text)
    if spec.name not in TAKES:
        raise unknown("engine", spec.name, TAKES)
    given = bind("engine", spec, TAKES[spec.name]).get("chunk")
    if spec.name == "serial":
        return candidate.serial("as asked")
    if spec.name == "graphed":
        return candidate.graphed(given)
    if spec.name == "vectorized":
        return candidate.vectorized(given)
    return candidate.automatic()


@dataclass(frozen=True)
class Candidate:
    """A model that an engine is wanted for; what is found by trying is found once."""

    model: Model
    probe: Batch  # a few real samples
    targets: Tensor  # of all samples
    work: Work
    device: torch.device
    attempt: Attempt  # takes the first steps of the run on an engine
    parts: tuple[object, ...] = ()  # what steps of all phases run besides the model: corrections and optimizers

    @cached_property
    def price(self) -> Cost:
        """The cost of one sample."""
        return cost(self.model.evaluation, tree_map(lambda v: v[:2].clone(), self.probe.x))

    @cached_property
    def exact(self) -> bool:
        """Whether batches must not be padded."""
        return padding_matters(self.model, self.probe, self.targets)

    @cached_property
    def draws(self) -> bool:
        """Whether a step lets torch draw random numbers: the model, the loss, or a part that is not ours."""
        watch = WatchDraws()
        if not all(map(is_known_code, self.parts)):
            with watch:
                self.attempt(Serial(self.device))
        return watch.drawn or draws_randomness(self.model, self.probe)

    @cached_property
    def cannot_lift(self) -> str | None:
        """Why the model cannot run for many clients at once, if it cannot: two are tried."""
        try:
            self.attempt(Vectorized(2, self.exact, self.device, traced=False))
        except Exception as error:
            return f"this model cannot be vectorized ({(str(error) or repr(error)).strip().splitlines()[0][:120]})"
        return None

    @cached_property
    def cannot_record(self) -> str | None:
        """Why a step of the model cannot be recorded, if it cannot."""
        if self.device.type != "cuda":
            return "the graphed engine records what a GPU does, and this is a CPU"
        if self.cannot_lift is None and self.draws:
            return "a step draws random numbers, which a recorded one would repeat"
        return self.cannot_lift

    def automatic(self) -> Choice:
        """Return the engine that is the fastest of those that can run the model."""
        pays = self.work.steps >= BUILDING_PAYS_FROM
        if self.cannot_record is None and pays:
            return self.graphed(None)
        if alone := self.better_alone():
            found = self.serial(alone)
        elif self.cannot_lift:
            found = self.serial(self.cannot_lift)._replace(warning=f"{self.cannot_lift}: {ONE_BY_ONE}")
        else:
            found = self.vectorized(None)
        if self.device.type == "cuda" and pays:
            slower = f"clients run on the {found.engine.name} engine, which is slower"
            return found._replace(warning=f"the GPU is not used well: {self.cannot_record}; {slower}")
        return found

    def graphed(self, given: int | None) -> Choice:
        """Return the graphed engine with the chunk that was given, or one that fits."""
        if self.cannot_record:
            self.refuse(f"{self.cannot_record}: use the vectorized or the serial engine")
        alone, fits = self.price.macs * self.work.batch_size > FILLS_A_GPU, self.chunk()
        chunk = given or (1 if alone else fits)
        why = "a client's step fills the GPU" if chunk == 1 else f"{chunk} clients at once fit the free memory"
        return Choice(Graphed(chunk, self.exact, self.device, lanes=min(LANES, fits) if chunk == 1 else 1), why)

    def vectorized(self, given: int | None) -> Choice:
        """Return the vectorized engine with the chunk that was given, or one that fits."""
        if self.cannot_lift:
            self.refuse(f"{self.cannot_lift}: use the serial engine")
        chunk = given or self.chunk(WORKING_SET if self.device.type == "cpu" else None)
        traced = self.device.type == "cpu" and runs_known_code(self.model, *self.parts)
        return Choice(Vectorized(chunk, self.exact, self.device, traced), f"{chunk} clients at once fit the memory")

    def serial(self, reason: str) -> Choice:
        """Return an engine for as many clients at a time as cores and memory allow; few have several cores each."""
        self.attempt(Serial(self.device))
        cores = torch.get_num_threads()
        if self.device.type != "cpu" or self.draws:
            return Choice(Serial(self.device), reason)
        return Choice(Serial(self.device, min(cores, self.chunk()), max(1, cores // self.work.clients)), reason)

    def refuse(self, sentence: str) -> NoReturn:
        """Refuse an engine; what a plain loop raises too is an error of the model or of the loss, and is raised."""
        self.attempt(Serial(self.device))
        raise UserError(sentence)

    def better_alone(self) -> str | None:
        """Say why a loop is faster, if it is."""
        macs = self.price.macs * self.work.batch_size
        if self.work.clients == 1:
            return "there is one client"
        if self.device.type == "cpu" and self.price.convolutional and macs > CONVOLUTIONS_PAY_BELOW:
            return "large convolutions run faster one client to a core on a CPU"
        if self.device.type == "cuda" and self.price.convolutional and macs > FILLS_A_GPU:
            return "a client's step fills the GPU, and the run is too short to build a program"
        return None

    def chunk(self, limit: int | None = None) -> int:
        """Return how many clients fit half of the free memory, and the limit, in bytes.

        A client holds its model about six times over (weights, gradient, momentum, the next of each) and the
        activations of a batch about three times (forward, backward, scratch).
        """
        tensors = self.model.start.values()
        width = next(iter(tensors)).element_size()
        need = 6 * size_in_bytes(tensors) + 3 * width * self.price.activations * self.work.batch_size
        room = free_memory(self.device) // 2
        return max(1, min(self.work.clients, (room if limit is None else min(room, limit)) // max(need, 1)))


def free_memory(device: torch.device) -> int:
    """Return the bytes that can be taken now; on a GPU also what an earlier run of this process has left behind.

    Recordings and what they were made for refer to each other, and torch keeps memory that was freed.
    """
    if device.type != "cuda":
        return memory.free_memory()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
