"""A run as its folder has it after the latest saved round, whether or not more rounds follow."""

from collections.abc import Sequence
from time import sleep

from ..core.clients import Clients
from ..core.errors import DamagedFileError, FolderError, UserError
from ..core.schema import Config, Row
from ..measure import summarize
from ..measure.selection import PER_CLIENT, rule_of
from ..store import RunFolder
from .chosen import Chosen, chosen_so_far
from .client_summary import client_summary
from .experiment import Experiment
from .history import History
from .resampled import resampled
from .run import Run
from .state import RunState

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
