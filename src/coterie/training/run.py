"""A finished run: the history, the summary, and every client's own model."""

import shlex
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from .. import algorithms, models
from ..algorithms.update import final_models
from ..core.arguments import checked
from ..core.checked_json import made_of
from ..core.clients import Clients
from ..core.custom import check_trusted, trust_options
from ..core.errors import DamagedFileError, UserError
from ..core.schema import ClientSummary, Config, Newcomers, Summary
from ..core.tensors import Tensors
from ..core.units import metrics_of, personal_summary, with_unit, words
from ..measure.selection import BEST_TEST, may_stop_early
from ..models.accept import accepted
from ..models.model import Model, cross_entropy
from ..store import RunFolder
from ..store.folder import CONFIG, METRICS
from . import render
from .client import Client, answering
from .client_table import client_history, client_table
from .folded import folded, with_constants
from .history import History
from .saved_models import Forms, SavedModels, common_model, shapes

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run; a notebook shows its numbers and its curve."""

    config: Config  # everything that repeats the run, as in config.json
    history: History  # one row per round; history.frame() is a pandas DataFrame
    summary: Summary  # the numbers of the reported round, the best ones and the costs, as in summary.json
    clients: Clients[Client]  # every client's own model, in the order of the data: clients[3], or clients["mayo"]
    final: Tensors  # the state after the last round, as a checkpoint holds it
    client_summary: ClientSummary  # samples, labels and accuracies of every client, and the last round's graph
    constants: Tensors = field(default_factory=dict)  # what training never changed of the model, the same for all

    def client_table(self) -> "pandas.DataFrame":
        """Return one row per client as a pandas DataFrame: name, samples, model, metrics; newcomers come last."""
        return client_table(self.config, self.client_summary)

    def client_history(self, protocol: str = "after_mix", metric: str | None = None) -> "pandas.DataFrame":
        """Return a metric of every client in every evaluated round as a pandas DataFrame, one column per client.

        It is kept by ``record=["clients"]``; ``metric``: its column, that of the metric that decides unless given.
        """
        return client_history(self.config, self.history, self.client_summary, protocol, metric)

    @property
    def newcomers(self) -> Newcomers | None:
        """What every client got that was kept out of training; None where nobody was."""
        return self.client_summary.get("newcomers")

    def __repr__(self) -> str:
        metrics, rule = metrics_of(self.config), self.summary.get("selection", {}).get("rule")
        last = personal_summary(self.summary, metrics[0]).get("after_mix") if metrics else None
        if last is not None:
            chosen = "" if rule is None else f" ({rule}{', optimistic' if rule == BEST_TEST else ''})"
            said = f", personal {words(metrics[0])} after aggregation {with_unit(metrics[0], last['final'])}{chosen}"
        else:
            said = ""
        return f"Run({self.config['method']}, rounds={len(self.history)}, clients={len(self.clients)}{said})"

    def _repr_html_(self) -> str:
        """Return what Jupyter shows."""
        return render.card(self)

    @checked("function")
    def save(self, path: str | Path) -> Path:
        """Write the run folder; refuse one that exists."""
        folder = RunFolder(Path(path))
        with folder.writing(self.config, warnings.warn):
            for row in self.history:
                folder.append(row)
            folder.save(len(self.history), self.final)
            common, own = folded(self.clients)
            folder.finish(self.summary, own, self.client_summary, with_constants(common, self.constants))
        return folder.path

    @checked("function")
    def report(self, path: str | Path) -> Path:
        """Write one HTML page that needs nothing else; several runs: ``coterie.report.write(runs, path)``."""
        return render.write([self], path)


@checked("function")
def load(path: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None, trust: Sequence[str] = ()) -> Run:
    """Return a finished run from its folder; ``model``: the module, where the run used one of its own.

    ``trust``: the code that the folder names and that may run here, such as ["mine:net"] of ``--model mine:net``.
    Without the clients' models, which ``coterie pack`` leaves out, ``clients`` and ``final`` are empty.
    """
    folder = finished(path)
    config, where = folder.config(), str(folder.path / CONFIG)
    if trust:
        check_trusted(config, trust)
    saved = SavedModels.of(folder)
    common = common_model(model_of(config, model, where, trust), saved)
    modules = Modules(config, common, where, folder.client_summary(), trust)
    return read_finished(folder, config, saved, modules.of, say=print)


def read_finished(
    folder: RunFolder, config: Config, saved: SavedModels | None, model: Forms, say: Callable[[str], object]
) -> Run:
    """Return a finished run from its files; ``saved``: None where a pack has left the models out."""
    checkpoint = folder.latest(say)
    clients = [] if saved is None else answering(config, saved.clients(config["data"]["clients"], model))
    history = folder.rows()
    summary, known = folder.summary(), folder.client_summary()
    rounds = summary["rounds"] if may_stop_early(config) else config["rounds"]
    if len(history) != rounds:
        raise DamagedFileError(folder.path / METRICS, f"it holds {len(history)} of {rounds} rounds")
    return Run(
        config=config,
        history=History(history),
        summary=summary,
        clients=Clients(clients, known.get("names", ())),
        final=checkpoint.tensors if checkpoint else {},
        client_summary=known,
        constants={} if saved is None else saved.constants,
    )


def finished(path: str | Path) -> RunFolder:
    """Return the folder of a run; refuse one that is not complete."""
    folder = RunFolder(Path(path))
    folder.config()  # refuses a folder without a run
    if not folder.finished:
        config = folder.config()
        command = shlex.join(["coterie", "run", str(path), "--resume", *trust_options(config)])
        if "peer" in config:
            command = "coterie peer --config peer.toml"
        raise UserError(f"{path} is not finished: continue it with `{command}` first")
    return folder


def module_of(
    config: Config,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    where: str = "the configuration",
    trusted: Collection[str] = (),
) -> nn.Module | None:
    """Return the module of a run as it was given to ``fit``; ``where``: the file of the configuration."""
    if model is not None:
        return accepted(model if isinstance(model, nn.Module) else model())
    if config["model"].get("module") in trusted:
        return models.rebuild_trusted(config["model"])
    if "name" not in config["model"]:
        return None
    with made_of(where, "model"):
        return models.rebuild(config["model"])


def model_of(
    config: Config,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    where: str = "the configuration",
    trusted: Collection[str] = (),
) -> Model | None:
    """Return the module of a run, as its method trained it; ``where``: the file of the configuration."""
    module = module_of(config, model, where, trusted)
    if module is None:
        return None
    given = Model(module, cross_entropy)
    if not algorithms.is_method(config["method"]) and config["method"] not in trusted:
        return given  # the module that it trained is the one to pass
    with made_of(where, "settings"):
        return algorithms.rebuild(config["method"], trusted, **config["settings"]).adapt(given)


@dataclass(frozen=True)
class Modules:
    """The modules of a run's clients: the common one, or forms of it where clients have their own."""

    config: Config
    common: Model | None
    where: str  # the file of the configuration
    clients: ClientSummary  # which says after which round each client's model was taken
    trusted: Collection[str] = ()  # the code that the configuration may run

    def of(self, client: int, tensors: Tensors) -> Model | None:
        """Return the module that these tensors of a client are for."""
        if self.common is None or shapes(tensors) == shapes(self.common.start):
            return self.common
        known = algorithms.is_method(self.config["method"]) or self.config["method"] in self.trusted
        return self._own[client] if known else None

    @cached_property
    def _own(self) -> list[Model]:
        """The modules by client, found only where a file holds something else than the common form."""
        assert self.common is not None
        c, n, first = self.config, self.config["data"]["clients"], 0
        taken = self.clients.get("rounds") or [self.clients.get("round", c["rounds"])] * n
        if "peer" in c:  # the one client here is one of many
            n, first = len(c["peer"]["members"]), c["peer"]["number"]
        with made_of(self.where, "settings"):
            method = algorithms.rebuild(c["method"], self.trusted, **c["settings"])
            known = method, self.common, n, c["rounds"], c["seed"]
            forms = {t: final_models(*known, t - 1) for t in set(taken)}
        return [forms[t][i] for i, t in enumerate(taken, first)]
