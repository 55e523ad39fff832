"""How sure every client's metric is, which ``clients.json`` keeps so that methods can be compared client by client."""

from collections.abc import Sequence

import numpy as np

from ..core.schema import ACCURACY, ClientSummary
from ..engines import Serial
from ..measure import Metrics
from ..measure.evaluate import sample_statistics
from ..measure.paired import FEWEST
from ..measure.resample import NUMBERS, draws, resample
from ..measure.rows import finite
from .client import Client
from .experiment import Experiment


def resampled(experiment: Experiment, clients: Sequence[Client]) -> ClientSummary:
    """Return what ``clients.json`` keeps to compare methods client by client, of the model that each ends with.

    That is the first metric over test samples drawn again, and of few clients also which samples are right: one bit
    each, never the answer. Nothing where nothing is measured, or where there are too many clients to write all of it.
    """
    sizes = experiment.tests.sizes.tolist()
    if not experiment.measurable or len(clients) * draws(experiment.metrics.each[0], sizes) > NUMBERS:
        return {}
    device, metrics, kept = experiment.tests.y.device, experiment.metrics, []
    for number, client in enumerate(clients):
        model = client.model or experiment.model
        one = {k: v.to(device)[None] for k, v in (client.shared | client.personal).items()}
        each = sample_statistics(Serial(device), model, one, experiment.tests, np.array([number]), metrics)
        kept.append(each[:, : metrics.widths[0]])
    # The same draws for every seed of a run: where the seeds have the same test samples, they are not more samples.
    values = resample(metrics.each[0], kept, seed=0)
    single = np.asarray(values, dtype=np.float32)  # as their file holds them
    found: ClientSummary = {"resampled": [[finite(value) for value in row] for row in single.tolist()]}
    if len(clients) < FEWEST and _right_or_wrong(metrics) and sum(sizes) <= NUMBERS:
        found["right"] = ["".join("01"[int(hit)] for hit in own[:, 0]) for own in kept]
    return found


def _right_or_wrong(metrics: Metrics) -> bool:
    """Whether every test sample has one answer, which is right or wrong."""
    return metrics.infos[0] == ACCURACY and metrics.task.kind == "classes"
