"""Claims of the papers about graphs, gossip, flatness and personal heads, on Fashion-MNIST with a small CNN.

python docs/evidence/fashion.py topology|topology-dfedavg|gossip|gap|sam-on|partial-directed [--workers 2]

Each study takes minutes and writes fashion-STUDY.json and fashion-STUDY.md beside this file. Runs are saved one by one
in fashion.jsonl: an interrupted study continues where it was, and runs two studies have in common are made once.
"""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from fashion_studies import STUDIES, Arm, Study
from fashion_tables import written

import coterie as ct
from coterie import measure
from coterie.algorithms.settings import settings_of
from coterie.core import rng as rng
from coterie.data.batches import Samples
from coterie.data.partition import split, test_split
from coterie.engines import Serial
from coterie.models.model import Model, cross_entropy
from coterie.training.experiment import Experiment

HERE = Path(__file__).parent
CLIENTS, SEEDS, TUNING_SEED, MODEL = 20, (0, 1, 2), 100, "small-cnn:rate=0.5"
TESTS = 4_000  # test images, drawn by seed; while a rate is chosen they are training images that nobody trains on
SOME = 500  # of these, every client's own model is tried on all classes


@dataclass(frozen=True)
class Job:
    """One run; two studies that need the same one ask for equal jobs."""

    method: str
    settings: str  # as JSON
    partition: str
    images: int
    rounds: int
    marks: tuple[int, ...]  # the rounds that are measured
    seed: int

    @property
    def key(self) -> str:
        """What the job is known by in the log."""
        return json.dumps(asdict(self), sort_keys=True)


def federation(job: Job, data_dir: str | None) -> ct.data.Federation:
    """Some training images, drawn by seed, divided among the clients; test images in their proportions."""
    pool = ct.data.federate("fashion-mnist", 1, "iid", data_dir=data_dir)
    draw = rng.generator(job.seed, "evidence")
    order, test_order = (torch.from_numpy(draw.permutation(len(y))) for y in (pool.y, pool.test_y))
    mine, tests = order[: job.images], test_order[:TESTS]
    x, y, test_x, test_y = pool.x[mine], pool.y[mine], pool.test_x[tests], pool.test_y[tests]
    if job.seed == TUNING_SEED:
        held = order[job.images : job.images + TESTS]
        test_x, test_y = pool.x[held], pool.y[held]
    parts = split(job.partition, y.numpy(), CLIENTS, job.seed)
    test_parts = test_split(y.numpy(), parts, test_y.numpy(), job.seed)
    rows, test_rows = (tuple(map(torch.from_numpy, p)) for p in (parts, test_parts))
    return ct.data.Federation(x, y, test_x, test_y, rows, test_rows, pool.classes, transform=pool.transform)


def play(job: Job, data_dir: str | None) -> dict[str, Any]:
    """The run's measurements in the marked rounds."""
    torch.set_num_threads(1)
    fed = federation(job, data_dir)
    algorithm = ct.algorithms.build(job.method, **json.loads(job.settings))
    model = Model(ct.models.build(MODEL, fed, seed=job.seed), cross_entropy)
    e = Experiment.of(model, fed, algorithm, Serial(torch.device("cpu")), job.seed, job.rounds)
    now, curve = e.start(), []
    try:
        for t in range(job.rounds):
            now, row = e.run_round(now, t, evaluate=t + 1 in job.marks)
            if t + 1 in job.marks:
                curve.append(measured(e, now.state, row))
    except ct.UserError as error:  # a rate that diverges
        return {**asdict(job), "error": str(error)}
    return {**asdict(job), "curve": curve}


