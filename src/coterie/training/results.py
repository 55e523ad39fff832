"""What a run ends with: the models that were chosen on the way, and what ``clients.json`` says of every client.

The summary (``measure/selection``) follows the same rule, so what is deployed is what is reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import sleep
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.clients import Clients, OnDemand
from ..core.errors import DamagedFileError, FolderError, UserError
from ..core.files import disk
from ..core.schema import ACCURACY, TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN, VALIDATION, ClientSummary, Config, Graph, Row
from ..core.tensors import Tensors, tree_map
from ..core.tensors import entries as count
from ..core.units import metrics_of
from ..data import Federation
from ..engines import Serial
from ..measure import Metrics, summarize
from ..measure.evaluate import sample_statistics
from ..measure.paired import FEWEST
from ..measure.resample import NUMBERS, draws, resample
from ..measure.rows import Columns, client_columns, finite, metric_row
from ..measure.selection import LAST, PER_CLIENT, by_validation, chooses, goodness, higher_is_better, reported, rule_of
from ..models.model import Model
from ..store import RunFolder
from ..store.checkpoint import oldest
from ..store.chosen import load_chosen, save_chosen
from ..store.folder import CHECKPOINT
from ..topology import Topology
from ..topology.sparse import entries
from .client import Client, common_parts, folded, unfolded
from .experiment import Experiment, RunState
from .run import History, Run

ROUNDS, VALUES, MODELS, COMMON = "rounds", "values/", "client/", "common/"


@dataclass
class Chosen:
    """What every client would end with, as far as the run has gone."""

    config: Config
    clients: list[Client] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)  # in which each client's model was taken
    values: Tensors = field(default_factory=dict)  # [n, ...] of these models, by protocol

    def see(
        self, history: Sequence[Row], values: Tensors, models: Callable[[], Sequence[Client]], folder: RunFolder | None
    ) -> None:
        """Take an evaluated round, the last of ``history``, if it is better, and keep it in the run's folder."""
        t, n = history[-1]["round"], len(values["after_mix"])
        if not self.rounds:
            better = torch.ones(n, dtype=torch.bool)
        elif rule_of(self.config) == PER_CLIENT:
            better = self._better(values[VALIDATION], self.values[VALIDATION])
        else:
            better = torch.full((n,), reported(self.config, history) in (None, history[-1]))
        if not better.any():
            return
        mine, fresh = better.tolist(), models()
        if not all(mine):  # one client must not hold the stacked models of all in memory
            fresh = OnDemand(n, partial(in_own_memory, fresh))
        self.clients = [fresh[i] if m else self.clients[i] for i, m in enumerate(mine)]
        self.rounds = [t if m else since for m, since in zip(mine, self.rounds or [t] * n, strict=True)]
        for protocol, new in values.items():
            old = self.values.get(protocol, new)
            self.values[protocol] = torch.where(better[:, None], new, old)
        if folder is not None:
            with disk(folder.path):
                save_chosen(folder.path, t, self.tensors(), oldest(folder.path / CHECKPOINT))

    def _better(self, now: Tensor, before: Tensor) -> Tensor:
        """Return [n] who improved on its own validation samples; who has none follows the latest round."""
        higher = higher_is_better(self.config)
        new, old = (goodness(v[:, 0], higher) for v in (now, before))
        return (new > old) | old.isnan()

    def columns(self, federation: Federation) -> Columns:
        """Return the columns of a row, of the models that were chosen."""
        owned = dict.fromkeys(self.values, federation.test) | {VALIDATION: federation.validation}
        owned |= dict.fromkeys((TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN), federation.train)
        sizes = {protocol: np.array([len(own) for own in each]) for protocol, each in owned.items()}
        return {
            k: v
            for i, metric in enumerate(metrics_of(self.config))
            for protocol, each in self.values.items()
            for k, v in metric_row(metric, protocol, each[:, i], sizes[protocol]).items()
        }

    def tensors(self) -> Tensors:
        """Return all of it as a file holds it."""
        common, own = folded(self.clients)
        models = {f"{MODELS}{i}/{k}": v for i, tensors in enumerate(own) for k, v in tensors.items()}
        models |= {COMMON + k: v for k, v in common.items()}
        return {ROUNDS: torch.tensor(self.rounds), **{VALUES + k: v for k, v in self.values.items()}, **models}

    def restore(self, tensors: Tensors, forms: Callable[[int], Sequence[Model]]) -> None:
        """Go on from a file; ``forms(t)``: the model that each client has in round ``t``, counted from 0."""
        self.rounds = tensors[ROUNDS].tolist()
        self.values = {k.removeprefix(VALUES): v for k, v in tensors.items() if k.startswith(VALUES)}
        own: list[Tensors] = [{} for _ in self.rounds]
        for name, value in tensors.items():
            if name.startswith(MODELS):
                client, _, rest = name.removeprefix(MODELS).partition("/")
                own[int(client)][rest] = value
        parts = common_parts({k.removeprefix(COMMON): v for k, v in tensors.items() if k.startswith(COMMON)})
        models = {t: forms(t - 1) for t in set(self.rounds)}
        self.clients = [
            unfolded(each, parts, models[t][i]) for i, (each, t) in enumerate(zip(own, self.rounds, strict=True))
        ]


