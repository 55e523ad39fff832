"""A finished run: the history, the summary, and every client's own model."""

import shlex
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from .. import algorithms, models
from ..algorithms.update import final_models
from ..core.arguments import checked
from ..core.checked_json import made_of
from ..core.clients import Clients
from ..core.custom import check_trusted, trust_options
from ..core.errors import DamagedFileError, UserError
from ..core.schema import ClientSummary, Config, Summary
from ..core.schema_parts import Newcomers
from ..core.tensors import Tensors
from ..core.units import metrics_of, personal_summary, with_unit, words
from ..measure.selection import BEST_TEST, may_stop_early
from ..models.accept import accepted
from ..models.model import Model, cross_entropy
from ..store import RunFolder, client_file
from ..store.digests import Digests
from ..store.folder import CONFIG, METRICS
from ..store.models import COMMON, read_common
from . import render
from .client import Client, answering, client_from, client_tensors, common_tensors, constants_from
from .client_table import client_history, client_table
from .history import History

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
            models, common = [client_tensors(c) for c in self.clients], common_tensors(self.constants)
            folder.finish(self.summary, models, self.client_summary, common)
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
    common = common_of(folder, model_of(config, model, where, trust))
    modules = Modules(config, common, where, folder.client_summary(), trust)
    return read_finished(folder, config, modules.of, say=print)


def read_finished(
    folder: RunFolder, config: Config, model: Callable[[int, Tensors], Model | None], say: Callable[[str], object]
) -> Run:
    """Return a finished run from its files; ``model(i, tensors)``: of a client. A pack may have left models out."""
    checkpoint, files = folder.latest(say), Digests.of(folder.path)
    clients = range(config["data"]["clients"] if folder.has_models else 0)
    history = folder.rows()
    summary, known = folder.summary(), folder.client_summary()
    rounds = summary["rounds"] if may_stop_early(config) else config["rounds"]
    if len(history) != rounds:
        raise DamagedFileError(folder.path / METRICS, f"it holds {len(history)} of {rounds} rounds")
    return Run(
        config=config,
        history=History(history),
        summary=summary,
        clients=Clients(answering(config, [client_of(files, i, model) for i in clients]), known.get("names", ())),
        final=checkpoint.tensors if checkpoint else {},
        client_summary=known,
        constants=constants_from(read_common(files)) if folder.has_models else {},
    )


def common_of(folder: RunFolder, model: Model | None) -> Model | None:
    """Return the model of a finished run with the constants of its folder; a pack may have left them out."""
    if model is None or not folder.has_models:
        return model
    constants, file = constants_from(read_common(Digests.of(folder.path))), folder.path / COMMON
    there = {k: v.shape for k, v in (*model.module.named_parameters(), *model.module.named_buffers())}
    check_alike({k: there[k] for k in constants if k in there}, shapes(constants), file)
    return model.with_constants(constants)


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


def shapes(tensors: Tensors) -> dict[str, torch.Size]:
    """Return the shapes of named tensors."""
    return {k: v.shape for k, v in tensors.items()}


def client_of(files: Digests, i: int, model: Callable[[int, Tensors], Model | None]) -> Client:
    """Return one client of a finished run, from its file."""
    path, file = files.folder, client_file(files.folder, i)
    if not RunFolder(path).has_models:
        raise UserError(f"{path} has no models: coterie pack leaves them out, so go to the folder that was packed")
    client = client_from(files.tensors(file), None)
    own = client.shared | client.personal
    found = model(i, own)
    if found is not None:
        _check_fits(own, found, file)
    return replace(client, model=found)


def _check_fits(own: Tensors, model: Model, file: Path) -> None:
    """Refuse tensors of other shapes than the module's: copying would stretch a single number over a whole layer."""
    check_alike(shapes(model.start), shapes(own), file)


def check_alike(here: dict[str, torch.Size], there: dict[str, torch.Size], file: Path) -> None:
    """Refuse the shapes ``there`` of a file that are not those of the module."""
    for name in (*here, *there):
        if here.get(name) != there.get(name):
            held, takes = (list(s[name]) if name in s else "none" for s in (there, here))
            raise UserError(
                f"{file} does not fit the model: {name} is {held} and should be {takes}; repeat the run from its "
                "config.json, or pass the module that was trained, as in coterie.load(path, model=...)"
            )
