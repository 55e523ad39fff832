"""A member without the others: its own samples, split, model, settings, seed and rounds, trained alone."""

from collections.abc import Sequence
from pathlib import Path

from ...algorithms import local
from ...algorithms.base import Algorithm
from ...algorithms.options import Training
from ...core.errors import FolderError, UserError
from ...core.schema import Config, Summary, TrackedRow
from ...store import RunFolder
from ...training.prepare import prepare
from ...training.results import run_so_far
from ...training.run import Run
from ..setup.agreement import algorithm
from ..setup.config import PeerConfig
from ..setup.prepare import Participant, configuration

OF_MESSAGES = ("quantize", "robust")  # settings of training that mean nothing without messages


class EnoughRounds(UserError):  # noqa: N818 (no error: the run is saved)
    """The run alone has as many rounds as the federation has."""


class StopAfter:
    """A tracker that ends a run after some round; the run is saved and can go on."""

    name = "stop"

    def __init__(self, round: int) -> None:
        self._round = round

    def begin(self, config: Config, folder: Path | None, history: Sequence[TrackedRow]) -> str:
        """End a run that has the rounds already."""
        self._end_after(len(history))
        return ""

    def round(self, row: TrackedRow) -> None:
        """End the run after the last round that it needs."""
        self._end_after(row["round"])

    def end(self, summary: Summary | None) -> None:
        """Do nothing: the run is saved."""

    def _end_after(self, done: int) -> None:
        if done >= self._round:
            raise EnoughRounds(f"{done} rounds are enough here")


def with_others(participant: Participant) -> Run | Path:
    """Return what a member has of its federation so far; refuse a folder that other data or settings have made."""
    folder, name = RunFolder(participant.folder), participant.name
    if not folder.exists or not folder.rows():
        raise UserError(
            f"{name} has no finished round of the federation {participant.federation} in {folder.path}, so there is "
            "nothing to compare with: run coterie peer first"
        )
    try:
        folder.check_same(configuration(participant))
    except FolderError as error:
        raise FolderError(
            str(error)
            .replace("cannot resume", "cannot compare with", 1)
            .replace("use the same options, or another --out", "peer.toml must say what it said then")
        ) from error
    return folder.path if folder.finished else run_so_far(folder, participant.experiment, participant.alone)


def without_others(config: PeerConfig, member: Participant, out: Path, rounds: int) -> Run | Path:
    """Train a member alone until it has so many rounds, from where the folder ``out`` stands, and return the run."""
    rounds_of_all, method = config.federation.rounds, local_method(config)
    settings = member.experiment.settings.having(
        loss=member.given.loss,
        validation=0.0,  # its validation samples are apart already
        out=out,
        resume=True,
        progress=f"{config.name} alone",
        trackers=[StopAfter(rounds)] if rounds < rounds_of_all else [],
    )
    prepared = prepare(member.given.module, member.alone.federation, method, settings)
    try:
        prepared.run()
    except EnoughRounds:
        return run_so_far(RunFolder(out), prepared.experiment, prepared.experiment)
    return out


def local_method(config: PeerConfig) -> Algorithm:
    """Return local training with the settings of the federation's method that speak of training."""
    settings = algorithm(config).settings
    chosen = {k: v for k, v in settings.items() if k in Training._fields and k not in OF_MESSAGES}
    epochs = chosen.get("epochs")
    if isinstance(epochs, tuple):  # one number for each group of members
        chosen["epochs"] = epochs[config.client * len(epochs) // len(config.members)]
    return local(**chosen)
