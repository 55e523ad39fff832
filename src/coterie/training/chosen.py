"""The models that a run ends with where not the last round decides: those that were chosen, kept on the way.

The rule is the same as that of the summary (``measure/selection``), so what is deployed is what is reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..core.clients import OnDemand
from ..core.errors import UserError
from ..core.files import disk
from ..core.schema import TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN, VALIDATION, Config, Row
from ..core.tensors import Tensors, tree_map
from ..core.units import metrics_of
from ..data import Federation
from ..measure.rows import Columns, metric_row
from ..measure.selection import (
    LAST,
    PER_CLIENT,
    by_validation,
    chooses,
    goodness,
    higher_is_better,
    reported,
    rule_of,
)
from ..models.model import Model
from ..store import RunFolder
from ..store.checkpoint import oldest
from ..store.chosen import load_chosen, save_chosen
from ..store.folder import CHECKPOINT
from .client import Client
from .experiment import Experiment
from .folded import common_parts, folded, unfolded

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
