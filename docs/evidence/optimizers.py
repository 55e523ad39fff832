"""AdamW beside SGD, both tuned alike: FedPer, DFedAlt and FedAvg on digits and on masked language modeling.

    python docs/evidence/optimizers.py --text valid.txt --test test.txt   # trains what optimizers.json has not
    python docs/evidence/optimizers.py --page                             # writes the page from optimizers.json

The texts are those of WikiText-2; any other two files do as well. Each optimizer has four rates. The rate with the best
mean over the clients on their validation samples (a fifth of the training samples, seed 0) is trained with three seeds.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import coterie as ct

HERE = Path(__file__).parent
FILE = HERE / "optimizers.json"
SEEDS, VALIDATION = (0, 1, 2), 0.2
METHODS = ("fedper", "dfedalt", "fedavg")
OPTIMIZERS = ("sgd", "adamw")
DECAY = {"sgd": 5e-4, "adamw": 0.01}  # L2, and decoupled: what is usual with each
MODEL: dict[str, Any] = {"dim": 32, "heads": 4, "hidden": 64, "layers": 1}


class Task(NamedTuple):
    """What is learned, and what decides."""

    title: str
    metric: str
    higher_is_better: bool
    scale: float  # from what rows have to what the page shows
    rounds: int
    rates: dict[str, tuple[float, ...]]
    local: dict[str, Any]
    build: Callable[[int], tuple[Any, ct.data.Federation]]  # the seed -> model and data


def digits(seed: int) -> tuple[Any, ct.data.Federation]:
    """Return a convolutional network, and digits that every client names in its own way."""
    fed = ct.data.federate("digits:renamed=4", clients=20, partition="iid", seed=seed)
    return ct.models.build("small-cnn", fed, seed=seed), fed


def texts(train: str, test: str, seed: int) -> tuple[Any, ct.data.Federation]:
    """Return a small transformer, and a row of both texts for each of 10 clients."""
    options = {"path": train, "test": test, "rows": 10, "vocabulary": 1000}
    fed = ct.data.federate("text", 10, "pathological:1", seed, **options)
    return ct.models.build("transformer-mlm", fed, seed=seed, **MODEL), fed


def tasks(train: str, test: str) -> dict[str, Task]:
    """Return both tasks."""
    few = {"sgd": (0.01, 0.03, 0.1, 0.3), "adamw": (0.001, 0.003, 0.01, 0.03)}
    usual = {"lr_decay": 1.0, "momentum": 0.9, "clip": 10.0}
    return {
        "digits": Task("Digits", "accuracy", True, 100, 10, few, {**usual, "batch_size": 16, "epochs": 5}, digits),
        "masked-lm": Task(
            "Masked language modeling",
            "perplexity",
            False,
            1,
            3,
            {"sgd": (0.03, 0.1, 0.3, 1.0), "adamw": (0.003, 0.01, 0.03, 0.1)},
            {**usual, "batch_size": 8, "epochs": 1},
            lambda seed: texts(train, test, seed),
        ),
    }


def play(task: Task, method: str, optimizer: str, lr: float, seed: int, kept: float) -> float | None:
    """Return the final metric on validation samples where some are ``kept``, else on test samples; None: diverged."""
    settings = {**task.local, "lr": lr, "weight_decay": DECAY[optimizer], "optimizer": optimizer}
    if method == "dfedalt":
        settings |= {"topology": "random:5", "personal_lr": lr, "personal_epochs": 1}
    else:
        settings |= {"participation": 1.0}
    if optimizer != "sgd":
        del settings["momentum"]
    model, fed = task.build(seed)
    algorithm = ct.algorithms.build(method, **settings)
    how: dict[str, Any] = {"validation": kept, "metric": task.metric, "evaluate_every": task.rounds, "progress": False}
    try:
        run = ct.fit(model, fed, algorithm, rounds=task.rounds, seed=seed, **how)
    except ct.UserError as error:
        print(f"{method}, {optimizer}, {lr:g}: {error}", flush=True)
        return None
    column = f"personal_{task.metric}_{'validation' if kept else 'after_mix'}"
    value = run.history[-1][column]
    return None if value is None else task.scale * value


def study(task: Task, method: str, optimizer: str) -> dict[str, Any]:
    """Choose the rate on validation samples, and train it with all seeds."""
    tried = {f"{lr:g}": play(task, method, optimizer, lr, SEEDS[0], VALIDATION) for lr in task.rates[optimizer]}
    known = {lr: value for lr, value in tried.items() if value is not None}
    best = (max if task.higher_is_better else min)(known, key=lambda lr: known[lr])
    values = [play(task, method, optimizer, float(best), seed, 0.0) for seed in SEEDS]
    print(method, optimizer, tried, best, values, flush=True)
    return {"tried": tried, "lr": best, "values": values}


def verdict(task: dict[str, Any], rows: dict[str, Any]) -> str:
    """Say which optimizer is better: by the same sign in all seeds and a mean beyond its deviation."""
    if None in rows["adamw"]["values"] + rows["sgd"]["values"]:
        return "no clear difference"
    pairs = zip(rows["adamw"]["values"], rows["sgd"]["values"], strict=True)
    apart = [(new - old) * (1 if task["higher_is_better"] else -1) for new, old in pairs]
    if (min(apart) > 0 or max(apart) < 0) and abs(fmean(apart)) > stdev(apart):
        return "AdamW is better" if fmean(apart) > 0 else "SGD is better"
    return "no clear difference"


def shown(values: list[Any]) -> str:
    """Return the mean and the deviation over the seeds."""
    return "diverged" if None in values else f"{fmean(values):.2f} ± {stdev(values):.2f}"


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# AdamW beside SGD",
        "",
        "Made by [optimizers.py](optimizers.py): three methods with both optimizers on two tasks. Both are tuned",
        "alike: each has four rates, and the one that is best on validation samples (a fifth of every client's",
        "training samples, seed 0) is trained with three seeds. SGD has momentum 0.9 and an L2 decay of 0.0005, AdamW",
        "a decoupled decay of 0.01. Both clip at 10 and begin every round with a fresh state.",
        "",
        "A verdict needs the same sign in all three seeds and a mean difference beyond its standard deviation.",
    ]
    for task in results["tasks"].values():
        unit = "personal accuracy in %" if task["higher_is_better"] else "personal perplexity (lower is better)"
        told = f"Numbers are {unit} on test samples after {task['rounds']} rounds."
        lines += ["", f"## {task['title']}", "", told, ""]
        lines += ["| method | SGD | rate | AdamW | rate | verdict |", "|---|---|---|---|---|---|"]
        for method, rows in task["methods"].items():
            cells = [f"{shown(rows[o]['values'])} | {rows[o]['lr']}" for o in ("sgd", "adamw")]
            lines.append(f"| {method} | {' | '.join(cells)} | {verdict(task, rows)} |")
        for method, rows in task["methods"].items():
            for name, row in rows.items():
                if None not in row["values"] and stdev(row["values"]) > fmean(row["values"]) / 2:
                    seeds = ", ".join(f"{value:.2f}" for value in row["values"])
                    lines += ["", f"The three seeds of {method} with {name} end at {seeds}."]
        edges = [
            f"{method} with {name}"
            for method, rows in task["methods"].items()
            for name, row in rows.items()
            if row["lr"] in (min(row["tried"], key=float), max(row["tried"], key=float))
        ]
        if edges:
            lines += ["", f"The best rate is at an end of the four for {', '.join(edges)}: others may be better there."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train unless only the page is wanted, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--text", default="valid.txt")
    parser.add_argument("--test", default="test.txt")
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"tasks": {}}
    for name, task in ({} if given.page else tasks(given.text, given.test)).items():
        told = {"title": task.title, "higher_is_better": task.higher_is_better, "rounds": task.rounds}
        rows = found["tasks"].setdefault(name, {**told, "methods": {m: {} for m in METHODS}})["methods"]
        for method, optimizer in ((m, o) for m in METHODS for o in OPTIMIZERS if o not in rows[m]):
            rows[method][optimizer] = study(task, method, optimizer)
            FILE.write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "optimizers.md").write_text(page(json.loads(FILE.read_text())))


if __name__ == "__main__":
    main()
