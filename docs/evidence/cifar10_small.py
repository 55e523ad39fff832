"""Which detail of the set-up moves which method? A fifth of CIFAR-10, for a CPU, beside the runs of cifar10.py.

    python docs/evidence/cifar10_small.py dfedalt-t1 fedavg resnet8-gn 50
    python docs/evidence/cifar10_small.py dfedalt-t1 fedavg resnet8-gn 50 momentum=0 lr_decay=0.998
    python docs/evidence/cifar10_small.py dfedalt-t1 fedper small-cnn 40 partition=dirichlet-reuse:0.3
    python docs/evidence/cifar10_small.py dfedsam-t1 dfedsam small-cnn 60 momentum=0.9
    python docs/evidence/cifar10_small.py fedlmt-t2-image fedhm resnet18-bn:rate=0.25 150 keep_layers=3
    python docs/evidence/cifar10_small.py fedlmt-t2-image heterofl resnet18-bn:rate=0.25 150 samples=8000
    python docs/evidence/cifar10.py                                      # the page has the tables of cifar10_small.json

RECIPE METHOD MODEL ROUNDS [partition=...] [samples=...] [KEY=VALUE ...] runs the recipe on CIFAR-10 (Dirichlet 0.3;
fedlmt-t2-image: 0.5 by class) with 10,000 images of half the width and height: 100 clients of 100 samples, and
batches of 32 or 16, which make as many steps as 500 samples and batches of 128 or 64. Rates are those of all rounds of
the recipe, passed through in fewer: lr_decay is raised to the power of the recipe's rounds / ROUNDS, and a cosine has
its length. ``decomposition=released`` lets FedHM decompose as the code released with FedLMT does.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import coterie as ct
from coterie.data.partition import split, test_parts
from coterie.submodels import lowrank

CASES = {"dfedalt-t1": 2, "dfedsam-t1": 1, "fedlmt-t2-image": 1}  # CIFAR-10
CLIENTS, SAMPLES, SMALLER = 100, 10_000, 4  # batches have a fourth of the samples
UNCHANGED = "as in the recipe"
FILE = Path(__file__).with_name("cifar10_small.json")


def federation(recipe: ct.recipes.Recipe, case: int, partition: str, samples: int) -> ct.data.Federation:
    """Some of the training samples and all test samples, half as wide and high, divided among the clients."""
    full, seed = recipe.federation(case), 0
    chosen = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(len(full.y))[:samples]))
    x, test_x = (avg_pool2d(v.float(), 2).round().to(v.dtype) for v in (full.x[chosen], full.test_x))
    y, test_y = full.y[chosen].numpy(), full.test_y.numpy()
    parts = split(partition, y, CLIENTS, seed)
    tests = test_parts(partition, y, parts, test_y, seed)
    train, test = (tuple(map(torch.from_numpy, rows)) for rows in (parts, tests))
    origin = {"source": "cifar10 small", "clients": CLIENTS, "partition": partition, "seed": seed}
    assert isinstance(full.transform, ct.data.Transform)
    transform = replace(full.transform, pad=2)
    return replace(
        full, x=x, y=full.y[chosen], test_x=test_x, train=train, test=test, origin=origin, transform=transform
    )


def released(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The decomposition of FedLMT's release: middle dimensions are not exchanged, and V^T is folded as if it were V."""
    c_out, c_in, high, wide = weight.shape
    U, S, Vt = torch.linalg.svd(weight.reshape(c_out * high, c_in * wide), full_matrices=False)
    root = S[:rank].sqrt()
    first, second = U[:, :rank] * root, root[:, None] * Vt[:rank]
    return first.view(c_out, high, rank, 1).transpose(1, 2), second.reshape(c_in, wide, 1, rank).permute(3, 0, 2, 1)


def trained(recipe: str, method: str, model: str, rounds: int, changed: Mapping[str, str]) -> dict[str, Any]:
    """The accuracies after the last round, in %."""
    loaded, case = ct.recipes.load(recipe), CASES[recipe]
    partition = changed.get("partition", loaded.cases[case - 1].partition)
    fed = federation(loaded, case, partition, int(changed.get("samples", SAMPLES)))
    settings = loaded.settings(method, case)
    sets = {k: v for k, v in changed.items() if k not in ("partition", "samples", "decomposition")}
    sets["batch_size"] = str(settings["batch_size"] // SMALLER)
    if settings["lr_min"] is None:
        decay = float(sets.get("lr_decay", settings["lr_decay"]))
        sets["lr_decay"] = str(decay ** (loaded.cases[case - 1].rounds / rounds))
    changes = ct.recipes.Changes(set=[f"{k}={v}" for k, v in sets.items()])
    algorithm = ct.recipes.apply_changes(loaded, changes, [method]).algorithm(method, case)
    with ExitStack() as patched:
        if "decomposition" in changed:  # of every rank by itself: this one has no first columns to cut off
            patched.enter_context(patch.object(lowrank, "spectral", released))
            module = import_module("coterie.algorithms.fedhm")  # the function of that name hides it
            patched.enter_context(patch.object(module, "cut_from", lambda nearest, submodel: submodel))
        run = ct.fit(ct.models.build(model, fed), fed, algorithm, rounds=rounds, evaluate_every=rounds)
    last: Any = run.history[-1]
    # Where the paper measures one model, on each client's own samples, that is what stands for the personal one.
    one = loaded.protocol.metric == "global_accuracy"
    column = "global_accuracy_local" if one else f"personal_accuracy_{loaded.entry(method).point}"
    measured = {"personal": round(100 * last[column], 2), "global": round(100 * last["global_accuracy"], 2)}
    return {"recipe": recipe, "method": method, "model": model, "rounds": rounds, "changed": dict(changed), **measured}


def lines(runs: Sequence[Mapping[str, Any]], recipe: str) -> list[list[str]]:
    """One line per run of a recipe: its accuracies, and by how much they differ from those of the unchanged set-up."""
    runs = [r for r in runs if r["recipe"] == recipe]
    usual = {(r["method"], r["model"]): r for r in runs if not r["changed"]}
    found = []
    for run in sorted(runs, key=lambda r: list(usual).index((r["method"], r["model"]))):
        base = usual[run["method"], run["model"]]
        what = ", ".join(f"{k}={v}" for k, v in run["changed"].items()) or UNCHANGED
        accuracies = ("personal", "global")
        numbers = [f"{run[k]:.1f}{f' ({run[k] - base[k]:+.1f})' if run['changed'] else ''}" for k in accuracies]
        found.append([run["method"], run["model"], str(run["rounds"]), what, *numbers])
    return found


def main() -> None:
    """Trains one and keeps it, in place of what the same set-up gave before."""
    recipe, method, model, rounds, *pairs = sys.argv[1:]
    run = trained(recipe, method, model, int(rounds), dict(pair.split("=", 1) for pair in pairs))
    same = ("recipe", "method", "model", "rounds", "changed")
    runs = json.loads(FILE.read_text()) if FILE.exists() else []
    runs = [r for r in runs if any(r[k] != run[k] for k in same)] + [run]
    FILE.write_text(json.dumps(runs, indent=0) + "\n")


if __name__ == "__main__":
    main()
