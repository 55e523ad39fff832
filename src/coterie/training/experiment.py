"""One experiment, ready to run round by round: who takes part, what they do, what is measured."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import measure
from ..algorithms.base import Algorithm, ModelGroup, Problem, Program, Round, Trained
from ..algorithms.bind import bind
from ..algorithms.traffic import Totals
from ..algorithms.update import model_groups, nobody_trains, submodel_of_each
from ..core.clients import OnDemand
from ..core.schema import TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN, Row
from ..core.tensors import Integers, Tensors, floating, pick, rows, split, tree_map
from ..data import Federation
from ..data.batches import Samples
from ..engines.base import Engine
from ..measure import CommonModel, Metrics
from ..measure.convergence import OWN_TRAIN
from ..measure.rows import Costs, ShardMeasures, joined
from ..models.cost import cost
from ..models.model import Model, products
from ..models.trials import drops_out, requires_batch
from ..store import flatten, unflatten
from ..store.checkpoint import Checkpoint
from .checks import check_asked
from .client import Client
from .initial_models import First, everybodys
from .schedule import Schedule
from .settings import RunSettings, options

AFTER_TRAIN = "measured/after_train"  # its name in a checkpoint


class RunState(NamedTuple):
    """The state of a method, and what was measured of it."""

    state: Any
    after_train: Tensor  # [n, metrics] of each client when it last trained; NaN before that
    values: Tensors | None = None  # [n, metrics] by protocol, if this round was evaluated; not saved


@dataclass(frozen=True)
class Experiment:
    """A model, its data, a program and an engine."""

    model: Model
    federation: Federation
    algorithm: Algorithm
    program: Program[Any]  # the algorithm, bound to this model and these clients
    engine: Engine
    metrics: Metrics  # what is measured of every model; the first one decides
    settings: RunSettings  # the options of the run
    shard: Integers | None = None  # the clients of this process, in ascending order; None: all
    first: First | None = None  # what each client begins with; None: everybody with the same model
    newcomers: Federation | None = None  # clients that come after the last round, if there are any

    @classmethod
    def of(
        cls,
        model: Model,
        federation: Federation,
        algorithm: Algorithm,
        engine: Engine,
        seed: int,
        rounds: int,
        **more: Any,
    ) -> "Experiment":
        """Build an experiment with the model as the algorithm wants it; ``more``: options beside seed and rounds."""
        settings = RunSettings(seed=seed, rounds=rounds, **more)
        metrics = measure.metrics_for(model, federation.sample(2), federation.y, settings.metrics)
        return cls.bound(algorithm.adapt(model), federation, algorithm, engine, metrics, settings=settings)

    @classmethod
    def bound(
        cls, model: Model, federation: Federation, algorithm: Algorithm, engine: Engine, metrics: Metrics, **fields: Any
    ) -> "Experiment":
        """Bind the algorithm to a ``model`` that it has adapted, and to the clients, unless a ``program`` is given."""
        settings: RunSettings = fields["settings"]
        problem = Problem(model, federation.clients, settings.rounds, settings.seed, shard=fields.get("shard"))
        program = fields.pop("program", None) or bind(algorithm, problem, settings.absences)
        return cls(model, federation, algorithm, program, engine, metrics, **fields)

    def changed(self, **changes: Any) -> "Experiment":
        """Return it with other fields or other options, and the algorithm bound again: to another shard or model."""
        chosen = {f.name: changes.pop(f.name) for f in options("typed") if f.name in changes and f.name != "engine"}
        e = replace(self, settings=self.settings.having(**chosen), **changes)
        more = {"settings": e.settings, "shard": e.shard, "first": e.first, "newcomers": e.newcomers}
        return Experiment.bound(e.model, e.federation, e.algorithm, e.engine, e.metrics, **more)

    def having(self, **chosen: Any) -> "Experiment":
        """Return it with other options, none of which changes what a round computes."""
        return replace(self, settings=self.settings.having(**chosen))

    @cached_property
    def train(self) -> Samples:
        """The training samples."""
        fed = self.federation
        return Samples(fed.x, fed.y, fed.train, fed.transform, names=fed.names)

    @cached_property
    def tests(self) -> Samples:
        """The clients' own test samples."""
        fed = self.federation
        return Samples(fed.test_x, fed.test_y, fed.test, fed.transform, names=fed.names)

    @cached_property
    def validation(self) -> Samples:
        """The clients' own validation samples, where they keep some."""
        return replace(self.train, owned=self.federation.validation)

    @cached_property
    def _flops(self) -> dict[nn.Module, int]:
        return {}

    def flops_per_sample(self, model: Model) -> int:
        """Count the forward and backward pass of one sample: three times the forward pass."""
        if model.module not in self._flops:
            self._flops[model.module] = 3 * cost(model.evaluation, self.federation.sample(2)).flops
        return self._flops[model.module]

    def forward_flops(self, r: Round) -> int:
        """Count one sample through every member's own submodel."""
        if self.program.submodels is None or not len(r.cohort):
            return len(r.cohort) * self.flops_per_sample(self.model) // 3
        each = ((a.submodel.model, len(a.places)) for a in self.program.submodels(r))
        return sum(count * self.flops_per_sample(model) for model, count in each) // 3

    @cached_property
    def dropout(self) -> bool:
        """Whether the model drops out, which two samples tell."""
        return drops_out(self.model, self.federation.sample(2))

    @cached_property
    def smallest_batch(self) -> int:
        """The samples that a step needs: two where the model takes statistics of a batch that one sample has not."""
        return 2 if requires_batch(self.model, self.federation.sample(1), self.federation.y[:1], training=True) else 1

    @cached_property
    def measurable(self) -> bool:
        """Whether there is a metric, and somebody has samples to try."""
        return bool(self.metrics.each) and bool(self.tests.sizes.any())

    def check(self) -> None:
        """Refuse what does not fit together or changes nothing, before anything is trained or written."""
        check_asked(self)
        self.round(0)

    @cached_property
    def local_clients(self) -> Integers:
        """The clients of this process, in the order of the state's rows."""
        return np.arange(self.federation.clients) if self.shard is None else self.shard

    def start(self) -> RunState:
        """Return the state before the first round."""
        program = self.program
        state = program.init(self.model.start, everybodys(self.first, self.model.start, self.local_clients))
        if program.prepare is not None:
            state = program.prepare(state, self.everybody(0))
        return RunState(state, self.unmeasured())

    def unmeasured(self) -> Tensor:
        """Return the metrics right after training of clients that never trained: NaN."""
        width = len(self.metrics.each) * (2 if OWN_TRAIN in self.settings.record else 1)
        return torch.full((len(self.local_clients), width), torch.nan, dtype=torch.float64)

    def saved(self, now: RunState) -> Tensors:
        """Return the state as a checkpoint holds it."""
        return flatten(now.state) | {AFTER_TRAIN: now.after_train.squeeze(1)}  # of one metric a number per client

    def restored(self, saved: Checkpoint) -> RunState:
        """Return the state that a checkpoint holds."""
        shape = self.program.init(self.model.start, everybodys(None, self.model.start, self.local_clients))
        return RunState(unflatten(shape, saved.tensors), saved.tensors[AFTER_TRAIN].cpu()[:, None].flatten(1))

    def round(self, t: int) -> Round:
        """Return round ``t``, counted from 0."""
        cohort = self.schedule.cohort(t)
        own = cohort if self.shard is None else cohort[np.isin(cohort, self.shard)]
        Ws = self.schedule.matrices(t, self.train.y.device)
        found = self.dropout, self.smallest_batch
        return Round(t, own, Ws, self.train, self.engine, self.settings.seed, cohort, self.local_clients, *found)

    def everybody(self, t: int) -> Round:
        """Return round ``t`` with all clients."""
        return replace(self.round(t), cohort=self.local_clients, global_cohort=np.arange(len(self.train.owned)))

    @cached_property
    def schedule(self) -> Schedule:
        """Who takes part when, and who mixes with whom."""
        p, clients = self.program, self.federation.clients
        exchange = p.topology, p.gossip_steps, p.fresh_graph, p.weight_stays_with
        return Schedule(clients, p.participation, self.settings, *exchange)

    def run_round(self, before: RunState, t: int, evaluate: bool) -> tuple[RunState, Row]:
        """Run round ``t``, and return its row of measurements."""
        now, part = self.run_shard_round(before, t, evaluate)
        values, row = joined([part], t, self.metrics, self.federation, self.program.finetune is not None)
        return now._replace(values=values), row

    def run_shard_round(self, before: RunState, t: int, evaluate: bool) -> tuple[RunState, ShardMeasures]:
        """Run round ``t`` of the local clients, and measure it."""
        r, began, p = self.round(t), self._now(), self.program
        with products(self.model.precision):  # mixing has all digits
            trained = p.train(before.state, r) if len(r.cohort) else nobody_trains(p, before.state, r)
        trained.check_finite(r)
        r = self.schedule.informed(r, trained) if p.topology and p.topology.uses else r
        state = self.program.exchange(before.state, trained, r)
        seconds = self._now() - began
        after_train = self.after_train_of(before.after_train, trained, r, evaluate)
        # The mean of all models has all digits in one process, and so has a server's; else shards send theirs around.
        exact = self.program.receiver_has is not None or (self.program.consensus is None and self.shard is None)
        one = self.consensus_model(state) if evaluate and (self.measurable or not exact) else None
        common = None
        if one is not None and self.measurable:
            common = measure.measure_common(self.engine, self.model, one, self.tests, self.local_clients, self.metrics)
        record = self.settings.record
        sent = Totals()
        if self.local_clients[0] == 0:  # the shard of the first client counts the messages of all shards
            sent = self.program.traffic(before.state, replace(r, cohort=r.global_cohort)).totals
        measures = ShardMeasures(
            local_clients=self.local_clients,
            cohort=r.cohort,
            loss=trained.loss.cpu(),
            steps=trained.steps.cpu(),
            costs=Costs(
                *(sent.bytes, sent.parameters, sent.messages, sent.busiest_up, sent.busiest_down),
                flops=sum(count * self.flops_per_sample(model) for model, count in trained.passes),
                forward_flops=self.forward_flops(r),
                seconds=seconds,
            ),
            distance=measure.consensus_distance(self.program.models(state), self.program.shared, None if exact else one)
            if evaluate
            else None,
            values=self.values(state, after_train, t, common) if evaluate else None,
            common=common,
            recorded=measure.record_columns(self, record, before.state, state) if evaluate and record else {},
        )
        costs = measures.costs._replace(evaluation_seconds=self._now() - began - seconds)
        return RunState(state, after_train), measures._replace(costs=costs)

    def consensus_model(self, state: Any) -> Tensors:
        """Return the one model that all clients agree on, over all shards: the method's own, or the mean of all."""
        consensus = self.program.consensus
        local = measure.averaged(self.program.models(state)) if consensus is None else consensus(state)
        return local if self.shard is None else local | self.engine.all_mean(floating(local), len(self.shard))

    def after_train_of(self, known: Tensor, trained: Trained, r: Round, evaluate: bool) -> Tensor:
        """Return each client's metrics right after its latest training.

        With partial participation a model is measured in its round, unless another follows before the evaluation.
        """
        rounds = (r.global_cohort, self.schedule.cohort(r.index + 1)) if self.settings.offline else (r.global_cohort,)
        everybody = all(len(cohort) == len(self.train.owned) for cohort in rounds)
        if not self.measurable or (everybody and not evaluate):
            return known
        latest = np.isin(r.cohort, r.cohort if everybody else self.schedule.final(r.index))
        for group in trained.groups or model_groups(self.model, None, trained.models, r):
            asked = np.flatnonzero(latest[group.places])
            if len(asked):
                who = r.cohort[group.places[asked]]
                models = group.models if len(asked) == len(group.places) else pick(group.models, asked)
                values = measure.personal_values(self.engine, group.model, models, self.tests, who, self.metrics)
                if OWN_TRAIN in self.settings.record:
                    values = torch.cat([values, own_train(self, group.model, models, who)], 1)
                known = known.index_copy(0, torch.from_numpy(np.searchsorted(self.local_clients, who)), values)
        return known

    def values(self, state: Any, after_train: Tensor, t: int, known: CommonModel | None = None) -> Tensors | None:
        """Return [m, metrics] of the local clients after round ``t``; one that never trained has what it was given."""
        if not self.measurable:
            return None
        groups = {"after_mix": self.groups(state, t)}
        if self.program.finetune is not None:
            groups[measure.FINETUNED] = self.program.finetune(state, self.everybody(t))
        trained, after_train = after_train, after_train[:, : len(self.metrics.each)]
        found = dict.fromkeys((*measure.PROTOCOLS, *groups), after_train)
        deployed = list(groups)[-1]  # what validation samples are for: the model that a client ends with
        with products(self.model.precision):  # fine-tuning is training
            for protocol, each in groups.items():
                tried = [(protocol, self.tests, known)]
                if protocol == deployed and self.federation.validation:
                    tried.append((measure.VALIDATION, self.validation, None))
                found |= {name: torch.full_like(after_train, torch.nan) for name, _, _ in tried}
                for g in each:
                    who = self.local_clients[g.places]
                    for name, samples, seen in tried:
                        asked = samples, who, self.metrics, seen
                        found[name][g.places] = measure.personal_values(self.engine, g.model, g.models, *asked)
        found["after_train"] = torch.where(after_train.isnan(), found["after_mix"], after_train)
        return found | (own_train_values(self, state, trained, t) if OWN_TRAIN in self.settings.record else {})

    def groups(self, state: Any, t: int) -> Iterator[ModelGroup]:
        """Yield what the local clients would deploy after round ``t``, each in the submodel it has in that round."""
        return model_groups(self.model, self.program.submodels, self.program.models(state), self.everybody(t))

    def clients(self, state: Any, t: int | None = None) -> Sequence[Client]:
        """Return the local clients' models after round ``t``, the last unless given, made when they are asked for."""
        return client_models(self, state, self.settings.rounds - 1 if t is None else t)

    def modules(self, t: int) -> list[Model]:
        """Return the model that each client has after round ``t``: the common one, or its submodel."""
        return submodel_of_each(self.model, self.program.submodels, self.everybody(t))

    def _now(self) -> float:
        if self.federation.y.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def own_train(e: "Experiment", model: Model, models: Tensors, clients: Integers) -> Tensor:
    """Return [m, metrics] of stacked models on their clients' training samples."""
    return measure.personal_values(e.engine, model, models, e.train, clients, e.metrics)


