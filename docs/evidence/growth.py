"""What a client-step and a client's memory cost as clients grow in number, and how long the first step takes.

    python docs/evidence/growth.py [--clients 100 1000 10000 100000] [--out docs/evidence]

FedAvg on random images with logistic regression of 7,850 parameters; everybody takes part and makes two steps a round.
Every number of clients has a process of its own, so that each has its own peak of memory. A first round builds what is
built once and takes its memory from the system, page by page: the settled ones are counted, the first is shown. The
start is that of a fresh process: from before ``import coterie`` to the end of its first round.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

STEPS, BATCH, TESTS = 2, 4, 1
FEW_STEPS = 2_000  # client-steps at least, so that few clients are timed over more rounds


def child(clients: int) -> dict[str, Any]:
    """One number of clients, measured in this process."""
    began = time.perf_counter()
    import torch

    torch_loaded = time.perf_counter()
    sys.path.append(str(Path(__file__).parents[2] / "bench"))
    import coterie as ct
    from coterie.core.tensors import size_in_bytes
    from coterie.data import Federation
    from measure import machine, resident_peak

    torch.manual_seed(0)
    total = clients * STEPS * BATCH
    fed = Federation(
        x=torch.randn(total, 1, 28, 28),
        y=torch.randint(10, (total,)),
        test_x=torch.randn(clients * TESTS, 1, 28, 28),
        test_y=torch.randint(10, (clients * TESTS,)),
        train=torch.split(torch.arange(total), STEPS * BATCH),
        test=torch.split(torch.arange(clients * TESTS), TESTS),
        classes=10,
    )
    before = resident_peak()
    algorithm = ct.algorithms.fedavg(participation=1.0, epochs=1, batch_size=BATCH, momentum=0.0, clip=None)
    rounds = max(8, FEW_STEPS // (clients * STEPS))
    run = ct.fit(
        ct.models.build("logreg", fed, seed=0), fed, algorithm, rounds=rounds, evaluate_every=rounds, progress=False
    )
    seconds = [row["seconds"] for row in run.history]
    return {
        "clients": clients,
        "engine": run.config["engine"],
        "first_us": seconds[0] / (clients * STEPS) * 1e6,
        "settled_us": median(seconds[rounds // 2 :]) / (clients * STEPS) * 1e6,
        "state_bytes": clients * size_in_bytes(run.clients[0].shared.values()),
        "data_bytes": size_in_bytes([fed.x, fed.y, fed.test_x, fed.test_y]),
        "peak_bytes": resident_peak(),
        "before_bytes": before,
        "torch_s": torch_loaded - began,
        "machine": machine(),
    }


START = """
import time; began = time.perf_counter()
import coterie as ct
fed = ct.data.federate("digits", partition="dirichlet:0.3", clients=20, seed=0)
ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.dfedalt(), rounds=1, progress=False)
print(time.perf_counter() - began)
"""


def answer(*command: str) -> str:
    """The last line a process of its own prints."""
    done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| clients | us a client-step | in the first round | peak memory, GiB | of it state, GiB | data, GiB |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        sizes = " | ".join(f"{r[k] / 2**30:.2f}" for k in ("peak_bytes", "state_bytes", "data_bytes"))
        lines.append(f"| {r['clients']:,} | {r['settled_us']:.1f} | {r['first_us']:.1f} | {sizes} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--child", type=int)
    typed = parser.parse_args()
    if typed.child:
        return print(json.dumps(child(typed.child)))
    rows = []
    for n in typed.clients:
        rows.append(json.loads(answer(__file__, "--child", str(n))))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    start = [float(answer("-c", START)) for _ in range(5)]
    facts = {"start_s": start, "rows": rows}
    typed.out.mkdir(parents=True, exist_ok=True)
    (typed.out / "growth.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(table(rows))
    print(f"from import to the end of a first round: {median(start):.2f} s ({min(start):.2f} to {max(start):.2f})")
    return None


if __name__ == "__main__":
    main()
