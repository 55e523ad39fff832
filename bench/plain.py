"""The other side: the sequential loop most research code has.

It makes a deep copy of the model per client, a shuffling loader over its samples, ``torch.optim.SGD`` and an average of
state dicts. Nothing of Coterie takes part, so that its results are also an independent check of Coterie's.
"""

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from coterie.core.rng import torch_draws
from coterie.core.tensors import Integers
from coterie.data import Federation
from workloads import SEED, Workload

State = dict[str, Tensor]
Loaders = Sequence[DataLoader[tuple[Tensor, ...]]]


class PlainRun(NamedTuple):
    """The result of the loop."""

    states: list[State]  # the server's model, or every client's on a ring
    seconds: list[float]  # of each round


def run(w: Workload, federation: Federation, model: nn.Module, cohorts: Iterable[Integers]) -> PlainRun:
    """Run all rounds of a workload, from the weights of ``model``."""
    loaders = _loaders(w, federation)
    with torch_draws(SEED):  # of the loaders' shuffling
        return (ring if w.ring else star)(w, model, loaders, cohorts)


def star(w: Workload, model: nn.Module, loaders: Loaders, cohorts: Iterable[Integers]) -> PlainRun:
    """Send a server's model to a cohort and average what comes back by number of samples, round by round."""
    server = copy.deepcopy(model)

    def one_round(cohort: Integers) -> None:
        states, sizes = [], []
        for i in cohort:
            client = copy.deepcopy(server)
            train(client, loaders[i], w.epochs, w.lr)
            states.append(client.state_dict())
            sizes.append(len(loaders[i].dataset))
        server.load_state_dict(average(states, [size / sum(sizes) for size in sizes]))

    seconds = [_seconds(one_round, cohort) for cohort in cohorts]
    return PlainRun([server.state_dict()], seconds)


def ring(w: Workload, model: nn.Module, loaders: Loaders, cohorts: Iterable[Integers]) -> PlainRun:
    """Train every client, then average each with its two neighbors, round by round."""
    clients = [copy.deepcopy(model) for _ in loaders]

    def one_round(cohort: Integers) -> None:
        for i in cohort:
            train(clients[i], loaders[i], w.epochs, w.lr)
        states = [copy.deepcopy(client.state_dict()) for client in clients]
        for i, client in enumerate(clients):
            near = [states[i - 1], states[i], states[(i + 1) % len(states)]]
            client.load_state_dict(average(near, [1 / 3] * 3))

    seconds = [_seconds(one_round, cohort) for cohort in cohorts]
    return PlainRun([client.state_dict() for client in clients], seconds)


def train(client: nn.Module, loader: Iterable[Sequence[Tensor]], epochs: int, lr: float) -> None:
    """Train one client."""
    client.train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(client.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(client(x), y).backward()
            optimizer.step()


def average(states: Sequence[State], shares: Sequence[float]) -> State:
    """Return the weighted mean of some state dicts."""
    pairs = list(zip(states, shares, strict=True))
    return {k: torch.stack([share * state[k] for state, share in pairs]).sum(0) for k in states[0]}


def _loaders(w: Workload, federation: Federation) -> Loaders:
    samples = TensorDataset(federation.x, federation.y)
    parts = [Subset(samples, part.tolist()) for part in federation.train]
    return [DataLoader(part, batch_size=w.batch_size or len(part), shuffle=True) for part in parts]


def _seconds(one_round: Callable[[Integers], None], cohort: Integers) -> float:
    began = time.perf_counter()
    one_round(cohort)
    return time.perf_counter() - began