def in_own_memory(clients: Sequence[Client], i: int) -> Client:
    """Return a client whose tensors are copies, but for what others have the same."""
    client, copied = clients[i], partial(tree_map, torch.clone)
    return replace(
        client,
        shared=client.shared if client.same is not None else copied(client.shared),
        personal=copied(client.personal),
    )


def chosen_so_far(experiment: Experiment, folder: RunFolder | None, config: Config, rounds: int) -> Chosen | None:
    """Return what a run would end with after so many rounds; None where it ends with the last round."""
    if rule_of(config) == LAST:
        return None
    chosen = Chosen(config)
    saved = load_chosen(folder.path, rounds) if folder is not None and rounds else None
    if saved is not None:
        chosen.restore(saved, experiment.modules)
    return chosen


def check_selection(experiment: Experiment) -> None:
    """Refuse a choice by samples that are not there."""
    selection = experiment.settings.saved
    for option in by_validation(selection):
        if not experiment.federation.validation:
            raise UserError(f"{option} looks at validation samples, and there are none: keep some with validation=0.2")
    if chooses(selection) and not experiment.measurable:
        option = next(iter(by_validation(selection)), f"select={rule_of(selection)}")
        raise UserError(f"{option} needs a metric, and nothing is measured here: leave it out")


LABELS = 100_000  # the most counts of samples per class that are written; the words of a language are more
EDGES = 10_000  # the most edges of a graph that are written


def client_summary(
    experiment: Experiment, values: Tensors | None, rounds: int, clients: Sequence[Client], taken: Sequence[int] = ()
) -> ClientSummary:
    """Return samples, labels, model sizes and metrics of all clients after the last round, and who hears whom.

    ``clients``: what each ends with; ``taken``: after which round, where that is not the last of ``rounds``.
    """
    names = list(experiment.federation.names)
    sizes = [(_parameters(client), _own_parameters(client)) for client in clients]
    found: Any = {  # with keys that have the names of metrics, among those of a ClientSummary
        "round": rounds,
        "train_samples": experiment.train.sizes.tolist(),
        "test_samples": experiment.tests.sizes.tolist(),
        "parameters": [whole for whole, _ in sizes],
        "personal_parameters": [own for _, own in sizes],
        "labels": _labels(experiment),
        **client_columns(values or {}, experiment.metrics.infos),
        "graph": _graph(experiment, rounds - 1),
    }
    few = {"names": names, "rounds": list(taken)}
    summary: ClientSummary = found | {key: each for key, each in few.items() if each}
    return summary


def _own_parameters(client: Client) -> int:
    """Return how many parameters of a client's model are its own."""
    trained = () if client.model is None else client.model.parameters
    return count(v for k, v in client.personal.items() if k in trained)


def _parameters(client: Client) -> int:
    """Return how many parameters of a client's model are trained."""
    trained = () if client.model is None else client.model.parameters
    return count(v for k, v in (client.shared | client.personal).items() if k in trained)


def _labels(experiment: Experiment) -> list[list[int]] | None:
    """Return [n][classes] training samples; None where a sample has no single class, or there are too many."""
    federation = experiment.federation
    if federation.classes is None or federation.y.dim() != 1 or federation.clients * federation.classes > LABELS:
        return None
    counts: list[list[int]] = federation.class_counts().tolist()
    return counts


def _graph(experiment: Experiment, t: int) -> Graph | None:
    """Return who hears whom in round ``t``; None with a server, without links, or where training decides it."""
    topology, Ws = experiment.program.topology, experiment.round(t).Ws
    return None if topology is None or topology.uses or not Ws else graph_of(topology, Ws[0], t)


