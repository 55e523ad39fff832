"""How long a GPU's programs take to build and rounds take with them, and what clients of three widths cost.

    COTERIE_COMPILED=new python docs/evidence/gpu_building.py dfedalt --name "dfedalt, nothing compiled before"
    COTERIE_COMPILED=new python docs/evidence/gpu_building.py dfedalt --name "dfedalt, compiled before"
    python docs/evidence/gpu_building.py widths

Needs a CUDA device. The folder ``new`` holds what was compiled: where it does not exist, everything is built. 100
clients have 500 random images each, with crop and flip, and ResNet-18-GN; all are evaluated in every round. ``widths``
trains ResNet-18-BN with HeteroFL, three clients of each of three widths, and each width in a federation of its own;
they take turns. Everything is in bf16, and all times are medians. Rows are added to gpu_building.json.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_speed import CIFAR, CUDA, federation

import coterie as ct
from coterie.engines import Serial
from coterie.models.model import Model, cross_entropy
from coterie.training.experiment import Experiment
from coterie.training.select_engine import select_engine

FILE = Path(__file__).with_name("gpu_building.json")
IMAGES = (3, 32, 32)
RATES, EACH, TURNS, WARM = (1.0, 0.75, 0.5), 3, 20, 2
WIDTHS = {"lr": 0.01, "batch_size": 64, "epochs": 1, "momentum": 0.9, "participation": 1.0, "weighting": "uniform"}


def building(method: str, rounds: int) -> dict[str, Any]:
    """A run as anybody begins it; its first round builds, the others do not."""
    model = ct.models.build("resnet18-gn", classes=10, input_shape=IMAGES, seed=0)
    algorithm = ct.algorithms.build(method)
    fed = federation(100, IMAGES, 500, CIFAR)
    # By name: ``auto`` would not build for so few rounds.
    run = ct.fit(model, fed, algorithm, rounds=rounds, engine="graphed", precision="bf16", progress=False)
    first, later = run.history[0], run.history[1:]
    training, evaluation = (statistics.median(row[k] for row in later) for k in ("seconds", "evaluation_seconds"))
    return {
        "building_s": first["seconds"] - training,
        "first_evaluation_s": first["evaluation_seconds"],
        "training_s": training,
        "evaluation_s": evaluation,
        "round_s": training + evaluation,
        "rounds": len(later),
    }


def part(clients: int, capacities: str) -> Experiment:
    """Clients of these widths."""
    module = ct.models.build("resnet18-bn", classes=10, input_shape=IMAGES, seed=0).to(CUDA)
    model, fed = Model(module, cross_entropy, precision="bf16"), federation(clients, IMAGES, 500, CIFAR)
    e = Experiment.of(model, fed, ct.algorithms.heterofl(capacities=capacities, **WIDTHS), Serial(CUDA), 0, 100)
    return replace(e, engine=select_engine("graphed", e, clients).engine)


def widths() -> dict[str, Any]:
    """Rounds without evaluation: of three widths together, and of each alone."""
    parts = {"together": part(EACH * len(RATES), "-".join(f"{rate:g}" for rate in RATES))}
    parts |= {f"{rate:g}": part(EACH, f"{rate:g}") for rate in RATES}
    now, seconds = {k: e.start() for k, e in parts.items()}, {k: list[float]() for k in parts}
    for t in range(WARM + TURNS):
        for k, e in parts.items():
            now[k], row = e.run_round(now[k], t, evaluate=False)
            seconds[k].append(row["seconds"])
    medians = {k: statistics.median(each[WARM:]) for k, each in seconds.items()}
    alone = sum(medians[f"{rate:g}"] for rate in RATES)
    each = {f"{k}_s": v for k, v in medians.items()}
    return {**each, "alone_s": alone, "ratio": medians["together"] / alone, "rounds": TURNS}


def main() -> None:
    """Measure, and add a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", help="a method between peers, or widths")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--name", help="the name of the row")
    parser.add_argument("--out", type=Path, default=FILE)
    typed = parser.parse_args()
    row = widths() if typed.what == "widths" else building(typed.what, typed.rounds)
    row = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
    row |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "coterie": ct.__version__}
    rows = json.loads(typed.out.read_text()) if typed.out.exists() else {}
    typed.out.write_text(json.dumps({**rows, typed.name or typed.what: row}, indent=1) + "\n")
    print(typed.name or typed.what, row)


if __name__ == "__main__":
    main()