def measured(e: Experiment, state: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """One round in %: the mean model, the clients' own ones, how far apart these are."""
    models = e.program.models(state)
    mean = measure.averaged(models) if e.program.consensus is None else e.program.consensus(state)
    some = torch.arange(SOME)
    everything = Samples(e.tests.x, e.tests.y, (some,) * CLIENTS, e.tests.transform)
    own = measure.personal_values(e.engine, e.model, models, everything, np.arange(CLIENTS), e.metrics)[:, 0]
    test, train = row["global_accuracy"], measure.global_accuracy(e.engine, e.model, mean, e.train)
    shares = {
        "global": test,
        "global_train": train,
        "gap": train - test,
        "own_on_all": float(own.mean()),
        "personal": row["personal_accuracy_after_mix"],
        "personal_after_train": row["personal_accuracy_after_train"],
    }
    percent = {k: round(100 * v, 3) for k, v in shares.items()}
    return {"round": row["round"], **percent, "consensus_distance": row["consensus_distance"]}


def job_of(study: Study, arm: Arm, partition: str, seed: int, lr: float) -> Job:
    """A run of a study."""
    known = settings_of(ct.algorithms.builder(arm.method))
    rates: dict[str, Any] = {k: lr for k in ("lr", "personal_lr") if k in known}
    given: dict[str, Any] = {**study.common, **study.cases[partition], **rates, **arm.settings}
    settings = json.dumps({k: v for k, v in given.items() if k in known}, sort_keys=True)
    return Job(arm.method, settings, partition, study.images, study.rounds, study.marks, seed)


def tuning_jobs(study: Study) -> Iterator[tuple[str, float, Job]]:
    """Every rate of every arm that is tuned, on the first partition and a seed of its own."""
    for label in study.tuned:
        for lr in study.rates:
            yield label, lr, job_of(study, study.arms[label], next(iter(study.cases)), TUNING_SEED, lr)


def reported_jobs(study: Study, best: Mapping[str, float]) -> Iterator[tuple[str, Job]]:
    """Every arm on every partition and seed."""
    for partition in study.cases:
        for seed in SEEDS:
            for label, arm in study.arms.items():
                yield label, job_of(study, arm, partition, seed, best[label])


def done(jobs: list[Job], workers: int, data_dir: str | None) -> list[dict[str, Any]]:
    """The jobs' results; those in the log are not run again."""
    log = HERE / "fashion.jsonl"
    known = dict(json.loads(line) for line in log.read_text().splitlines()) if log.exists() else {}
    missing = list({job.key: job for job in jobs if job.key not in known}.values())
    with ProcessPoolExecutor(workers) as pool, log.open("a") as file:
        for number, row in enumerate(pool.map(partial(play, data_dir=data_dir), missing), 1):
            job = missing[number - 1]
            known[job.key] = row
            print(json.dumps([job.key, row]), file=file, flush=True)
            print(f"{number}/{len(missing)} {job.method}, {job.partition}, seed {job.seed}: {job.settings}", flush=True)
    return [known[job.key] for job in jobs]


def tuned(study: Study, workers: int, data_dir: str | None) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The rate of every arm, and the runs it was chosen by; arms that are not tuned have that of the first one."""
    jobs = list(tuning_jobs(study))
    rows = done([job for _, _, job in jobs], workers, data_dir)
    trials: list[dict[str, Any]] = [
        {"arm": label, "lr": lr, **last_rounds(row)} for (label, lr, _), row in zip(jobs, rows, strict=True)
    ]
    best: dict[str, float] = {}
    for label in study.arms:
        mine = [trial for trial in trials if trial["arm"] == label and study.headline in trial]
        best[label] = max(mine, key=lambda trial: trial[study.headline])["lr"] if mine else study.rates[0]
    first = next(iter(study.tuned), None)
    return {k: v if k in study.tuned or first is None else best[first] for k, v in best.items()}, trials


def last_rounds(row: Mapping[str, Any]) -> dict[str, float]:
    """The means over the last three marks, which follow each other: single rounds jump.

    at_equal_exchanges: the mean model when there were as many exchanges as the run has rounds.
    """
    if "curve" not in row:
        return {}
    last, given = row["curve"][-3:], json.loads(row["settings"])
    means = {k: round(float(np.mean([point[k] for point in last])), 4) for k in last[0] if k != "round"}
    if "gossip_steps" not in given:
        return means
    exchanges = {point["round"] * given["gossip_steps"]: point["global"] for point in row["curve"]}
    return {**means, "at_equal_exchanges": exchanges[row["rounds"]]} if row["rounds"] in exchanges else means


def main() -> None:
    """One study from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data-dir")
    asked = parser.parse_args()
    try:
        print(answered(asked.study, asked.workers, asked.data_dir))
    except ct.UserError as error:  # no images, above all
        parser.exit(2, f"{error}\n")


def answered(name: str, workers: int, data_dir: str | None) -> str:
    """Runs a study and writes its files; returns its page."""
    study = STUDIES[name]
    best, trials = tuned(study, workers, data_dir)
    jobs = list(reported_jobs(study, best))
    rows = done([job for _, job in jobs], workers, data_dir)
    runs = [{"arm": label, **last_rounds(row), **row} for (label, _), row in zip(jobs, rows, strict=True)]
    return written(HERE, name, study, best, trials, runs)


if __name__ == "__main__":
    main()
