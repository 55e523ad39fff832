"""All methods on the embedded digits, with equal communication a round: writes digits.json and digits.md beside itself.

python docs/evidence/digits.py [--workers 2]

The runs are saved one by one in digits.jsonl: an interrupted comparison continues where it was.
"""

import argparse
import json
import os
import platform
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import verdicts

import coterie as ct
from coterie.algorithms.settings import settings_of

HERE = Path(__file__).parent
CLIENTS, ROUNDS, SEEDS, TUNING_SEED = 20, 15, range(5), 100
RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
TASKS = {
    "dirichlet 0.1": ("digits", "dirichlet:0.1"),
    "pathological 2": ("digits", "pathological:2"),
    "dirichlet 0.3, noisy": ("digits:noise=0.5", "dirichlet:0.3"),
}
COMMON = {"batch_size": 16, "epochs": 5, "lr_decay": 1.0, "weight_decay": 0.0}
SERVER = {"participation": 1.0}  # 20 models up, 20 down
PEERS = {"topology": "random:2"}  # 20 clients with 2 neighbors each: 40 models
UNIT = {"outer_lr": 1.0, "personal_outer_lr": 1.0}
METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": SERVER,
    "fedsam": {**SERVER, "rho": 0.05},
    "scaffold": {"participation": 0.5},  # sends two models' worth each way
    "fedper": SERVER,
    "fedrep": {**SERVER, "personal_epochs": 5},
    "fedbabu": {**SERVER, "finetune_lr": 0.005},
    "ditto": SERVER,
    "fedrod": SERVER,
    "fedavg-p": {**SERVER, **UNIT},
    "scaffold-p": {"participation": 0.5, **UNIT},
    "dpsgd": {**PEERS, "epochs": 1},
    "dfedavg": PEERS,
    "dfedavgm": PEERS,
    "dfedsam": {**PEERS, "rho": 0.05},
    "dfedsam-mgs": {"topology": "random-pull:1", "rho": 0.05, "gossip_steps": 2},
    "osgp": {"topology": "random-push:2"},
    "dispfl": {"topology": "random-pull:4"},  # at density 0.5 four halves are two models
    "dfedavgm-p": PEERS,
    "dfedalt": {**PEERS, "personal_epochs": 5},
    "dfedsalt": {**PEERS, "personal_epochs": 5, "rho": 0.05, "sam": "plain"},
    "dfedpgp": {"topology": "random-push:2", "personal_epochs": 5},
}

PERSONAL, GLOBAL = "after_mix", "global"
CLAIMS = (  # the papers' orderings: above, below, by which accuracy
    ("dfedalt", "dfedavgm", PERSONAL),
    ("dfedsalt", "dfedalt", PERSONAL),
    ("dfedalt", "fedavg", PERSONAL),
    ("dfedalt", "fedrep", PERSONAL),
    ("dfedalt", "fedper", PERSONAL),
    ("dfedpgp", "osgp", PERSONAL),
    ("dfedpgp", "dfedavgm-p", PERSONAL),
    ("dfedpgp", "dfedalt", PERSONAL),
    ("dfedsam", "dfedavg", GLOBAL),
    ("dfedsam", "dfedavgm", GLOBAL),
    ("dfedsam-mgs", "dfedsam", GLOBAL),
    ("fedsam", "fedavg", GLOBAL),
    ("scaffold-p", "fedavg-p", PERSONAL),
)


class Job(NamedTuple):
    """One run."""

    method: str
    task: str
    seed: int
    lr: float


def play(job: Job) -> dict[str, Any]:
    """The run's accuracies and what it sent a round."""
    torch.set_num_threads(1)
    source, partition = TASKS[job.task]
    fed = ct.data.federate(source, CLIENTS, partition, job.seed)
    known = settings_of(ct.algorithms.builder(job.method))
    rates = {k: job.lr for k in ("lr", "personal_lr", "finetune_lr") if k in known}
    algorithm = ct.algorithms.build(job.method, **{**COMMON, **rates, **METHODS[job.method]})
    module = ct.models.build("small-cnn", fed, seed=job.seed)
    try:
        run = ct.fit(module, fed, algorithm, rounds=ROUNDS, seed=job.seed, progress=False, evaluate_every=ROUNDS)
    except ct.UserError as error:  # a rate that diverges
        return {**job._asdict(), "error": str(error)}
    accuracy = {k: v["final"] for k, v in run.summary["personal_accuracy"].items()}
    sent = run.summary["bytes_sent"] / ROUNDS
    return {**job._asdict(), **accuracy, "global": run.summary["global_accuracy"], "bytes_a_round": sent}


def headline(row: Mapping[str, Any]) -> float:
    """The accuracy a method is chosen and compared by: after fine-tuning where it does so, else after aggregation."""
    return row.get("after_finetune", row.get("after_mix", 0.0))


def tuning_jobs() -> Iterator[Job]:
    """Every rate on a seed of its own."""
    for method in METHODS:
        for lr in RATES:
            yield Job(method, "dirichlet 0.1", TUNING_SEED, lr)


def compared_jobs(best: Mapping[str, float]) -> Iterator[Job]:
    """Every method on every task and seed, with its best rate."""
    for task in TASKS:
        for seed in SEEDS:
            for method in METHODS:
                yield Job(method, task, seed, best[method])


