"""Which method is better, in sentences that claim no more than a paired test over the clients does."""

from collections.abc import Sequence

import numpy as np

from ..measure.paired import FEWEST, Numbers, against
from .results import Result


def verdict(results: Sequence[Result]) -> list[str]:
    """What the test is, then the best method against every other; nothing where there is nothing to compare."""
    if len(results) < 2:
        return []
    accuracies = _of_clients(results)
    methods, clients = accuracies.shape
    if clients < FEWEST:
        return [f"{clients} clients are too few for a paired test that tells which method is better: {FEWEST} needed."]
    best = int(accuracies.mean(axis=1).argmax())
    seeds, pairs = len(results[0].outcomes), methods * (methods - 1) // 2
    each = f", each client's mean over {seeds} seeds" if seeds > 1 else ""
    corrected = f", Holm-corrected for all {pairs} pairs of methods" if pairs > 1 else ""
    return [
        f"Personal accuracy after mixing{each}: {results[best].method} has the highest mean of {clients} clients. "
        f"Sign-flip test, two-sided{corrected}.",
        *(
            f"{results[best].method} against {results[j].method}: {p.said}"
            for j, p in against(best, accuracies).items()
        ),
    ]


def _of_clients(results: Sequence[Result]) -> Numbers:
    """[methods, clients] each client's accuracy after mixing, mean over the seeds, of those who have it everywhere."""
    each = [[o.clients.get("after_mix", []) for o in r.outcomes] for r in results]
    means = np.array(each, dtype=np.float64).mean(axis=1)  # None, of a client without test samples, becomes NaN
    known: Numbers = means[:, ~np.isnan(means).any(axis=0)]
    return known
