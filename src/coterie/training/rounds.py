"""The rounds of a run, in this process or on a cluster: trained, measured, saved, and the models that it ends with."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.clients import Clients
from ..core.errors import noted
from ..core.schema import Config, Row
from ..core.tensors import Tensors, to_device
from ..engines.base import InMemory
from ..measure import summarize
from ..measure.convergence import CLIENTS
from ..measure.rows import client_columns
from ..measure.selection import PER_CLIENT, rule_of, stops_early, why_stopped
from ..models.model import Model, products
from ..store import RunFolder, Writer
from ..store.checkpoint import Checkpoint, Saved
from ..store.chosen import drop_later
from ..track import Tracking
from ..track.progress import Progress
from .client import Client, folded, with_constants, with_format
from .config import moved
from .experiment import Experiment, RunState
from .newcomers import mean_over, newcomer_summary
from .results import Chosen, chosen_so_far, client_summary, resampled
from .run import History, Run, SavedModels, read_finished
from .select_engine import Choice
from .settings import Cluster
from .time_limit import LimitedRun


class Backend(Protocol):
    """What runs the rounds: an experiment in this process, or one on a cluster."""

    def start(self) -> RunState:
        """Return the state before the first round."""

    def restored(self, saved: Checkpoint) -> RunState:
        """Return the state that a checkpoint holds."""

    def run_round(self, before: RunState, t: int, evaluate: bool) -> tuple[RunState, Row]:
        """Run a round, and return its row of measurements."""

    def saved(self, now: RunState) -> Saved:
        """Return the state as a checkpoint holds it."""

    def clients(self, state: Any, t: int) -> Sequence[Client]:
        """Return every client's own model after round ``t``, the latest."""

    def values(self, state: Any, after_train: Tensor, t: int) -> Tensors | None:
        """Return [n, metrics] of every client, by protocol."""


@contextmanager
def backend_of(
    experiment: Experiment, chosen: Choice | None, engine: str, there: Cluster | None, say: Callable[[str], object]
) -> Iterator[tuple[Backend, str, str]]:
    """Yield what runs the rounds of an experiment, the name of its engine, and why it is that one."""
    if chosen is not None:
        yield experiment, chosen.engine.name, chosen.reason
    elif there is not None:
        from ..cluster.ray_backend import ray_backend  # of no use to anybody else

        with ray_backend(experiment, engine, there, say) as found:
            yield found


def begin_rounds(
    backend: Backend, continued: RunFolder | None, config: Config, bar: Progress
) -> tuple[RunState, list[Row]]:
    """Return where the run stands: at its start, or after the last round that was saved."""
    found = None if continued is None else continued.resumed(backend.restored, bar.warn, bar.say)
    if found is not None and continued is not None and (told := moved(continued.config(), config)) is not None:
        bar.warn(told)
    return found or (backend.start(), [])


def read_again(experiment: Experiment, folder: RunFolder, config: Config, tracking: Tracking) -> Run:
    """Return a run that was finished before, from its files: nothing is computed or written once more."""
    folder.tidy()
    run = read_finished(folder, config, SavedModels.of(folder), _forms(experiment, folder), tracking.bar.warn)
    tracking.begin(config, folder.path, run.history)
    tracking.summary = run.summary
    return run


def _forms(experiment: Experiment, folder: RunFolder) -> Callable[[int, Tensors], Model]:
    """Return the model of each client of a finished run, in the form that it had in its round."""
    rounds = folder.client_summary().get("rounds") or [experiment.settings.rounds] * experiment.federation.clients
    forms = {t: experiment.modules(t - 1) for t in set(rounds)}
    return lambda i, _: forms[rounds[i]][i]


def run_rounds(
    experiment: Experiment,
    backend: Backend,
    folder: RunFolder | None,
    config: Config,
    now: RunState,
    history: list[Row],
    bar: Progress,
    tracking: Tracking,
    limited: LimitedRun | None,
) -> Run:
    """Run the rounds that are left."""
    schedule, end = experiment.schedule, len(history) if stops_early(config, history) else config["rounds"]
    if folder is not None:
        drop_later(folder.path, len(history))
    todo, chosen = range(len(history), end), chosen_so_far(experiment, folder, config, len(history))
    bar.begin(history)
    building = _built(experiment, now, todo) if backend is experiment else 0.0
    with nullcontext() if folder is None else Writer(folder, bar.say) as writer:
        for t in todo if limited is None or writer is None else limited.rounds(todo, schedule, history, writer):
            with noted(f"It happened in round {t + 1}."):
                now, row = backend.run_round(now, t, evaluate=schedule.evaluated(t) == t)
            row["seconds"] += building if t == todo.start else 0.0
            if CLIENTS in config["record"] and now.values is not None:
                row["clients"] = client_columns(now.values, experiment.metrics.infos)
            history.append(row)
            if chosen is not None and now.values is not None:
                chosen.see(history, now.values, partial(backend.clients, now.state, t), folder)
            if writer is not None:
                writer.keep(row, backend.saved(now))
            bar.update(row)
            tracking.round(row)
            if stops_early(config, history):
                bar.say(why_stopped(config, history))
                break
    return _finished(experiment, backend, folder, config, now, history, tracking, limited, chosen)


def _finished(
    experiment: Experiment,
    backend: Backend,
    folder: RunFolder | None,
    config: Config,
    now: RunState,
    history: list[Row],
    tracking: Tracking,
    limited: LimitedRun | None,
    chosen: Chosen | None,
) -> Run:
    """Return the run after its last round, with the models that its rule has chosen, and write its last files."""
    saved, last = backend.saved(now), len(history) - 1
    if limited is not None:
        limited.finishing(tuned=experiment.program.finetune is not None)
    if chosen is None or not chosen.rounds:
        clients, taken, apart = backend.clients(now.state, last), [], None
        values = now.values or backend.values(now.state, now.after_train, last)
    else:
        clients, values, taken = chosen.clients, chosen.values, chosen.rounds
        apart = chosen.columns(experiment.federation) if rule_of(config) == PER_CLIENT else None
    final = saved if isinstance(saved, dict) else saved.gathered()
    known = client_summary(experiment, values, len(history), clients, taken)
    summary = summarize(config, history, apart)
    if (newcomers := newcomer_summary(experiment, final)) is not None:
        known["newcomers"], summary["newcomers"] = newcomers, mean_over(newcomers)
    known |= resampled(experiment, clients)
    named = Clients(with_format(config, clients), known.get("names", ()))
    constants: Tensors = to_device(experiment.model.constants, torch.device("cpu"))
    run = Run(config, History(history), summary, named, final, known, constants)
    if folder is not None:
        common, own = folded(run.clients)
        written = own if limited is None else limited.written(own)
        folder.finish(run.summary, written, run.client_summary, with_constants(common, run.constants))
    tracking.summary = run.summary
    return run


def _built(experiment: Experiment, now: RunState, todo: range) -> float:
    """Let an engine build its programs together, by going through the next round, and return the seconds it took."""
    silent = replace(experiment.metrics, silent=True)  # answers are none of the model's, which a metric may not take
    began, plain = time.perf_counter(), replace(experiment, metrics=silent).having(record=())
    if isinstance(experiment.engine, InMemory) and len(todo):
        # A program is built as it will run: how products are rounded is a part of it.
        with noted(f"It happened in round {todo.start + 1}."), products(experiment.model.precision):
            experiment.engine.rehearse(lambda: plain.run_round(now, todo.start, evaluate=True))
    return time.perf_counter() - began
