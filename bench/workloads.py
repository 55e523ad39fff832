"""The workloads: fixed data, fixed initial weights, fixed cohorts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from coterie import algorithms, models
from coterie.algorithms import Algorithm
from coterie.core.errors import unknown
from coterie.core.tensors import Integers
from coterie.data import Federation
from coterie.training.schedule import Schedule
from coterie.training.settings import RunSettings

SEED = 0
CLASSES = 10
SIDE = 28  # images of 28 x 28
COARSE = 7  # a class is a pattern of 7 x 7 squares
TEST_SAMPLES = 2000
LABEL_MIX = 0.5  # Dirichlet concentration: most clients hold a few classes only

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Workload:
    """Who trains what, for how long, with plain SGD: no momentum, no decay, no clipping."""

    name: str
    model: str
    clients: int
    cohort: int  # how many train in a round
    samples: int  # per client
    batch_size: int | None  # None: all samples of a client
    epochs: int
    rounds: int  # per repeat: enough for a median, few enough to wait for
    ring: bool = False  # neighbors average with each other instead of a server with all
    lr: float = 0.05

    @property
    def method(self) -> str:
        """The name of the algorithm."""
        return "dfedavg" if self.ring else "fedavg"

    def __str__(self) -> str:
        who = f"a ring of {self.clients}" if self.ring else f"{self.cohort} of {self.clients:,} clients"
        passes = f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"
        batch = "full batches" if self.batch_size is None else f"batches of {self.batch_size}"
        return f"{self.method}, {self.model}, {who}, {self.samples} samples each, {batch}, {passes}"


WORKLOADS = {
    w.name: w
    for w in (
        Workload("W1", "cnn", clients=100, cohort=10, samples=500, batch_size=50, epochs=1, rounds=3),
        Workload("W2", "logreg", clients=1000, cohort=100, samples=60, batch_size=20, epochs=1, rounds=20),
        Workload("W3", "cnn", clients=20, cohort=20, samples=100, batch_size=20, epochs=5, rounds=2, ring=True),
    )
}


def find(names: Sequence[str]) -> list[Workload]:
    """Return the workloads of these names, in any case; all of them where no name is given.

    >>> [w.name for w in find(["w2"])], len(find([]))
    (['W2'], 3)
    """
    for name in names:
        if name.upper() not in WORKLOADS:
            raise unknown("workload", name, WORKLOADS)
    return [WORKLOADS[name.upper()] for name in names] or list(WORKLOADS.values())


def make_federation(w: Workload) -> Federation:
    """Return noisy patterns, one per class; every client draws its labels from a mix of its own."""
    rng = np.random.default_rng(SEED)
    coarse = rng.standard_normal((CLASSES, COARSE, COARSE), np.float32)
    patterns = coarse.repeat(SIDE // COARSE, 1).repeat(SIDE // COARSE, 2)
    mixes = rng.dirichlet(np.full(CLASSES, LABEL_MIX), w.clients)
    labels = np.concatenate([rng.choice(CLASSES, w.samples, p=mix) for mix in mixes])
    test_labels = rng.integers(CLASSES, size=TEST_SAMPLES)
    return Federation(
        x=torch.from_numpy(_images(rng, patterns, labels)),
        y=torch.from_numpy(labels),
        test_x=torch.from_numpy(_images(rng, patterns, test_labels)),
        test_y=torch.from_numpy(test_labels),
        train=torch.split(torch.arange(w.clients * w.samples), w.samples),
        test=torch.arange(TEST_SAMPLES).tensor_split(w.clients),
        classes=CLASSES,
    )


def _images(rng: np.random.Generator, patterns: Floats, labels: Integers) -> Floats:
    """Return images [N, 1, 28, 28] in [-1, 1], made in place: a second copy would show in the peak memory."""
    x = rng.standard_normal((len(labels), 1, SIDE, SIDE), np.float32)
    x *= 0.4
    for label, pattern in enumerate(patterns):
        x[labels == label] += 0.3 * pattern
    return x.clip(-1, 1, out=x)


def make_model(w: Workload, federation: Federation) -> nn.Module:
    """Return the model with its initial weights."""
    return models.build(w.model, federation, seed=SEED)


def make_algorithm(w: Workload) -> Algorithm:
    """Return the workload as one of Coterie's algorithms."""
    who = {"topology": "ring"} if w.ring else {"participation": w.cohort}
    sgd = {"lr": w.lr, "lr_decay": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip": None}
    return algorithms.build(w.method, **who, **sgd, batch_size=w.batch_size, epochs=w.epochs)


def make_cohorts(w: Workload, federation: Federation) -> list[Integers]:
    """Return who trains in each round, as ``fit`` draws them, so that both sides train the same clients."""
    schedule = Schedule(federation.clients, w.cohort, RunSettings(rounds=w.rounds, seed=SEED))
    return [schedule.cohort(t) for t in range(w.rounds)]