def own_train_values(e: "Experiment", state: Any, after_train: Tensor, t: int) -> Tensors:
    """Return [m, metrics] of the local clients after round ``t``, by protocol.

    ``after_train``: [m, 2 metrics] right after each client's latest training, on test samples and on training ones. A
    client that never trained has what it was given.
    """
    latest = after_train[:, len(e.metrics.each) :]
    mixed = torch.full_like(latest, torch.nan)
    with products(e.model.precision):
        for g in e.groups(state, t):
            mixed[g.places] = own_train(e, g.model, g.models, e.local_clients[g.places])
    return {TRAIN_AFTER_MIX: mixed, TRAIN_AFTER_TRAIN: torch.where(latest.isnan(), mixed, latest)}


def client_models(e: "Experiment", state: Any, t: int) -> Sequence[Client]:
    """Return the local clients' models after round ``t``, each made when it is asked for.

    They are those that the row of that round tells of. Their tensors are views of the stacked models, so that what all
    clients have is in memory once. A fine-tuned model is all personal.
    """
    finetune = e.program.finetune
    with products(e.model.precision):  # as it was measured
        groups = e.groups(state, t) if finetune is None else finetune(state, e.everybody(t))
        stacked = [group._replace(models=tree_map(on_cpu, group.models)) for group in groups]
    personal = None if finetune is not None else e.model.start.keys() - e.program.shared
    return viewed(stacked, personal, t)


def viewed(groups: Iterable[ModelGroup], personal: Collection[str] | None, t: int) -> Sequence[Client]:
    """Return the clients of stacked models after round ``t``; ``personal``: None where all is personal."""
    place: dict[int, tuple[ModelGroup, int, int]] = {}
    for number, group in enumerate(groups):
        place |= {client: (group, number, row) for row, client in enumerate(group.places.tolist())}

    def client(i: int) -> Client:
        group, number, row = place[i]
        apart = group.models.keys() if personal is None else {*personal, *group.private}
        own, common = split(rows(group.models, row), apart)
        alike = common and len(group.places) > 1 and all(group.models[k].stride(0) == 0 for k in common)
        return Client(common, own, group.model, same=(t, number) if alike else None)

    return OnDemand(len(place), client)


def on_cpu(v: Tensor) -> Tensor:
    """Return stacked values on the CPU; what is one value shown n times stays one."""
    return v[:1].cpu().expand_as(v) if v.stride(0) == 0 and len(v) else v.cpu()
