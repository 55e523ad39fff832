"""Which client lies on which shard: so that all shards have about equally much to do."""

import heapq

import numpy as np
from numpy.typing import NDArray

from ..data.batches import Integers
from ..training.experiment import Experiment


def costs(experiment: Experiment) -> NDArray[np.float64]:
    """[n] what a pass over its samples costs each client: their number times the FLOPs of the form it trains.

    Of the first round: forms that change over the rounds change for everybody alike, and only ratios matter.
    """
    e = experiment
    each = np.full(e.federation.clients, float(e.flops_a_sample(e.model)))
    submodels = e.program.submodels
    for a in [] if submodels is None else submodels(e.everybody(0)):
        each[a.places] = e.flops_a_sample(a.submodel.model)
    return each * e.train.sizes


def assigned(cost: NDArray[np.float64], shards: int) -> Integers:
    """[n] the shard of each client: the costliest first, each where least is to be done so far.

    >>> assigned(np.array([1.0, 4.0, 2.0, 3.0]), 2).tolist()
    [0, 0, 1, 1]
    """
    owner = np.empty(len(cost), np.int64)
    least = [(0.0, 0, shard) for shard in range(shards)]  # what is to be done, for how many clients
    for client in np.argsort(-cost, kind="stable").tolist():
        done, clients, shard = heapq.heappop(least)
        owner[client] = shard
        heapq.heappush(least, (done + float(cost[client]), clients + 1, shard))
    return owner
