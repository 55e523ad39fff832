"""Clients in threads of one process: whatever happens in them looks as if they had run one after another."""

import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.core.tensors import Tensors
from coterie.data.batches import Batch
from coterie.engines import Serial
from coterie.engines.base import StepInfo
from coterie.engines.threads import torch_threads
from coterie.models.model import Model, cross_entropy
from coterie.models.trials import draws_randomness
from coterie.training.select_engine import Candidate, Work, choose

CLIENTS = 6
KEYS = list(range(100, 100 + CLIENTS))
PLACES = torch.arange(CLIENTS)


def map_places(f: Callable[[Tensor], Tensor], workers: int, keys: list[int] = KEYS) -> Tensor:
    """``f`` of each client's place."""
    out: Tensor = Serial(workers=workers).map(f, PLACES, keys=keys)
    return out


def test_how_many_threads_a_client_has_does_not_depend_on_the_workers() -> None:
    """There may be memory for fewer the next time, and sums depend on the threads to the last bit."""
    with torch_threads(3):
        for workers in (1, 2):
            engine = Serial(workers=workers, threads=2)
            several, alone = (
                engine.map(lambda place: place * 0 + torch.get_num_threads(), PLACES[:n], keys=KEYS[:n]) for n in (4, 1)
            )
            assert (several.tolist(), alone.tolist()) == ([2] * 4, [3])
        assert torch.get_num_threads() == 3


class TestRandomNumbers:
    """They are those of the plain loop, wherever they are drawn."""

    def some_draw(self, i: Tensor) -> Tensor:
        return torch.rand(3) if i >= 2 else torch.zeros(3)

    def test_drawn_by_some_clients_only(self) -> None:
        assert torch.equal(map_places(self.some_draw, 1), map_places(self.some_draw, 3))

    def test_drawn_and_put_back(self) -> None:
        def replaying(i: Tensor) -> Tensor:
            before = torch.random.get_rng_state()
            first = torch.rand(2)
            torch.random.set_rng_state(before)
            assert torch.equal(first, torch.rand(2))
            return first

        assert torch.equal(map_places(replaying, 1), map_places(replaying, 3))

    def test_found_at_the_first_gradient(self) -> None:
        engine, steps = Serial(workers=2), [0]

        def noisy(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensor, StepInfo]:
            steps[0] += 1
            loss = (x["x"] * torch.rand(())).sum()
            return loss, StepInfo(loss, {})

        grad, batch = engine.gradient(noisy), Batch(torch.zeros(1), torch.zeros(1), None)
        engine.map(lambda x: [grad({"x": x}, {}, batch) for _ in range(50)][-1][0], torch.ones(CLIENTS), keys=KEYS)
        assert CLIENTS * 50 < steps[0] <= CLIENTS * 50 + 2  # the loop, and what the two threads tried first

    def test_the_generator_is_left_as_it_was(self) -> None:
        before = torch.random.get_rng_state()
        map_places(self.some_draw, 3)
        assert torch.equal(before, torch.random.get_rng_state())


