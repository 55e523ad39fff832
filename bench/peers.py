"""Coterie beside Flower, pfl-research and FedJAX, on the workloads of ``bench/speed.py``.

Everybody gets the same samples, cohorts, settings and first weights as files, and plays them in fresh processes.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console

import table
import work
from coterie.core.errors import UserError, unknown
from coterie.core.files import write_json
from coterie.data import Federation
from environments import HERE, UnavailableError, prepare
from measure import machine
from processes import play
from sides import WARM_UP, Side
from workloads import Workload, find, make_cohorts, make_federation, make_model

Say = Callable[[str], None]
Commands = Mapping[str, list[str | Path]]
"""How each side is called, in the order they take turns."""

PEERS = ("flower", "pfl", "fedjax")
WORKLOADS = ("W1", "W2")
MEMORY_ROUNDS = 2  # from the second one on, the state of the round before is held too
OUT = HERE.parent / "runs" / "bench-peers.json"


def main() -> int:
    """Measures and prints; 1 where a side did not learn what Coterie did, 2 where the request must change."""
    asked = arguments()
    say = Console(stderr=True, highlight=False, soft_wrap=True).print
    try:
        check(asked.peers, asked.workloads, asked.repeats)
        commands, missing = find_sides(asked.peers, say)
        busy = os.getloadavg()[0]
        results = {w: measure(w, commands, asked.repeats, say) | missing for w in find(asked.workloads)}
    except UserError as error:
        say(f"error: {error}")
        return 2
    table.show(results, asked.repeats)
    write_json(OUT, {"load_average_before": busy, **as_json(results, asked.repeats)})
    say(f"written to {OUT}")
    told = [side.ratio(sides["coterie"]) for sides in results.values() for side in sides.values() if not side.left_out]
    return 1 if None in told else 0


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", nargs="*", default=PEERS, metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--workloads", nargs="*", default=WORKLOADS, metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def check(peers: list[str], workloads: list[str], repeats: int) -> None:
    """Refuses what cannot be measured before anything is installed."""
    for peer in peers:
        if peer not in PEERS:
            raise unknown("peer", peer, PEERS)
    if any(w.ring for w in find(workloads)):
        raise UserError(f"no peer plays a ring without a server: choose among {' and '.join(WORKLOADS)}")
    if repeats < 1:
        raise UserError(f"repeats={repeats} measures nothing: choose at least 1")


def find_sides(peers: list[str], say: Say) -> tuple[Commands, dict[str, Side]]:
    """How to call everybody who can take part, and why the others cannot."""
    commands: dict[str, list[str | Path]] = {"coterie": [sys.executable, HERE / "own.py", "coterie"]}
    missing = {}
    for peer in peers:
        try:
            commands[peer] = [prepare(peer, say), HERE / f"peer_{peer}.py"]
        except UnavailableError as reason:
            missing[peer] = Side(left_out=str(reason))
            say(f"{peer} is left out: {reason}")
    return commands | {"plain loop": [sys.executable, HERE / "own.py", "plain"]}, missing


def measure(w: Workload, commands: Commands, repeats: int, say: Say) -> dict[str, Side]:
    """All sides on one workload, taking turns; then the memory of each."""
    w = replace(w, rounds=w.rounds + WARM_UP)
    sides = {name: Side() for name in commands}
    with TemporaryDirectory(prefix="coterie-bench-") as made:
        folder = Path(made)
        write_work(w, folder)
        for repeat in range(1, repeats + 1):
            for name, facts in take_turns(commands, sides, folder, w.rounds):
                sides[name].add(facts)
                say(f"{w.name}  repeat {repeat}/{repeats}  {name:<10}  {median(sides[name].rounds[-1]):.4f} s a round")
        for name, facts in take_turns(commands, sides, folder, min(MEMORY_ROUNDS, w.rounds), watched=True):
            sides[name].peak_memory = facts["peak_memory"]
            say(f"{w.name}  memory      {name:<10}  {table.gib(facts['peak_memory'])} GiB")
    for name, side in sides.items():
        if side.left_out is not None:
            say(f"{name} is left out of {w.name}: {side.left_out}")
    return sides


def write_work(w: Workload, folder: Path) -> Federation:
    """Puts a workload into files, and returns its samples as Coterie holds them."""
    federation = make_federation(w)
    arrays = {
        "x": federation.x.numpy().reshape(w.clients, w.samples, *federation.input_shape),
        "y": federation.y.numpy().reshape(w.clients, w.samples),
        "test_x": federation.test_x.numpy(),
        "test_y": federation.test_y.numpy(),
        "cohorts": np.stack(make_cohorts(w, federation)),
    }
    weights = {name: value.numpy() for name, value in make_model(w, federation).state_dict().items()}
    work.save(folder, asdict(w), arrays, weights)
    return federation


def take_turns(
    commands: Commands, sides: Mapping[str, Side], folder: Path, rounds: int, watched: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Plays every side once that has not failed before; without Coterie there is nothing to compare with."""
    for name, command in commands.items():
        if sides[name].left_out is not None:
            continue
        try:
            yield name, play(command, environment(), folder, rounds, watched)
        except UnavailableError as reason:
            if name == "coterie":
                raise UserError(f"coterie itself could not be measured, {reason}: run make test") from reason
            sides[name].left_out = str(reason)


def environment() -> dict[str, str]:
    """That of the caller, threads included, without telephoning home.

    Idle OpenMP threads sleep soon, as with ``bench/speed.py``: spinning ones ruin every side on a busy machine.
    """
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    spin = {} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}
    return {**spin, **os.environ, **quiet}


def as_json(results: table.Results, repeats: int) -> dict[str, Any]:
    """Everything that was measured, and what follows from it."""
    workloads = [
        {
            "workload": asdict(w),
            "description": str(w),
            "sides": {name: side.as_json(sides["coterie"]) for name, side in sides.items()},
        }
        for w, sides in results.items()
    ]
    return {"machine": machine(), "repeats": repeats, "warm_up_rounds": WARM_UP, "workloads": workloads}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
