"""What a recipe will cost, from one short round of its own program: nothing is guessed per method.

A few clients with two samples each train the real model once; the samples they pass through which form of it, and
the bytes of their messages, are then scaled to the published numbers of samples, clients, links and rounds.
"""

from typing import Any, NamedTuple

import torch

from .. import topology
from ..algorithms import build
from ..data import Federation
from ..engines import Serial
from ..experiment import Experiment
from ..problem import Model, cross_entropy
from .recipe import Case, Recipe
from .sources import source

STAGES = 8  # rounds that are looked at, evenly spread: a model that grows does so after eighths of all rounds
SAMPLES = 2  # a client: batch statistics of a single sample do not exist


class Estimate(NamedTuple):
    """The cost of one method in one case with one seed."""

    flops: float
    bytes: float


def estimate(recipe: Recipe, method: str, case: int | str | Case = 1) -> Estimate:
    """FLOPs (multiply-adds, forward and backward) and bytes of one seed, without its data and without its training."""
    chosen = recipe.case(case)
    settings = recipe.settings(method, chosen)
    unit = probe(recipe, method, chosen, settings)
    return Estimate(
        unit.flops * _samples(chosen, settings) * _members(chosen, settings) * chosen.rounds,
        unit.bytes * _links(chosen, settings) * chosen.rounds,
    )


def probe(recipe: Recipe, method: str, case: Case, settings: dict[str, Any]) -> Estimate:
    """FLOPs of a client's sample and bytes of a link in a round, the mean over rounds from all parts of the run.

    Rounds that send the same do the same work, so that only the first of them is played.
    """
    experiment = _experiment(recipe, method, case, settings)
    state, clients = experiment.start().state, experiment.federation.clients
    work: dict[int, float] = {}
    looked_at = [case.rounds * (2 * k + 1) // (2 * STAGES) for k in range(STAGES)]
    sent = [experiment.program.traffic(state, experiment.round(t)).bytes for t in looked_at]
    for t, size in zip(looked_at, sent, strict=True):
        if size not in work:
            passes = experiment.program.train(state, experiment.round(t)).passes
            work[size] = float(sum(count * experiment.flops_a_sample(model) for model, count in passes))
    links = clients * (clients - 1) if settings.get("topology") else clients
    return Estimate(sum(work[size] for size in sent) / STAGES / clients / SAMPLES, sum(sent) / STAGES / links)


def _samples(case: Case, settings: dict[str, Any]) -> float:
    """How many samples of a client a pass over them meets; as many as a batch where steps are counted."""
    if settings.get("steps") and not settings.get("exact_personal"):
        return float(settings["batch_size"])
    return source(case.data).train / case.clients


def _members(case: Case, settings: dict[str, Any]) -> int:
    share = settings.get("participation", 1.0)
    if settings.get("topology"):
        share = 1.0
    return share if isinstance(share, int) else max(1, round(share * case.clients))


def _links(case: Case, settings: dict[str, Any]) -> int:
    """Directed edges between peers, or those who talk to the server."""
    graph = settings.get("topology")
    if not graph:
        return _members(case, settings)
    W = topology.build(graph, case.clients)(0).to_dense()
    return int((W > 0).sum()) - case.clients


def _experiment(recipe: Recipe, method: str, case: Case, settings: dict[str, Any]) -> Experiment:
    """The method on a handful of clients that all take part and all hear each other."""
    groups = settings["epochs"] if isinstance(settings.get("epochs"), list) else ()
    clients = max(2, len(groups), len(str(settings.get("capacities") or "").split("-")))
    changed = {"participation": 1.0, "topology": settings.get("topology") and "full", "batch_size": SAMPLES}
    algorithm = build(recipe.entry(method).builder, **settings | {k: v for k, v in changed.items() if k in settings})
    model = Model(recipe.model(case), cross_entropy)
    return Experiment.of(model, _federation(case, clients), algorithm, Serial(), 0, case.rounds)


def _federation(case: Case, clients: int) -> Federation:
    known = source(case.data)
    tokens = len(known.shape) == 1
    x = torch.zeros(clients * SAMPLES, *known.shape, dtype=torch.int64 if tokens else torch.float32)
    y = torch.zeros(clients * SAMPLES, *(known.shape if tokens else ()), dtype=torch.int64)
    parts = tuple(torch.arange(i * SAMPLES, (i + 1) * SAMPLES) for i in range(clients))
    return Federation(x, y, x, y, parts, parts, known.classes)