class Noisy(nn.Module):
    """Draws where it is told to, with a seed of its own that leaves no trace, or with dropout."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.weight, self.where = nn.Parameter(torch.ones(())), where

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "dropout":
            x = nn.functional.dropout(x, training=self.training)
        elif self.where == "evaluation" and not self.training:
            x = x + torch.randn(())
        elif self.where == "untraceable":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                x = x + torch.randn_like(x)
        return x * self.weight


@pytest.mark.parametrize("where", ["dropout", "evaluation", "untraceable", "nowhere"])
def test_a_model_that_draws_is_found_by_trying(where: str) -> None:
    model, batch = (
        Model(Noisy(where), lambda outputs, targets: outputs.mean()),
        Batch(torch.ones(4), torch.ones(4), None),
    )
    before = torch.random.get_rng_state()
    assert draws_randomness(model, batch) is (where != "nowhere")
    assert torch.equal(before, torch.random.get_rng_state())
    with torch_threads(3):
        tried = Candidate(model, batch, batch.y, Work(5, 4, 10**6), torch.device("cpu"), lambda engine: None)
        engine = choose("serial", tried).engine
    assert isinstance(engine, Serial)
    assert engine.workers == (3 if where == "nowhere" else 1)


class TestErrors:
    """They surface as they are."""

    def test_that_of_the_first_client_wins(self) -> None:
        def failing(i: Tensor) -> Tensor:
            if i == 1:
                time.sleep(0.1)  # the later clients fail first
            if i >= 1:
                raise ValueError(f"client {int(i)}")
            return i

        with pytest.raises(ValueError, match="client 1") as caught:
            map_places(failing, 3)
        assert "failing" in [entry.name for entry in caught.traceback]

    @pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="this system sends no signals to threads")
    def test_an_interruption_ends_everybody_at_the_next_gradient(self) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may have it ignored
        engine, running, everybody = Serial(workers=3), set(), threading.Barrier(3)

        def constant(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensor, StepInfo]:
            return x["x"].sum(), StepInfo(x["x"].sum(), {})

        def endless(x: Tensor) -> Tensor:
            running.add(threading.get_ident())
            if everybody.wait(timeout=60) == 0:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            try:
                while True:
                    time.sleep(0.05)
                    engine.gradient(constant)({"x": x}, {}, Batch(torch.zeros(1), torch.zeros(1), None))
            finally:
                running.remove(threading.get_ident())

        try:
            with pytest.raises(KeyboardInterrupt):
                engine.map(endless, torch.ones(CLIENTS), keys=KEYS)
        finally:
            signal.signal(signal.SIGINT, before)
        assert not running

    def test_the_number_of_threads_is_put_back(self) -> None:
        def failing(i: Tensor) -> Tensor:
            raise ValueError

        before = torch.get_num_threads()
        with pytest.raises(ValueError):
            map_places(failing, 2)
        assert torch.get_num_threads() == before


def test_every_thread_computes_with_its_share_of_the_cores_and_the_callers_mode() -> None:
    def seen(i: Tensor) -> Tensor:
        torch.ones(100_000).sum()  # a thread reads its share when it first computes
        return torch.tensor([torch.get_num_threads(), int(torch.is_grad_enabled())])

    with torch.no_grad():
        assert map_places(seen, 3).tolist() == [[1, 0]] * CLIENTS
    assert map_places(seen, 3).tolist() == [[1, 1]] * CLIENTS


meeting = threading.Barrier(2)


class Meeting(nn.Module):
    """Does not answer before another thread is inside too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        meeting.wait(timeout=60)
        assert isinstance(self.calls, Tensor)
        self.calls += 1
        return x * self.weight


@pytest.mark.parametrize("training", [True, False])
def test_threads_that_meet_inside_a_module_keep_their_own_tensors(training: bool) -> None:
    model = Model(Meeting(), lambda outputs, targets: outputs.sum())
    objective = model.objective if training else model.eval_objective
    batch = Batch(torch.ones(2), torch.zeros(2), None)

    def answers(weight: Tensor) -> tuple[Tensor, Tensor]:
        loss, seen = objective({"weight": weight}, {"calls": torch.zeros(())}, batch)
        return loss, seen.buffers["calls"]

    loss, calls = Serial(workers=2).map(answers, torch.tensor([3.0, 5.0]), keys=[0, 1])
    assert loss.tolist() == [6.0, 10.0]
    assert calls.tolist() == [1.0, 1.0]
    assert model.start["weight"] == 0


def test_copies_of_a_module_share_its_values() -> None:
    model = Model(nn.Linear(3, 2), cross_entropy)
    first = model._evaluate.free.pop()  # another thread has it
    model.outputs(model.start, torch.zeros(1, 3))
    (second,) = model._evaluate.free
    assert first is not second
    assert second.weight is model.module.weight
    assert not second.training


def test_results_are_written_where_they_belong() -> None:
    def tree(i: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return i.double() + 0.5, {"row": i.repeat(2, 3)}

    for workers in (1, 3):
        halves, named = Serial(workers=workers).map(tree, PLACES, keys=KEYS)
        assert halves.dtype == torch.float64
        assert halves.tolist() == [i + 0.5 for i in range(CLIENTS)]
        assert torch.equal(named["row"], PLACES[:, None, None].expand(CLIENTS, 2, 3))


class NoisyInput(nn.Module):
    """A network that lets torch draw random numbers while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x + torch.randn_like(x) if self.training else x)
        return out


def test_runs_in_threads_of_ones_own_are_what_they_are_alone() -> None:
    """Torch's generator belongs to all threads: first models and noise would be drawn from others' seeds."""
    fed = ct.data.federate("synthetic:size=120", clients=3, partition="iid")

    def run(seed: int) -> list[object]:
        fitted = ct.fit(
            NoisyInput, fed, ct.algorithms.local(steps=4), rounds=3, seed=seed, engine="serial", progress=False
        )
        return [row["train_loss"] for row in fitted.history]

    alone = {seed: run(seed) for seed in range(3)}
    found: dict[int, list[object]] = {}
    threads = [threading.Thread(target=lambda s=seed: found.update({s: run(s)})) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone
