"""One more site, after a run has ended: it gets the shared model and trains its own part of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from torch import nn

from .. import algorithms
from ..algorithms.base import ModelGroup
from ..core.annotations import Example, PositiveInt
from ..core.arguments import checked
from ..core.checked_json import made_of
from ..core.errors import UserError
from ..core.schema import Config, MetricInfo
from ..core.tensors import Tensors, rows, split
from ..core.units import metrics_of
from ..data import Federation
from ..measure import BUILT_IN, metrics_for
from ..models.losses import LOSSES, loss_of
from ..models.model import Loss, Model
from ..store.folder import CONFIG
from ..training.checks import check_model
from ..training.client import Client, with_format
from ..training.experiment import Experiment
from ..training.newcomers import begun, measured, own_names, personalized, received, shares
from ..training.prepare import prepare_newcomers
from ..training.run import Run, SavedModels, finished, module_of
from ..training.settings import RunSettings


@dataclass(frozen=True)
class Personalized:
    """What a new site gets from a run."""

    client: Client  # its own model
    metric: MetricInfo | None  # what the two numbers are; None: the task has none
    received: float | None  # of the shared model as it is, on the site's test samples
    trained: float | None  # of its own model
    test_samples: int


@checked("function")
def personalize(
    run: Run | str | Path,
    federation: Annotated[Federation, Example('coterie.data.from_csv("new.csv", target="y")')],
    *,
    epochs: PositiveInt | None = None,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    loss: Annotated[Loss | str, Example("torch.nn.functional.mse_loss")] | None = None,
) -> list[Personalized]:
    """Give every client of a federation, which took no part in a run, the model that the run's clients share.

    Each trains its own part of it on its own samples, as ``fit(holdout_clients=...)`` lets newcomers do.

    Args:
        run: A finished run or its folder.
        federation: The new sites, with samples that are made as those of the run were.
        epochs: Passes through a site's samples; by default those of a round of the method.
        model: The module that was trained, where the run had one of its own.
        loss: The loss, where the run had one of its own.
    """
    config, final, constants, where = _read(run)
    given = _model(config, model, loss, where)
    check_model(given, federation)
    e, common = _experiment(config, given, federation, final, constants, where)
    start = ModelGroup(np.arange(federation.clients), e.model, begun(e, common))
    as_it_is = measured(e, iter([start]))
    own = list(personalized(e, common, federation, epochs))
    trained = measured(e, iter(own))
    metric = next(iter(e.metrics.infos), None)
    return [
        Personalized(client, metric, before, after, size)
        for client, before, after, size in zip(
            with_format(config, _clients(e, own, epochs)), as_it_is, trained, e.tests.sizes.tolist(), strict=True
        )
    ]


def _read(run: Run | str | Path) -> tuple[Config, Tensors, Tensors, str]:
    """Return the configuration of a run, the state after its last round, its constants, and where that is."""
    if isinstance(run, Run):
        return run.config, {k: v.cpu() for k, v in run.final.items()}, run.constants, "the configuration"
    folder = finished(run)
    checkpoint = folder.latest(print)
    saved = SavedModels.of(folder)
    constants = {} if saved is None else saved.constants
    return folder.config(), {} if checkpoint is None else checkpoint.tensors, constants, str(folder.path / CONFIG)


def _model(
    config: Config, model: nn.Module | Callable[[], nn.Module] | None, loss: Loss | str | None, where: str
) -> Model:
    """Return the model of a run, before the method adapted it."""
    if not algorithms.is_method(config["method"]):
        raise UserError(f"{config['method']} is a method of your own: a file does not decide what code runs here")
    if loss is None and config["loss"].replace("_", "-") not in LOSSES:
        raise UserError(f"the run has the loss {config['loss']} of your own: give personalize the function, as loss=")
    module = module_of(config, model, where)
    if module is None:
        raise UserError("the run was made with a module of its own: give it, as in personalize(run, data, model=...)")
    return Model(module, loss_of(loss or config["loss"]), precision=config["precision"])


def _experiment(
    config: Config, given: Model, federation: Federation, final: Tensors, constants: Tensors, where: str
) -> tuple[Experiment, Tensors]:
    """Return the run's method and model with other clients, and the model that those of the run share."""
    if not final:
        raise UserError(f"{where} stands without a checkpoint, which coterie pack leaves out: take the whole folder")
    # A file does not decide what code runs here: in the place of a metric of one's own is that of the task.
    names = [metric["name"] for metric in metrics_of(config) if metric["name"] in BUILT_IN]
    metrics = metrics_for(given, federation.sample(2), federation.y, names)
    clients = config["data"]["clients"]
    with made_of(where, "settings"):
        algorithm = algorithms.rebuild(config["method"], **config["settings"])
        adapted = algorithm.adapt(given).with_constants(constants)
        e = prepare_newcomers(adapted, federation, algorithm, RunSettings.of(config), clients, metrics=metrics)
    if not shares(e):
        raise UserError(f"{config['method']} shares nothing that a new site could begin with: train it by itself")
    return e, received(e, final, clients)


def _clients(e: Experiment, groups: list[ModelGroup], epochs: int | None) -> list[Client]:
    """Return every site's own model; what it trained is personal."""
    found: dict[int, Client] = {}
    personal = own_names(e.program, e.model.start, epochs)
    for group in groups:
        for row, place in enumerate(group.places.tolist()):
            own, common = split({k: v.cpu() for k, v in rows(group.models, row).items()}, personal)
            found[place] = Client(common, own, group.model)
    return [found[place] for place in range(len(found))]
