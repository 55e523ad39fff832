"""How sure a client's metric is, given how few test samples it has: the metric over samples drawn again (bootstrap)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import rng
from .metric import Metric

DRAWS, LEAST = 4_000, 400  # of a client: the ends of an interval of 95 % are unsure by 1 to 3 % of its width
FEWER = 100  # of metrics that are not made of sums: AUROC of ten classes takes 2 ms each time
NUMBERS = 100_000  # of all clients together, that are kept
SAMPLES = 16_000_000  # that are drawn, of all clients together: half a second
AT_ONCE = 1_000_000  # of them in memory


def resample(metric: Metric, kept: Sequence[Tensor], seed: int) -> Tensor:
    """Return [m, draws] the metric of each client over as many of its test samples, drawn with replacement.

    ``kept``: [n_i, k] the statistics of client i. A seed draws the same samples again whatever was trained, so that
    the differences between two methods are those on the same samples. Efron, The Annals of Statistics 7 (1979).
    """
    count = draws(metric, [len(own) for own in kept])
    found = torch.full((len(kept), count), torch.nan, dtype=torch.float64)
    for client, own in enumerate(kept):
        if not len(own):
            continue
        exact, generator = own.to(torch.float64), rng.generator(seed, "resampled", client)
        block = max(1, AT_ONCE // len(own))
        for begin in range(0, count, block):
            some = found[client, begin : begin + block]
            rows = torch.from_numpy(generator.integers(0, len(own), (len(some), len(own))))
            some.copy_(_values(metric, exact, rows))
    return found


def _values(metric: Metric, exact: Tensor, rows: Tensor) -> Tensor:
    """Return [draws] the metric over the samples in each of ``rows``."""
    if not metric.additive:
        return torch.stack([torch.as_tensor(metric.value(exact[each])).double() for each in rows])
    times = torch.zeros(rows.shape, dtype=torch.float64)
    times.scatter_add_(1, rows, torch.ones(1, 1, dtype=torch.float64).expand_as(rows))
    return torch.as_tensor(metric.value((times @ exact)[:, None])).double()


def draws(metric: Metric, test_samples: Sequence[int]) -> int:
    """Return how often the samples of every client are drawn again, by what all of them have.

    >>> from types import SimpleNamespace as Like
    >>> [draws(Like(additive=True), sizes) for sizes in ([30] * 20, [30] * 100, [10_000], [10_000] * 9)]
    [4000, 1000, 1600, 400]
    """
    if not metric.additive:
        return FEWER
    most = min(NUMBERS // len(test_samples), SAMPLES // max(1, sum(test_samples)))
    return max(LEAST, min(DRAWS, most))
