"""The two sides that need no environment of their own: Coterie, and the plain PyTorch loop."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import plain
import work
from coterie import fit, models
from coterie.algorithms.base import Algorithm, Problem, Program, Round, Trained
from coterie.core.tensors import Integers, Tensors
from coterie.data import Federation
from measure import mean_loss
from workloads import SEED, Workload, make_algorithm

Played = tuple[Tensors, str]
"""The server's model after the last round, and how clients were run."""


def play_coterie(w: Workload, federation: Federation, model: nn.Module, _: Any, clock: work.Clock) -> Played:
    """All rounds through ``fit``; it draws the same cohorts, as those on file were drawn by it.

    Without test samples, because peers are timed without evaluation too.
    """
    nothing = torch.arange(0)
    untested = replace(
        federation,
        test_x=federation.test_x[:0],
        test_y=federation.test_y[:0],
        test=tuple(nothing for _ in federation.train),
    )
    algorithm = clocked(make_algorithm(w), clock)
    run = fit(model, untested, algorithm, rounds=w.rounds, seed=SEED, device="cpu", progress=False)
    return run.clients[0].shared, run.config["engine"]


def clocked(algorithm: Algorithm, clock: work.Clock) -> Algorithm:
    """The same algorithm; the clock hears when its first round begins and whenever an exchange is done."""

    def bind(problem: Problem) -> Program[Any]:
        program = algorithm.bind(problem)

        def train(state: Any, r: Round) -> Trained:
            if r.index == 0:
                clock.start()
            return program.train(state, r)

        def exchange(state: Any, trained: Trained, r: Round) -> Any:
            mixed = program.exchange(state, trained, r)
            clock.tick()
            return mixed

        return program._replace(train=train, exchange=exchange)

    return replace(algorithm, bind=bind)


def play_plain(
    w: Workload, federation: Federation, model: nn.Module, cohorts: Iterable[Integers], clock: work.Clock
) -> Played:
    """All rounds of the plain loop."""

    def ticking() -> Iterator[Integers]:
        clock.start()
        for cohort in cohorts:
            yield cohort
            clock.tick()  # the loop asks for the next cohort when it is done with this one

    return plain.run(w, federation, model, ticking()).states[0], "plain loop"


PLAYERS: dict[str, Callable[..., Played]] = {"coterie": play_coterie, "plain": play_plain}


def federation_of(files: work.Work) -> Federation:
    """The samples on file as Coterie holds them."""
    clients, samples = files.y.shape
    x, y, test_x, test_y = (torch.from_numpy(v) for v in (files.x, files.y, files.test_x, files.test_y))
    return Federation(
        x=x.flatten(0, 1),
        y=y.flatten(),
        test_x=test_x,
        test_y=test_y,
        train=torch.split(torch.arange(clients * samples), samples),
        test=torch.arange(len(test_y)).tensor_split(clients),
        classes=int(y.max()) + 1,
    )


def main() -> None:
    """Plays the rounds of one side and reports."""
    told = work.arguments("side")
    files, clock = work.load(told.folder), work.Clock()
    w = replace(Workload(**files.settings), rounds=told.rounds)
    federation = federation_of(files)
    model = models.build(w.model, federation, seed=SEED)
    first: dict[str, Tensor] = {name: torch.from_numpy(value) for name, value in files.weights.items()}
    model.load_state_dict(first)
    last, engine = PLAYERS[told.side](w, federation, model, files.cohorts[: told.rounds], clock)
    losses = mean_loss(model, [first], federation), mean_loss(model, [last], federation)
    work.report(told.report, clock, *losses, ["coterie", "torch", "numpy"], engine)


if __name__ == "__main__":
    main()
