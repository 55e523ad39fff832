"""What gathering samples into batches costs training.

    python docs/evidence/gathering.py [--repeats 5] [--out docs/evidence]

The workloads of ``bench/speed.py``, in turns: as they are, and with batches that are there already, the first one of
every shape again and again.

W2 has so little to compute that samples which are there already, in the cache, make its products faster too, and not
to fetch them from memory is no choice that anybody has. So its step is also written out, and taken on gathered samples
and on samples that lie in order, as far away as those: what gathering takes beyond that, in every step of a round.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

# As the commands have it, before torch starts its threads: those that spin while they wait ruin a busy machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
sys.path.append(str(Path(__file__).parents[2] / "bench"))

import torch
from torch import Tensor

import coterie as ct
from coterie.data import batches
from measure import machine
from workloads import CLASSES, SEED, WORKLOADS, Workload, make_algorithm, make_federation, make_model

ROUNDS = {"W1": 6, "W2": 60, "W3": 4}
STEPS = 300


@contextmanager
def there_already() -> Iterator[None]:
    """Samples of a shape are gathered once."""
    take, known = batches.take, dict[Any, Tensor]()

    def again(x: Tensor, index: Tensor) -> Tensor:
        if x.dim() == 1:  # labels
            return take(x, index)
        kind = x.data_ptr(), index.shape
        if kind not in known:
            known[kind] = x[: index.numel()].reshape(*index.shape, *x.shape[1:]).clone()
        return known[kind]

    with patch.object(batches, "take", again):
        yield


def whole_runs(w: Workload, federation: ct.data.Federation) -> tuple[float, float]:
    """Seconds of a round, the median without the first, with and without gathering."""

    def seconds(how: Callable[[], Any]) -> float:
        options = {"rounds": ROUNDS[w.name], "evaluate_every": ROUNDS[w.name], "seed": SEED, "progress": False}
        with how():
            run = ct.fit(make_model(w, federation), federation, make_algorithm(w), device="cpu", **options)
        return median(row["seconds"] for row in run.history[1:])

    return seconds(nullcontext), seconds(there_already)


def single_steps(w: Workload, federation: ct.data.Federation) -> tuple[float, float]:
    """Seconds of a step of all clients of a round, logistic regression by hand, with and without gathering."""
    g = torch.Generator().manual_seed(SEED)
    x, m, size = federation.x.flatten(1), w.cohort, w.batch_size or w.samples
    weights = torch.zeros(m, CLASSES, x.shape[1])
    targets = (
        torch.nn.functional.one_hot(torch.randint(CLASSES, (m, size), generator=g), CLASSES).float().mT.contiguous()
    )
    drawn = [
        torch.randperm(w.clients, generator=g)[:m].sort().values[:, None] * w.samples
        + torch.stack([torch.randperm(w.samples, generator=g)[:size] for _ in range(m)])
        for _ in range(20)
    ]

    def seconds(batch: Callable[[int], Tensor]) -> float:
        took = []
        for k in range(STEPS):
            began = time.perf_counter()
            some = batch(k % len(drawn))
            off = (weights @ some.mT).softmax(1) - targets
            weights.baddbmm_(off, some, alpha=-w.lr / size)
            took.append(time.perf_counter() - began)
        return median(took)

    apart = len(x) // len(drawn)
    gathered = seconds(lambda k: batches.take(x, drawn[k]))
    return gathered, seconds(lambda k: x[k * apart : k * apart + m * size].view(m, size, -1))


def measured(w: Workload, repeats: int) -> dict[str, Any]:
    """Both, in turns, and how much longer the one takes."""
    federation, found = make_federation(w), []
    for _ in range(repeats):
        gathered, there = whole_runs(w, federation)
        one = {"gathered": gathered, "there": there, "longer": gathered / there - 1}
        if w.model == "logreg":
            by_hand, in_order = single_steps(w, federation)
            beyond = (by_hand - in_order) * -(-w.samples // (w.batch_size or w.samples)) * w.epochs
            one |= {"by_hand": by_hand, "in_order": in_order, "longer_than_in_order": beyond / (gathered - beyond)}
        print(f"{w.name}: {', '.join(f'{k} {v:.5f}' for k, v in one.items())}", flush=True)
        found.append(one)
    return {k: median(each[k] for each in found) for k in found[0]} | {"turns": found}


def main() -> None:
    """Measures, prints, and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    typed = parser.parse_args()
    found = {name: measured(w, typed.repeats) for name, w in WORKLOADS.items()}
    for name, each in found.items():
        print(name, *(f"{k} {v:.5f}" for k, v in each.items() if k != "turns"))
    facts = {"machine": machine(), "found": found}
    typed.out.mkdir(parents=True, exist_ok=True)
    (typed.out / "gathering.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
