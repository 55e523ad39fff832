"""How often a run is evaluated where nobody says: so seldom that a long training never waits for it for long.

Reckoned from counts, not from a clock: the same run is always evaluated in the same rounds.
"""

from dataclasses import replace
from math import ceil, log
from typing import Literal

from ..data.batches import Batches
from ..measure.convergence import OWN_TRAIN
from ..measure.selection import chooses
from ..store import RunFolder
from .experiment import Experiment

# Of the training's multiply-adds. An evaluation takes up to 1.7 times as long as its own let expect: going forward is
# more than a third of a step of small models, and it measures distances too. 5 % by count are 3 to 9 % by the clock.
SHARE = 0.05
CALL = 20e6  # multiply-adds in the time that an engine takes for anything: 1 to 2 ms on two cores
PARTS = 8  # of a run, of each of which a round is looked at
FREE_MACS = 20e9  # multiply-adds of all evaluations of a run: about two seconds on two cores, and nobody waits for less
EVALUATIONS = 10  # of a run, at least: with fewer, neither a curve nor the rounds to a target say anything


def interval(asked: int | Literal["auto"], experiment: Experiment, begun: RunFolder | None) -> int:
    """Return the rounds between two evaluations; a continued run keeps its own unless another number is asked for."""
    if isinstance(asked, str):  # auto
        known = None if begun is None else begun.config().get("evaluate_every")
        return known if isinstance(known, int) and known > 0 else evaluation_interval(experiment)
    return asked


def evaluation_interval(experiment: Experiment) -> int:
    """Return the rounds between two evaluations: 1 where something is recorded or chosen, because that was asked for.

    Only rounds that were evaluated can be chosen.
    """
    e = experiment
    if not e.measurable or e.settings.record or chooses(e.settings.saved):
        return 1
    price = e.flops_per_sample(e.model) / 3
    work = evaluation_passes(e) * price
    if e.settings.rounds * (work + 4 * CALL) <= FREE_MACS:
        return 1
    cheap = ceil((work + calls(e) * CALL) / (SHARE * training_price(e) * max(1, training_passes(e))))
    return min(cheap, max(1, e.settings.rounds // EVALUATIONS))


def training_price(e: Experiment) -> float:
    """Count the multiply-adds of a sample that is trained on, forward and back: the mean over the members' submodels.

    Rounds from all parts of the run are looked at, because submodels may change.
    """
    submodels = e.program.submodels
    if submodels is None:
        return float(e.flops_per_sample(e.model))
    rounds = sorted({e.settings.rounds * (2 * k + 1) // (2 * PARTS) for k in range(PARTS)})
    asked = (replace(e.round(t), cohort=e.schedule.asked(t)) for t in rounds)  # with those that are absent
    held = [(len(a.places), e.flops_per_sample(a.submodel.model)) for r in asked for a in submodels(r)]
    return sum(count * flops for count, flops in held) / sum(count for count, _ in held)


def calls(e: Experiment) -> float:
    """Count how often an engine is called: after aggregation, for the mean model, and after local training.

    Where m of n take part, the latest trainings of all of them lie in about the last n/m (1 + log m) rounds.
    """
    n, m = e.federation.clients, len(e.schedule.asked(0))
    return 2 + (1 if m == n else n / m * (1 + log(m)))


def evaluation_passes(e: Experiment) -> int:
    """Count the samples that go forward in one evaluation: the clients' own twice, and all through the mean model.

    Fine-tuning for the measurement goes forward and back.
    """
    tuning = 3 * e.program.training.finetune_epochs * int(e.train.sizes.sum())
    trained = 2 * int(e.train.sizes.sum()) if OWN_TRAIN in e.settings.record else 0
    return (3 if tuning else 2) * int(e.tests.sizes.sum()) + len(e.tests.y) + tuning + trained


def training_passes(e: Experiment) -> int:
    """Count the samples that go forward and back in the last phase of the first round: the main one."""
    phase, t = e.program.phases[-1], e.program.training
    return Batches(
        e.train, e.schedule.asked(0), phase.amount, None if phase.full_batch else t.batch_size, key=None
    ).seen
