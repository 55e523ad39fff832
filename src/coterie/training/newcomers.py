"""Clients who come later: they get what the others have learned together, and train the part that is their own.

A newcomer begins with the one model that all agree on: the server's, or the mean of all models. Then it trains what the
method leaves to its clients, with everything else frozen: its personal part for as long as a round trains that. Where
clients fine-tune before they are measured, it does that; where nothing or everything of a model is a client's own, it
tunes the whole model for as long as a round trains it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from ..algorithms.base import ModelGroup, Problem, Program, Round
from ..algorithms.bind import bind, finetuned
from ..algorithms.options import Training
from ..algorithms.update import LocalUpdate, chunks
from ..core import rng
from ..core.errors import UserError
from ..core.schema import Newcomers, NewcomerSummary
from ..core.tensors import Integers, Tensors, replicate, rows
from ..data import Federation
from ..data.batches import Amount
from ..local.steps import Phase
from ..measure import averaged, personal_values
from ..measure.rows import finite
from ..models.model import products
from ..store import unflatten
from .experiment import Experiment
from .initial_models import everybodys


def hold_out(federation: Federation, asked: float | int, seed: int) -> tuple[Federation, Federation | None]:
    """Return the clients that take part and those that come later, a fraction or a number of all, drawn by the seed."""
    n = federation.clients
    count = asked if isinstance(asked, int) else max(1, round(asked * n)) if asked else 0
    if not count:
        return federation, None
    if count >= n:
        raise UserError(f"holdout_clients={asked} keeps {count} of {n} clients out of training: keep fewer out")
    later = rng.generator(seed, "newcomers").permutation(n)[:count]
    stay = np.isin(np.arange(n), later)
    return federation.of_clients(np.flatnonzero(~stay)), federation.of_clients(np.flatnonzero(stay))


def shares(e: Experiment) -> bool:
    """Return whether the method has anything that a newcomer could be given."""
    return bool(e.program.message(e.model.start)) or bool(e.program.shared)


def received(e: Experiment, final: Tensors, clients: int) -> Tensors:
    """Return the one model that all clients of a run agree on; ``final``: the state that was saved last."""
    shape = e.program.init(e.model.start, everybodys(None, e.model.start, np.arange(clients)))
    state = unflatten(shape, final)
    one: Tensors = averaged(e.program.models(state)) if e.program.consensus is None else e.program.consensus(state)
    return one


def personalized(
    e: Experiment, common: Tensors, newcomers: Federation, epochs: int | None = None
) -> Iterator[ModelGroup]:
    """Yield the newcomers' own models, some at a time; ``epochs``: instead of as many as in a round of the method."""
    there = replace(e, federation=newcomers, shard=None)
    groups = _personalized(there, begun(there, common), epochs)
    while True:
        with products(e.model.precision):  # not while the caller has a group: it may never come back for the next one
            group = next(groups, None)
        if group is None:
            return
        yield group


def _personalized(e: Experiment, models: Tensors, epochs: int | None) -> Iterator[ModelGroup]:
    problem, r = Problem(e.model, e.federation.clients, e.settings.rounds, e.settings.seed), _arrival(e)
    if e.program.training.finetune_epochs and epochs is None:
        tune = finetuned(e.program._replace(models=lambda s: s, submodels=None), problem).finetune
        assert tune is not None
        yield from tune(models, r)
        return
    work = LocalUpdate(problem, [personal_phase(e.program, e.model.parameters, epochs)], _steady(e.program))
    for some in chunks(r.cohort, e.model):
        done = work.run(replace(r, cohort=r.cohort[some]), rows(models, some))
        yield ModelGroup(r.cohort[some], e.model, done.models)


def begun(e: Experiment, common: Tensors) -> Tensors:
    """Return [k, ...] what newcomers begin with; a method that prepares its clients prepares them, too."""
    models: Tensors = replicate(common, e.federation.clients)
    if e.program.prepare is None:
        return models
    own = bind(e.algorithm, Problem(e.model, e.federation.clients, e.settings.rounds, e.settings.seed))
    assert own.prepare is not None
    return own.models(own.prepare(own.init(common, models), _arrival(e)))


def personal_phase(program: Program[Any], parameters: tuple[str, ...], epochs: int | None = None) -> Phase:
    """Return what a newcomer trains: its personal part as the method does, or the whole model."""
    own, t = frozenset(parameters) - program.shared, program.training
    main = Phase(frozenset(parameters), t.amount, t.lr)
    found = next((phase for phase in program.phases if phase.trains & own), main)
    if own and program.shared:
        apart = found.group is not None and bool(found.group.names & own)
        lr = float(found.group.lr) if apart and found.group is not None else found.lr
        main = Phase(own, found.amount, lr, stream=found.stream, full_batch=found.full_batch, optimizer=found.optimizer)
    return main if epochs is None else replace(main, amount=Amount(epochs=epochs))


def own_names(program: Program[Any], names: Iterable[str], epochs: int | None = None) -> frozenset[str]:
    """Return the names of what is a newcomer's own in the end: its personal part, or all that it has tuned."""
    everything, own = frozenset(names), frozenset(names) - program.shared
    tuned = program.training.finetune_epochs and epochs is None
    return own if own and program.shared and not tuned else everything


def _steady(program: Program[Any]) -> Training:
    """Return the method's training with rates that stay as they are at first: a newcomer has no rounds."""
    return program.training.steady()


def _arrival(e: Experiment) -> Round:
    """Return the round after the last one, in which newcomers alone take part."""
    everybody: Integers = np.arange(e.federation.clients)
    found = e.dropout, e.smallest_batch
    return Round(e.settings.rounds, everybody, (), e.train, e.engine, e.settings.seed, everybody, everybody, *found)


def newcomer_summary(e: Experiment, final: Tensors) -> Newcomers | None:
    """Return what the clients get that were kept out of training; ``final``: the state after the last round."""
    newcomers = e.newcomers
    if newcomers is None:
        return None
    there = replace(e, federation=newcomers, shard=None)
    none: list[float | None] = [None] * newcomers.clients
    found: Newcomers = {
        "names": list(newcomers.names),
        "train_samples": there.train.sizes.tolist(),
        "test_samples": there.tests.sizes.tolist(),
        "received": none,
        "personalized": none,
    }
    if not shares(e) or not there.measurable:
        return found
    common = received(e, final, e.federation.clients)
    everybody = np.arange(newcomers.clients)
    as_it_is = ModelGroup(everybody, e.model, begun(there, common))
    return {
        **found,
        "received": measured(there, iter([as_it_is])),
        "personalized": measured(there, personalized(e, common, newcomers)),
    }


def measured(e: Experiment, groups: Iterator[ModelGroup]) -> list[float | None]:
    """Return the metric that decides of every newcomer's model on its own test samples."""
    found = torch.full((e.federation.clients,), torch.nan, dtype=torch.float64)
    for g in groups:
        found[g.places] = personal_values(e.engine, g.model, g.models, e.tests, g.places, e.metrics)[:, 0]
    return [finite(value) for value in found]


def mean_over(newcomers: Newcomers) -> NewcomerSummary:
    """Return the means over all newcomers that could be measured."""
    received, own = ([v for v in newcomers[k] if v is not None] for k in ("received", "personalized"))
    return {
        "clients": len(newcomers["test_samples"]),
        "received": fmean(received) if received else None,
        "personalized": fmean(own) if own else None,
    }
