"""What a run holds and leaves behind, as clients grow in number: python bench/footprint.py [--clients 100 1000 10000]

Every run is a process of its own: two rounds, in which 100 clients with two samples each take part. The table has the
peak of the process's memory beyond what it had before the run, with data and module; the size of the run folder; and
the seconds from the end of the last round to the finished run. Runs that would need more than --most bytes of memory
are left out.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import coterie as ct

INPUTS, CLASSES = 64, 10
WIDTH = 680  # of an mlp with 2.06 MB of weights
WIDE = 7000  # of a backbone of 98.5 million frozen parameters
ADAPTED = 70  # units between the backbone and the scores: 0.49 million trained parameters
COHORT = 100
MODEL = 4 * ((INPUTS + 1) * WIDTH + (WIDTH + 1) * WIDTH + (WIDTH + 1) * CLASSES)  # bytes of an mlp
HELD = {"fedavg": 0, "fedper": 0, "dfedalt": 7}  # models per client that are in memory at a time, at most


def federation(clients: int) -> ct.data.Federation:
    """Return clients with two samples and a test sample each."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(3 * clients, INPUTS, generator=g), torch.randint(0, CLASSES, (3 * clients,), generator=g)
    train = [(x[i : i + 2], y[i : i + 2]) for i in range(0, 2 * clients, 2)]
    test = [(x[i : i + 1], y[i : i + 1]) for i in range(2 * clients, 3 * clients)]
    return ct.data.from_tensors(train=train, test=test, classes=CLASSES)


def frozen_backbone() -> nn.Module:
    """Return a small head on a large backbone that does not train."""
    backbone = nn.Sequential(
        nn.Linear(INPUTS, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE)
    )
    head = nn.Sequential(nn.Linear(WIDE, ADAPTED), nn.ReLU(), nn.Linear(ADAPTED, CLASSES))
    return nn.Sequential(backbone.requires_grad_(False), head)


def algorithm(method: str, clients: int) -> ct.algorithms.Algorithm:
    """Return a method in which at most COHORT clients take part in a round."""
    build: Any = ct.algorithms.BUILDERS[method]
    graph = {"topology": "ring"} if method.startswith("dfed") else {}
    return build(participation=min(COHORT, clients), epochs=1, **graph)  # type: ignore[no-any-return]


class Clock:
    """A tracker that notes when the last round ended."""

    name = "clock"

    def begin(self, *given: Any) -> str:
        """Say nothing."""
        return ""

    def round(self, row: Any) -> None:
        """Note the time."""
        self.at = time.perf_counter()

    def end(self, summary: Any) -> None:
        """Do nothing."""


def one(method: str, clients: int) -> dict[str, float]:
    """Run one configuration in this process; ``method``: backbone for FedAvg of a frozen one."""
    fed, clock = federation(clients), Clock()
    name = "fedavg" if method == "backbone" else method
    model = frozen_backbone() if method == "backbone" else ct.models.build(f"mlp:width={WIDTH}", fed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = {"rounds": 2, "evaluate_every": 2, "progress": False, "trackers": [clock]}
        run = ct.fit(model, fed, algorithm(name, clients), out=f"{folder}/a", device="cpu", **how)
        after = time.perf_counter() - clock.at
        sizes = [path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()]
        peak = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert len(run.clients) == clients
    return {"memory": peak, "folder": sum(sizes), "files": len(sizes), "seconds": after}


def measured(method: str, clients: int) -> dict[str, float]:
    """Run one configuration in a process of its own."""
    command = [sys.executable, __file__, "--one", method, str(clients)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a line of a table for each configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--most", type=float, default=6 * 2**30, help="bytes of memory that a run may need")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one[0], int(arguments.one[1]))))
        return
    columns = "method", "clients", "peak memory, MB", "folder, MB", "files", "after the last round, s"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for method, clients in [*((m, n) for m in HELD for n in arguments.clients), ("backbone", 20)]:
        if HELD.get(method, 0) * clients * MODEL > arguments.most:
            print(f"| {method} | {clients:,} | more than {arguments.most / 2**30:g} GiB | | | |", flush=True)
            continue
        m = measured(method, clients)
        numbers = f"{m['memory'] / 1e6:,.0f} | {m['folder'] / 1e6:,.1f} | {m['files']:.0f} | {m['seconds']:.2f}"
        print(f"| {method} | {clients:,} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
