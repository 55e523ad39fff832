"""How sure every client's metric is, which ``clients.json`` keeps so that methods can be compared client by client."""

from collections.abc import Sequence

import numpy as np

from ..engines import Serial
from ..measure.evaluate import sample_statistics
from ..measure.resample import draws, resample
from ..measure.rows import finite
from .experiment import Experiment
from .run import Client

MOST = 100_000  # numbers that are written


def resampled(experiment: Experiment, clients: Sequence[Client]) -> list[list[float | None]] | None:
    """Return [n][draws] the first metric of the model that each client ends with, over test samples drawn again.

    None where nothing is measured, or where there are too many clients to write all of it.
    """
    if not experiment.measurable or len(clients) * draws(experiment.metrics.each[0]) > MOST:
        return None
    device, metrics, kept = experiment.tests.x.device, experiment.metrics, []
    for number, client in enumerate(clients):
        model = client.model or experiment.model
        one = {k: v.to(device)[None] for k, v in (client.shared | client.personal).items()}
        found = sample_statistics(Serial(device), model, one, experiment.tests, np.array([number]), metrics)
        kept.append(found[:, : metrics.widths[0]])
    values = resample(metrics.each[0], kept, experiment.seed)
    return [[finite(float(f"{value:.6g}")) for value in each] for each in values.tolist()]
