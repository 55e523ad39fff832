"""A finished run: the history, the summary, every client's own model, and reading all of it from a folder."""

import shlex
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from .. import algorithms, models
from ..algorithms.update import final_models
from ..core.arguments import checked
from ..core.checked_json import made_of
from ..core.clients import Clients, OnDemand
from ..core.custom import check_trusted, trust_options
from ..core.errors import DamagedFileError, UserError, unknown
from ..core.extras import frames
from ..core.schema import ClientSummary, Config, Newcomers, Row, Summary
from ..core.tensors import Tensors
from ..core.units import client_names, metrics_of, of_clients, personal_summary, with_unit, words
from ..measure.selection import BEST_TEST, may_stop_early
from ..models.accept import accepted
from ..models.model import Model, cross_entropy
from ..store import RunFolder
from ..store.digests import Digests
from ..store.folder import CONFIG, METRICS
from ..store.models import COMMON, ModelFiles
from .client import Client, common_parts, constants_of, folded, unfolded, with_constants, with_format

if TYPE_CHECKING:
    import pandas


class History(list[Row]):
    """One row per round, oldest first."""

    def frame(self) -> "pandas.DataFrame":
        """Return the rows as a DataFrame of pandas (coterie[tables]), one column per measure.

        What a round did not measure is NaN.

        What was kept of single clients is in ``run.client_history()``.
        """
        pandas = frames("run.history, which is a list of rows")
        frame = pandas.DataFrame([{k: v for k, v in row.items() if k != "clients"} for row in self])
        unknown = frame.columns[frame.isna().all()]  # columns of None would be of no number's type
        return frame.astype(dict.fromkeys(unknown, float))


Forms = Callable[[int, Tensors], Model | None]
"""(client, its tensors) -> the model that they are of."""


class SavedModels(NamedTuple):
    """The models in the folder of a finished run."""

    files: ModelFiles
    constants: Tensors  # what training never changed
    parts: Mapping[int, Tensors]  # what several clients have the same, which is in memory once

    @classmethod
    def of(cls, folder: RunFolder) -> "SavedModels | None":
        """Open the models of a folder; None where a pack has left them out."""
        if not folder.has_models:
            return None
        files = ModelFiles(Digests.of(folder.path))
        common = files.common()
        return cls(files, constants_of(common), common_parts(common))

    def client(self, i: int, model: Forms) -> Client:
        """Read one client."""
        client = unfolded(self.files.own(i), self.parts, None)
        own = client.shared | client.personal
        form = model(i, own)
        if form is not None:
            check_alike(shapes(form.start), shapes(own), self.files.path(i))
        return Client(client.shared, client.personal, form, same=client.same)

    def clients(self, count: int, model: Forms) -> OnDemand[Client]:
        """Return the clients, each of which is read whenever it is asked for."""
        return OnDemand(count, lambda i: self.client(i, model))


def one_client(folder: RunFolder, saved: SavedModels | None, i: int, model: Forms) -> Client:
    """Read one client of a folder; refuse one without models."""
    if saved is None:
        raise UserError(
            f"{folder.path} has no models: coterie pack leaves them out, so go to the folder that was packed"
        )
    return saved.client(i, model)


def common_model(model: Model | None, saved: SavedModels | None) -> Model | None:
    """Return the model of a finished run with the constants of its folder."""
    if model is None or saved is None:
        return model
    there = {k: v.shape for k, v in (*model.module.named_parameters(), *model.module.named_buffers())}
    here = {k: there[k] for k in saved.constants if k in there}
    check_alike(here, shapes(saved.constants), saved.files.digests.folder / COMMON)
    return model.with_constants(saved.constants)


def shapes(tensors: Tensors) -> dict[str, torch.Size]:
    """Return the shapes of named tensors."""
    return {k: v.shape for k, v in tensors.items()}


def check_alike(here: dict[str, torch.Size], there: dict[str, torch.Size], file: Path) -> None:
    """Refuse tensors of other shapes than the module's: copying would stretch a single number over a whole layer."""
    for name in (*here, *there):
        if here.get(name) != there.get(name):
            held, takes = (list(s[name]) if name in s else "none" for s in (there, here))
            raise UserError(
                f"{file} does not fit the model: {name} is {held} and should be {takes}; repeat the run from its "
                "config.json, or pass the module that was trained, as in coterie.load(path, model=...)"
            )


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
        from ..report.card import card  # which stands above, and takes a while to import

        return card(self)

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
        from ..report import write

        return write([self], path)


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
    clients = [] if saved is None else with_format(config, saved.clients(config["data"]["clients"], model))
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


COUNTS = ("train_samples", "test_samples", "parameters", "personal_parameters")


def client_table(config: Config, summary: ClientSummary) -> "pandas.DataFrame":
    """Return one row per client by its name, newcomers last; what is not known of somebody is NaN."""
    pandas = frames("run.client_summary, which is a dictionary of lists")
    known: Any = summary
    found: dict[str, Any] = {key: known[key] for key in COUNTS if known.get(key)}
    for metric in metrics_of(config):
        for protocol, values in of_clients(summary, metric).items():
            found[f"{metric['column']}_{protocol}"] = [float("nan") if v is None else v for v in values]
    table = pandas.DataFrame(found, index=pandas.Index(client_names(summary), name="client"))
    table["newcomer"] = False
    later = summary.get("newcomers")
    if later is None:
        return table
    column = metrics_of(config)[0]["column"]
    some = {
        "train_samples": later["train_samples"],
        "test_samples": later["test_samples"],
        f"{column}_received": later["received"],
        f"{column}_personalized": later["personalized"],
        "newcomer": True,
    }
    names = later["names"] or [f"newcomer {i}" for i in range(len(later["train_samples"]))]
    return pandas.concat([table, pandas.DataFrame(some, index=pandas.Index(names, name="client"))])


def client_history(
    config: Config, history: Sequence[Row], summary: ClientSummary, protocol: str, metric: str | None
) -> "pandas.DataFrame":
    """Return a metric of every client, one row per evaluated round, one column per client."""
    pandas = frames("run.history, whose rows have clients")
    kept = {row["round"]: row["clients"] for row in history if "clients" in row}
    if not kept:
        raise UserError("nothing was kept of single clients in every round: train with record=['clients']")
    known = next(iter(kept.values()))
    column = metric or metrics_of(config)[0]["column"]
    if column not in known:
        raise unknown("metric", column, known)
    if protocol not in known[column]:
        raise unknown("protocol", protocol, known[column])
    values = [each[column][protocol] for each in kept.values()]
    return pandas.DataFrame(values, pandas.Index(list(kept), name="round"), client_names(summary), dtype=float)
