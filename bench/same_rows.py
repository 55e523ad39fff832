"""Compare the rows of ten configurations in two source trees, bit for bit: python bench/same_rows.py OLD NEW

A change that is not meant to change results leaves every line of metrics.jsonl as it is, but for the seconds. OLD and
NEW are checkouts of this repository. Each configuration runs on the serial and on the vectorized engine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIGURATIONS = {
    "dfedalt": "dfedalt --model small-cnn",
    "dfedpgp, lost messages": "dfedpgp --topology random-push:2 --drop-messages 0.2",
    "fedlmt": "fedlmt --model small-cnn",
    "heterofl": "heterofl --model small-cnn",
    "scaffold-p": "scaffold-p --set participation=0.5",
    "dfedsam-mgs, offline": "dfedsam-mgs --topology ring --offline 0.3",
    "dispfl": "dispfl --model small-cnn",
    "fedbabu": "fedbabu --set participation=0.5",
    "ditto": "ditto --set participation=0.5",
    "fedrod": "fedrod --set participation=0.5",
}
ENGINES = ("serial", "vectorized")
COMMON = ["--clients", "6", "--rounds", "4", "--seed", "1", "--evaluate-every", "1", "--device", "cpu"]
CLOCK = ("seconds", "evaluation_seconds")  # columns that differ between two runs of one tree


def rows(tree: Path, configuration: str, engine: str) -> list[dict[str, object]]:
    """Return the rows of a run with the sources of ``tree``, without what the clock says."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["run", *configuration.split(), *COMMON, "--engine", engine, "--out", str(out)]
        command = [sys.executable, "-m", "coterie", *words]
        process = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        if process.returncode:
            sys.exit(f"{tree}: coterie {' '.join(words)} ended with {process.returncode}\n{process.stderr}")
        lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in lines]


def main() -> None:
    """Print a line for each configuration and engine; end with 1 if any row differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    arguments = parser.parse_args()
    differing = 0
    for name, configuration in CONFIGURATIONS.items():
        for engine in ENGINES:
            old, new = (rows(tree.resolve(), configuration, engine) for tree in (arguments.old, arguments.new))
            differing += old != new
            print(f"{'same' if old == new else 'DIFFERENT':10}{name}, {engine}, {len(old)} rows", flush=True)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