def done(jobs: list[Job], log: Path, workers: int) -> list[dict[str, Any]]:
    """The jobs' results; those in the log are not run again."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    known = {Job(*(line[k] for k in Job._fields)): line for line in lines}
    missing = [job for job in jobs if job not in known]
    with ProcessPoolExecutor(workers) as pool, log.open("a") as file:
        for number, (job, row) in enumerate(zip(missing, pool.map(play, missing), strict=True), 1):
            known[job] = row
            print(json.dumps(row), file=file, flush=True)
            print(f"{number}/{len(missing)} {job.method}, {job.task}, seed {job.seed}, lr {job.lr}", flush=True)
    return [known[job] for job in jobs]


def by_seed(rows: list[dict[str, Any]], task: str, method: str, name: str) -> dict[int, float]:
    """An accuracy in %, by seed; a run that diverged has none."""
    mine = (r for r in rows if r["task"] == task and r["method"] == method)
    return {r["seed"]: 100 * r[name] for r in mine if name in r}


def table(rows: list[dict[str, Any]], task: str, best: Mapping[str, float]) -> str:
    """One task as Markdown, best method first."""
    lines = [
        "| method | personal, after aggregation | after local training | fine-tuned | global | seeds | lr | "
        "KiB per round |",
        "|---|---|---|---|---|---|---|---|",
    ]
    tried = {m: [r for r in rows if r["task"] == task and r["method"] == m] for m in METHODS}
    ended = {m: [r for r in tried[m] if "error" not in r] for m in METHODS}
    for method in sorted(ended, key=lambda m: -fmean(map(headline, ended[m])) if ended[m] else 0):
        names = ("after_mix", "after_train", "after_finetune", "global")
        accuracies = [verdicts.spread(by_seed(rows, task, method, k).values()) for k in names]
        sent = f"{fmean(r['bytes_a_round'] for r in ended[method]) / 1024:.0f}" if ended[method] else "-"
        seeds = f"{len(ended[method])} of {len(tried[method])}"
        lines.append(f"| {method} | {' | '.join(accuracies)} | {seeds} | {best[method]} | {sent} |")
    return "\n".join(lines)


def diverged(rows: list[dict[str, Any]]) -> str:
    """Who did not come to an end, if anybody."""
    found = [f"* {r['method']}, {r['task']}, seed {r['seed']}: {r['error']}" for r in rows if "error" in r]
    head = "Runs that diverged; the numbers of their method are means over the other seeds:"
    return "\n".join([head, "", *found]) if found else "No run diverged."


def claims_table(rows: list[dict[str, Any]]) -> str:
    """A row a claim, a column a task: the word, the two means, and in how many seeds the sign is the claimed one."""
    lines = [f"| claim | {' | '.join(TASKS)} |", f"|---|{'---|' * len(TASKS)}"]
    for high, low, name in CLAIMS:
        cells = []
        for task in TASKS:
            both = [by_seed(rows, task, method, name) for method in (low, high)]
            found = verdicts.differences(*both)
            right = f"{sum(d > 0 for d in found)} of {len(found)} seeds"
            means = " / ".join(f"{fmean(v.values()):.1f}" for v in both[::-1])
            cells.append(f"{verdicts.verdict(found)}: {means}; {verdicts.spread(found)}, {right}")
        which = "global" if name == GLOBAL else "personal"
        lines.append(f"| {high} above {low} ({which}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def pages(results: Mapping[str, Any], folder: Path = HERE) -> str:
    """Writes digits-tables.md, and the table of claims into digits.md; returns the former."""
    rows, best = results["runs"], results["lr"]
    about = f"Mean ± standard deviation of a sample (n - 1) in %. seeds: how many of {len(SEEDS)} came to an end."
    tables = [f"### {task}\n\n{table(rows, task, best)}" for task in TASKS]
    text = "\n\n".join(["# Digits: all tables", about, diverged(rows), *tables]) + "\n"
    (folder / "digits-tables.md").write_text(text)
    page = (folder / "digits.md").read_text()
    before, rest = page.split("<!-- claims -->\n")[0], page.split("<!-- end of claims -->\n")[1]
    told = f"<!-- claims -->\n\n{claims_table(rows)}\n\n{verdicts.RULE}\n\n<!-- end of claims -->\n"
    (folder / "digits.md").write_text(before + told + rest)
    return text


def main() -> None:
    """Tunes, compares, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    log = HERE / "digits.jsonl"
    tuned = done(list(tuning_jobs()), log, workers)
    best = {m: max((r for r in tuned if r["method"] == m), key=headline)["lr"] for m in METHODS}
    rows = done(list(compared_jobs(best)), log, workers)
    versions = {"coterie": ct.__version__, "torch": torch.__version__, "python": platform.python_version()}
    runs = ",\n  ".join(map(json.dumps, rows))  # a line a run
    head = f'"versions": {json.dumps(versions)},\n "lr": {json.dumps(best)}'
    (HERE / "digits.json").write_text(f'{{\n {head},\n "runs": [\n  {runs}\n ]\n}}\n')
    print(pages(json.loads((HERE / "digits.json").read_text())))


if __name__ == "__main__":
    main()
