"""A run as its folder has it after the latest saved round, whether or not more rounds follow."""

from collections.abc import Sequence
from time import sleep

from ..core.clients import Clients
from ..core.errors import FolderError, UserError
from ..core.schema import ClientSummary, Row
from ..measure import summarize
from ..store import RunFolder
from ..store.checkpoint import Checkpoint
from .client import Client
from .client_summary import client_summary
from .experiment import Experiment, RunState
from .history import History
from .resampled import resampled
from .run import Run

TRIES, PAUSE = 5, 0.2  # a run under way removes a checkpoint while another process reads it


def run_so_far(folder: RunFolder, experiment: Experiment, described: Experiment) -> Run:
    """Return a run as if its latest saved round were the last; another process may be writing it.

    ``described``: the experiment whose clients the run tells of; a peer's experiment has the clients of all members.
    """
    saved, config = _latest(folder), folder.config()
    history, now = folder.rows(saved.round), experiment.restored(saved)
    clients, known = clients_after(experiment, described, now, history)
    named = Clients(clients, known.get("names", ()))
    return Run(config, History(history), summarize(config, history), named, saved.tensors, known)


def clients_after(
    experiment: Experiment, described: Experiment, now: RunState, history: Sequence[Row]
) -> tuple[list[Client], ClientSummary]:
    """Return the clients' models after the last round of ``history``, and what is known of them."""
    t = len(history) - 1
    clients = experiment.clients(now.state, t)
    values = now.values or experiment.values(now.state, now.after_train, t)
    known = client_summary(described, values, len(history), clients)
    return clients, known | resampled(described, clients)


def _latest(folder: RunFolder) -> Checkpoint:
    """Return the newest checkpoint."""
    for left in reversed(range(TRIES)):
        try:
            found = folder.latest(lambda _: None)
        except FolderError:
            if not left:
                raise
            sleep(PAUSE)
            continue
        if found is not None:
            return found
    raise UserError(f"{folder.path} has no finished round yet: wait for one")
