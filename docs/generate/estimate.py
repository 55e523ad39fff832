"""What a recipe will cost, from short rounds of its own program: nothing is guessed per method.

A few clients with two samples each train the real model once; the samples they pass through which form of it, and
the bytes of their messages, are then scaled to the published numbers of samples, clients, links and rounds. The
results are the ``estimates`` in the files of the recipes.
"""

from typing import Any, NamedTuple

import torch

from coterie.algorithms import build
from coterie.algorithms.base import Program
from coterie.data import Federation
from coterie.engines import Serial
from coterie.models.model import Model, cross_entropy
from coterie.papers.recipes import Case, Recipe
from coterie.papers.recipes.sources import source
from coterie.training.experiment import Experiment
from probe import probe_round

STAGES = 8  # rounds that are examined, evenly spread: a model that grows does so after eighths of all rounds
SAMPLES = 2  # per client: batch statistics of a single sample do not exist


class Estimate(NamedTuple):
    """The cost of one method in one case with one seed."""

    flops: float
    bytes: float
    forward: float  # of one sample through a client's own model, forward only: the mean over all clients and stages


def estimate(recipe: Recipe, method: str, case: int | str | Case = 1) -> Estimate:
    """Return FLOPs (multiply-adds, forward and backward) and bytes of one seed, without its data or its training."""
    chosen = recipe.case(case)
    published = _experiment(recipe, method, chosen, chosen.clients)
    unit = _unit(recipe, method, chosen, published)
    return Estimate(
        unit.flops * _samples(chosen, published.program) * len(published.schedule.cohort(0)) * chosen.rounds,
        unit.bytes * _links(published) * chosen.rounds,
        unit.forward,
    )


def _unit(recipe: Recipe, method: str, case: Case, published: Experiment) -> Estimate:
    """Return the FLOPs of one client's sample and the bytes of one link in a round, the mean over all stages.

    Rounds that send the same do the same work, so that only the first of them is played.
    """
    experiment = _experiment(recipe, method, case, _kinds(published), **_everybody_together(published))
    state, clients = experiment.start().state, experiment.federation.clients
    work: dict[int, float] = {}
    stages = stages_of(case)
    sent = [experiment.program.traffic(state, experiment.round(t)).totals.bytes for t in stages]
    for t, size in zip(stages, sent, strict=True):
        if size not in work:
            passes = probe_round(experiment, t).trained.passes
            work[size] = float(sum(count * experiment.flops_per_sample(model) for model, count in passes))
    flops = sum(work[size] for size in sent) / STAGES / clients / SAMPLES
    return Estimate(flops, sum(sent) / STAGES / max(1, _links(experiment)), forward(published, stages))


def stages_of(case: Case) -> list[int]:
    """Return the rounds that are examined."""
    return [case.rounds * (2 * k + 1) // (2 * STAGES) for k in range(STAGES)]


def forward(e: Experiment, stages: list[int]) -> float:
    """Return the FLOPs of one sample through a client's own model, the mean over all clients and stages."""
    return sum(e.forward_flops(e.everybody(t)) for t in stages) / len(stages) / e.federation.clients


def _samples(case: Case, program: Program[Any]) -> float:
    """Return how many samples one pass of a client sees; as many as a batch where steps are counted."""
    main, size = program.phases[-1], program.training.batch_size
    if main.amount.steps and not main.full_batch and size is not None:
        return float(size)
    return source(case.data).train / case.clients


def _links(e: Experiment) -> int:
    """Return the number of directed edges between peers, or of clients that talk to the server."""
    if e.program.topology is None:
        return len(e.schedule.cohort(0))
    return int((e.program.topology(0).to_dense() > 0).sum()) - e.federation.clients


def _kinds(e: Experiment) -> int:
    """Return how many clients it takes to have one of every speed and every form of the model."""
    epochs, submodels = [phase.amount.epochs for phase in e.program.phases], e.program.submodels
    forms = 0 if submodels is None else len(submodels(e.everybody(0)))
    return max(2, forms, *(len(speeds) for speeds in epochs if isinstance(speeds, tuple)))


def _everybody_together(e: Experiment) -> dict[str, Any]:
    """Return the settings with which all clients take part and hear each other, of those that the method has."""
    wanted: dict[str, Any] = {"participation": 1.0, "batch_size": SAMPLES}
    if e.program.topology is not None:
        wanted["topology"] = "full"
    return {k: v for k, v in wanted.items() if k in e.algorithm.settings}


def _experiment(recipe: Recipe, method: str, case: Case, clients: int, **changed: Any) -> Experiment:
    """Return the method on clients that have a few samples each."""
    algorithm = build(recipe.entry(method).builder, **{**recipe.settings(method, case), **changed})
    model = Model(recipe.model(case), cross_entropy)
    return Experiment.of(model, _federation(case, clients), algorithm, Serial(), 0, case.rounds)


def _federation(case: Case, clients: int) -> Federation:
    known = source(case.data)
    tokens = len(known.shape) == 1
    x = torch.zeros(clients * SAMPLES, *known.shape, dtype=torch.int64 if tokens else torch.float32)
    y = torch.zeros(clients * SAMPLES, *(known.shape if tokens else ()), dtype=torch.int64)
    parts = tuple(torch.arange(i * SAMPLES, (i + 1) * SAMPLES) for i in range(clients))
    return Federation(x, y, x, y, parts, parts, known.classes)
