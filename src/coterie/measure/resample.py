"""How sure a client's metric is, given how few test samples it has: the metric over samples drawn again (bootstrap)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import rng
from .metric import Metric

DRAWS = 400  # of a client: the ends of an interval of 95 % are the tenth lowest and the tenth highest
FEWER = 100  # of metrics that are not made of sums: AUROC of ten classes takes 2 ms each time


def resample(metric: Metric, kept: Sequence[Tensor], seed: int) -> Tensor:
    """Return [m, draws] the metric of each client over as many of its test samples, drawn with replacement.

    ``kept``: [n_i, k] the statistics of client i. A seed draws the same samples again whatever was trained, so that
    the differences between two methods are those on the same samples. Efron, The Annals of Statistics 7 (1979).
    """
    count = draws(metric)
    found = torch.full((len(kept), count), torch.nan, dtype=torch.float64)
    for client, own in enumerate(kept):
        if not len(own):
            continue
        rows = torch.from_numpy(rng.generator(seed, "resampled", client).integers(0, len(own), (count, len(own))))
        exact = own.to(torch.float64)
        if metric.additive:
            times = torch.zeros(count, len(own), dtype=torch.float64)
            times.scatter_add_(1, rows, torch.ones(1, 1, dtype=torch.float64).expand_as(rows))
            found[client] = metric.value((times @ exact)[:, None])
        else:
            found[client] = torch.stack([torch.as_tensor(metric.value(exact[each])).double() for each in rows])
    return found


def draws(metric: Metric) -> int:
    """Return how often the samples of a client are drawn again."""
    return DRAWS if metric.additive else FEWER