def graph_of(topology: Topology, W: Tensor, t: int) -> Graph:
    """Return W of round ``t`` as [sender, receiver, weight] off the diagonal."""
    receivers, senders, weights = entries(W)
    off = receivers != senders
    messages = int(off.sum())
    edges = zip(*(v[off].tolist() for v in (senders, receivers, weights)), strict=True) if messages <= EDGES else None
    return {
        "name": topology.name,
        "fixed": topology.fixed,
        "stochastic": topology.stochastic,
        "round": t + 1,
        "messages": messages,
        "edges": None if edges is None else [list(edge) for edge in edges],
    }


def resampled(experiment: Experiment, clients: Sequence[Client]) -> ClientSummary:
    """Return what ``clients.json`` keeps to compare methods client by client, of the model that each ends with.

    That is the first metric over test samples drawn again, and of few clients also which samples are right: one bit
    each, never the answer. Nothing where nothing is measured, or where there are too many clients to write all of it.
    """
    sizes = experiment.tests.sizes.tolist()
    if not experiment.measurable or len(clients) * draws(experiment.metrics.each[0], sizes) > NUMBERS:
        return {}
    device, metrics, kept = experiment.tests.y.device, experiment.metrics, []
    for number, client in enumerate(clients):
        model = client.model or experiment.model
        one = {k: v.to(device)[None] for k, v in (client.shared | client.personal).items()}
        each = sample_statistics(Serial(device), model, one, experiment.tests, np.array([number]), metrics)
        kept.append(each[:, : metrics.widths[0]])
    # The same draws for every seed of a run: where the seeds have the same test samples, they are not more samples.
    values = resample(metrics.each[0], kept, seed=0)
    single = np.asarray(values, dtype=np.float32)  # as their file holds them
    found: ClientSummary = {"resampled": [[finite(value) for value in row] for row in single.tolist()]}
    if len(clients) < FEWEST and _right_or_wrong(metrics) and sum(sizes) <= NUMBERS:
        found["right"] = ["".join("01"[int(hit)] for hit in own[:, 0]) for own in kept]
    return found


def _right_or_wrong(metrics: Metrics) -> bool:
    """Whether every test sample has one answer, which is right or wrong."""
    return metrics.infos[0] == ACCURACY and metrics.task.kind == "classes"


TRIES, PAUSE = 5, 0.2  # a run under way removes a checkpoint while another process reads it


def run_so_far(folder: RunFolder, experiment: Experiment, described: Experiment) -> Run:
    """Return a run as if its latest saved round were the last; another process may be writing it.

    ``described``: the experiment whose clients the run tells of; a peer's experiment has the clients of all members.
    """
    for left in reversed(range(TRIES)):
        try:
            return _run_so_far(folder, experiment, described)
        except (DamagedFileError, FolderError):
            if not left:
                raise
            sleep(PAUSE)
    raise AssertionError("the last attempt returns or raises")


def _run_so_far(folder: RunFolder, experiment: Experiment, described: Experiment) -> Run:
    config, saved = folder.config(), folder.latest(lambda _: None)
    if saved is None:
        raise UserError(f"{folder.path} has no finished round yet: wait for one")
    history, now = folder.rows(saved.round), experiment.restored(saved)
    chosen = chosen_so_far(experiment, folder, config, saved.round)
    return run_after(experiment, described, config, now, history, chosen)


def run_after(
    experiment: Experiment,
    described: Experiment,
    config: Config,
    now: RunState,
    history: Sequence[Row],
    chosen: Chosen | None,
) -> Run:
    """Return a run that ends after the last round of ``history``, with the models that its rule has chosen."""
    t, apart = len(history) - 1, None
    if chosen is None or not chosen.rounds:
        clients, taken = experiment.clients(now.state, t), []
        values = now.values or experiment.values(now.state, now.after_train, t)
    else:
        clients, values, taken = chosen.clients, chosen.values, chosen.rounds
        apart = chosen.columns(described.federation) if rule_of(config) == PER_CLIENT else None
    known = client_summary(described, values, len(history), clients, taken) | resampled(described, clients)
    named = Clients(clients, known.get("names", ()))
    return Run(
        config, History(list(history)), summarize(config, history, apart), named, {}, known, experiment.model.constants
    )
