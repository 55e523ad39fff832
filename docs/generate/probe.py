"""The local work of one round of an experiment, without mixing and without measuring."""

from typing import Any, NamedTuple

from coterie.algorithms.base import Round, Trained
from coterie.algorithms.traffic import Traffic
from coterie.training.experiment import Experiment


class ProbeRound(NamedTuple):
    """What the local work of one round leaves behind."""

    state: Any  # before the round
    round: Round
    trained: Trained
    traffic: Traffic


def probe_round(experiment: Experiment, t: int) -> ProbeRound:
    """Train round ``t`` from the first state."""
    program, state, r = experiment.program, experiment.start().state, experiment.round(t)
    return ProbeRound(state, r, program.train(state, r), program.traffic(state, r))
