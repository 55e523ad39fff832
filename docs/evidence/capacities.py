"""Clients of unequal capacity on Fashion-MNIST: four statements of FedLMT's paper, tried on a small scale.

    python docs/evidence/capacities.py --images fashion_mnist.npz [--only svd] [--workers 16] [--out docs/evidence]

svd            accuracy of FedHMv2 against the rounds between two decompositions (the paper's Figure 3)
regularizers   FedLMT with none, one and two regularizers (Table 4, there without a federation)
communication  accuracy against what is sent, for unequal clients (Table 2)
personal       pFedLMT against FedRep

Writes capacities.json (all numbers), capacities-tables.md and capacities.png. The runs are saved one by one in
capacities.jsonl: an interrupted comparison continues where it was.
"""

import argparse
import io
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

# One thread a process: many runs side by side are faster than one run on many cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import verdicts

import coterie as ct
from coterie.algorithms.settings import settings_of
from coterie.data import Federation
from coterie.data.partition import split, test_split

CLIENTS, MODEL, TUNING_SEED = 20, "resnet8-bn", 100
MILD, STRONG = "dirichlet-by-class:0.5", "dirichlet-by-class:0.1"  # the paper's partition and its two strengths
COMMON = {"batch_size": 32, "epochs": 1, "lr_min": 1e-4, "momentum": 0.9, "weight_decay": 5e-4, "clip": None}
SERVER = {"participation": 0.5, "weighting": "uniform"}
# 19,386 parameters with four of its six block convolutions as products; the model of half the width has 19,810.
LOW = {"keep_layers": 3, "rank_ratio": 0.2}
# Where layers are products they come behind the third layer: the stem and the first stage stay whole, 6 % of the model,
# as in the paper, whose nine whole layers are 6 % of ResNet-18.
UNEQUAL = {"capacities": "b4-b3-b2"}


class Scale(NamedTuple):
    """How much is done."""

    train: int = 4000  # images
    test: int = 2000
    rounds: int = 30  # a multiple of all T_s, so that they all end with a round that decomposes
    every: int = 2  # rounds between two evaluations
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[float, ...] = (0.03, 0.1, 0.3)  # and a lower one where clients are least alike
    coefficients: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)


LOWER = {STRONG: (0.01,)}
QUICK = Scale(1000, 200, 2, 1, (0,), (0.1,), (1e-4,))


class Variant(NamedTuple):
    """A method with its settings, and the names of its regularizers."""

    method: str
    settings: Mapping[str, Any] = MappingProxyType({})
    terms: tuple[str, ...] = ()


VARIANTS: dict[str, Variant] = {
    "fedavg": Variant("fedavg"),
    "fedlmt": Variant("fedlmt", LOW),
    "fedlmt, spectral": Variant("fedlmt", {**LOW, "init": "spectral"}),
    "fedhm, one rank": Variant("fedhm", {"keep_layers": 3, "capacities": "0.2"}),
    **{f"fedhmv2, T_s = {T}": Variant("fedhmv2", {**LOW, "svd_every": T}) for T in (1, 2, 5, 10)},
    "fedhmv2, never": Variant("fedhmv2", {**LOW, "svd_every": 10**6}),
    "frobenius": Variant("fedlmt", LOW, ("frobenius",)),
    "l2": Variant("fedlmt", LOW, ("l2",)),
    "kronecker": Variant("fedlmt", LOW, ("kronecker",)),
    "l2 + frobenius": Variant("fedlmt", LOW, ("l2", "frobenius")),
    "kronecker + frobenius": Variant("fedlmt", LOW, ("kronecker", "frobenius")),
    "l2 + kronecker": Variant("fedlmt", LOW, ("l2", "kronecker")),
    "heterofl": Variant("heterofl", UNEQUAL),
    "fedrolex": Variant("fedrolex", UNEQUAL),
    "fedhm": Variant("fedhm", {**UNEQUAL, "keep_layers": 3}),
    # Two passes over the data a round in all three: FedRep's are one for the head and one for the body.
    "pfedlmt": Variant("pfedlmt", {**UNEQUAL, "keep_layers": 3, "epochs": 2}),
    "pfedlmt, alternate": Variant("pfedlmt", {**UNEQUAL, "keep_layers": 3, "epochs": 2, "schedule": "alternate"}),
    "fedrep": Variant("fedrep", {"personal_epochs": 1}),
}


class Study(NamedTuple):
    """Variants that are compared, on which partition and by which accuracy."""

    title: str
    partition: str
    variants: tuple[str, ...]
    headline: str = "global"


STUDIES = {
    "svd": Study(
        "How often the model is decomposed anew",
        MILD,
        ("fedavg", "fedlmt, spectral", "fedhm, one rank", *(v for v in VARIANTS if v.startswith("fedhmv2"))),
    ),
    "regularizers": Study("Regularizers", MILD, ("fedlmt", *(v for v in VARIANTS if VARIANTS[v].terms))),
    "communication": Study("Communication", MILD, ("fedavg", "fedlmt", "heterofl", "fedrolex", "fedhm")),
    "personal": Study("Personal models", STRONG, ("pfedlmt", "pfedlmt, alternate", "fedrep"), "personal"),
}
REFERENCE = "fedlmt"  # whose communication the others get, and whose learning rate the regularizers have


class Job(NamedTuple):
    """One run."""

    variant: str
    partition: str
    seed: int
    rounds: int
    lr: float
    coefficient: float = 0.0


Row = dict[str, Any]
Chosen = dict[tuple[str, str], tuple[float, float]]
"""Of a partition and a variant: learning rate and coefficient."""


def unpacked(pack: Mapping[str, Any], kind: str) -> tuple[Any, Any]:
    """Images and labels, from plain arrays or from lossless mosaics in the official order."""
    if f"x_{kind}" in pack:
        return pack[f"x_{kind}"], pack[f"y_{kind}"]
    from PIL import Image

    names = sorted(k for k in pack if k.startswith(f"webp_{kind}_"))
    pictures = [np.asarray(Image.open(io.BytesIO(pack[k].tobytes())).convert("L")) for k in names]
    tiles = [p.reshape(p.shape[0] // 28, 28, -1, 28).swapaxes(1, 2).reshape(-1, 28, 28) for p in pictures]
    order = np.argsort(pack[f"idx_{kind}"], kind="stable")
    return np.concatenate(tiles)[order], pack[f"y_{kind}"][order]


@lru_cache(maxsize=1)
def read(path: Path) -> dict[str, tuple[Any, Any]]:
    """Training and test images, averaged to 14 x 14: a quarter of the work and hardly harder to tell apart."""
    out = {}
    with np.load(path) as pack:
        for kind in ("train", "test"):
            images, labels = unpacked(pack, kind)
            small = images.reshape(-1, 1, 14, 2, 14, 2).mean((3, 5), dtype=np.float32)
            out[kind] = (small / 255 - 0.286) / 0.3, labels.astype(np.int64)
    return out


def federation(images: Path, job: Job, scale: Scale) -> Federation:
    """Images drawn by the seed and divided; tuning is tested on training images, so that it sees no test image."""
    data = read(images)
    (x, y), kind = data["train"], "train" if job.seed == TUNING_SEED else "test"
    drawn = np.random.default_rng([job.seed, 0]).permutation(len(x))
    train, rest = drawn[: scale.train], drawn[scale.train :]
    tests = np.random.default_rng([job.seed, 1]).permutation(len(data["test"][0])) if kind == "test" else rest
    test_x, test_y = (array[tests[: scale.test]] for array in data[kind])
    parts = split(job.partition, y[train], CLIENTS, job.seed)
    test_parts = test_split(y[train], parts, test_y, job.seed)
    arrays = [torch.from_numpy(array) for array in (x[train], y[train], test_x, test_y)]
    rows = (tuple(map(torch.from_numpy, p)) for p in (parts, test_parts))
    return Federation(*arrays, *rows, classes=10)


def algorithm(job: Job) -> Any:
    """The method as the job has it."""
    method, settings, terms = VARIANTS[job.variant]
    known = settings_of(ct.algorithms.builder(method))
    rates = {k: job.lr for k in ("lr", "personal_lr") if k in known}
    text = ",".join(f"{term}={job.coefficient:g}" for term in terms)
    return ct.algorithms.build(
        method, **{**COMMON, **SERVER, **rates, **settings, **({"regularizer": text} if terms else {})}
    )


def play(job: Job, images: Path, scale: Scale) -> Row:
    """The run's accuracies, what it sent and what it computed; ``curve`` holds them by round."""
    torch.set_num_threads(1)
    began, fed = time.process_time(), federation(images, job, scale)
    module = ct.models.build(MODEL, fed, seed=job.seed)
    how = {"engine": "serial", "device": "cpu", "progress": False, "evaluate_every": scale.every}
    try:
        run = ct.fit(module, fed, algorithm(job), rounds=job.rounds, seed=job.seed, **how)
    except ct.UserError as error:  # a rate or a coefficient that diverges
        return {**job._asdict(), "error": str(error)}
    sent = np.cumsum([row["parameters_sent"] for row in run.history]).tolist()
    measured = [
        (row, total) for row, total in zip(run.history, sent, strict=True) if row["global_accuracy"] is not None
    ]
    curve = [
        [row["round"], total, row["global_accuracy"], row["personal_accuracy_after_mix"]] for row, total in measured
    ]
    return {
        **job._asdict(),
        "global": curve[-1][2],
        "personal": curve[-1][3],
        "after_train": measured[-1][0]["personal_accuracy_after_train"],
        "worst": measured[-1][0]["personal_accuracy_after_mix_worst"],
        "sent": sent[-1],
        "flops": sum(row["flops"] for row in run.history),
        "seconds": round(time.process_time() - began, 1),
        "curve": curve,
    }


class Runner(NamedTuple):
    """How jobs are run and remembered."""

    images: Path
    scale: Scale
    log: Path
    workers: int

    def done(self, jobs: Iterable[Job]) -> list[Row]:
        """The jobs' results; those in the log are not run again, and equal ones are run once."""
        wanted, known = list(jobs), logged(self.log)
        missing = [job for job in dict.fromkeys(wanted) if job not in known]
        missing.sort(key=lambda job: job.partition != STRONG)  # the longest first, so that no core waits for them
        # Processes start anew: a copy of one that has used torch's threads can hang.
        pool = ProcessPoolExecutor(max(1, min(self.workers, len(missing))), mp_context=get_context("spawn"))
        with pool, self.log.open("a") as file:
            futures = {pool.submit(play, job, self.images, self.scale): job for job in missing}
            for number, future in enumerate(as_completed(futures), 1):
                job = futures[future]
                known[job] = future.result()
                print(json.dumps(known[job]), file=file, flush=True)
                print(f"{number}/{len(missing)} {described(known[job])}", flush=True)
        return [known[job] for job in wanted]


def logged(log: Path) -> dict[Job, Row]:
    """The runs of a log; a line that was torn by an interruption is dropped from it."""
    text = log.read_text() if log.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        log.write_text(whole)
    rows = [json.loads(line) for line in whole.splitlines()]
    return {Job(*(row[k] for k in Job._fields)): row for row in rows}


def described(row: Row) -> str:
    """A run in a line."""
    job = Job(*(row[k] for k in Job._fields))
    result = row.get("error") or f"global {row['global']:.3f}, personal {row['personal']:.3f}, {row['seconds']:.0f} s"
    return f"{job.variant}, seed {job.seed}, lr {job.lr:g}, coefficient {job.coefficient:g}: {result}"


def pairs(names: Sequence[str]) -> dict[tuple[str, str], str]:
    """Which variants are run on which partition, and the accuracy that decides."""
    return {(STUDIES[n].partition, v): STUDIES[n].headline for n in names for v in STUDIES[n].variants}


def best(rows: Iterable[Row], headline: str) -> tuple[float, float]:
    """The learning rate and coefficient of the best of some runs."""
    row = max(rows, key=lambda r: r.get(headline, 0.0))
    return row["lr"], row["coefficient"]


def tuned(names: Sequence[str], run: Runner) -> Chosen:
    """First everybody's learning rate, then the regularizers' coefficients, all on a seed of their own."""
    wanted, (scale, chosen) = pairs(names), (run.scale, {})
    plain = [pair for pair in wanted if not VARIANTS[pair[1]].terms]
    regularized = [pair for pair in wanted if VARIANTS[pair[1]].terms]
    grids = {
        (p, v): [Job(v, p, TUNING_SEED, scale.rounds, lr) for lr in (*LOWER.get(p, ()), *scale.rates)] for p, v in plain
    }
    chosen.update(decided(grids, wanted, run))
    grids = {
        (p, v): [Job(v, p, TUNING_SEED, scale.rounds, chosen[p, REFERENCE][0], c) for c in scale.coefficients]
        for p, v in regularized
    }
    chosen.update(decided(grids, wanted, run))
    return chosen


def decided(
    grids: Mapping[tuple[str, str], list[Job]], headlines: Mapping[tuple[str, str], str], run: Runner
) -> Iterator[tuple[tuple[str, str], tuple[float, float]]]:
    """The best of every grid; all grids are run together."""
    rows = iter(run.done(job for grid in grids.values() for job in grid))
    for pair, grid in grids.items():
        yield pair, best([next(rows) for _ in grid], headlines[pair])


def compared(names: Sequence[str], chosen: Chosen, run: Runner) -> list[Row]:
    """Every variant on every seed, as chosen."""
    return run.done(
        Job(v, p, seed, run.scale.rounds, *chosen[p, v]) for seed in run.scale.seeds for p, v in pairs(names)
    )


def shortened(rows: Sequence[Row], chosen: Chosen, run: Runner) -> list[Row]:
    """The methods once more, with as many rounds as send what the reference sends, and a schedule of that length.

    In the middle of a long run a learning rate is still high: an accuracy read there would be too low a bar.
    """
    study = STUDIES["communication"]
    ended = {v: of(rows, v, study.partition) for v in study.variants}
    sent = {v: fmean(r["sent"] for r in mine) for v, mine in ended.items() if mine}
    rounds = {v: max(1, round(run.scale.rounds * sent[REFERENCE] / sent[v])) for v in sent if v != REFERENCE}
    return run.done(
        Job(v, study.partition, seed, n, *chosen[study.partition, v])
        for seed in run.scale.seeds
        for v, n in rounds.items()
    )


def of(rows: Iterable[Row], variant: str, partition: str) -> list[Row]:
    """A variant's runs that came to an end."""
    mine = (r for r in rows if (r["variant"], r["partition"]) == (variant, partition))
    return [r for r in mine if "error" not in r]


def cell(values: Sequence[float]) -> str:
    """Mean and standard deviation over the seeds, in %."""
    return verdicts.spread(100 * v for v in values)


def mean(rows: Sequence[Row], name: str, unit: float) -> str:
    """A mean over the seeds in some unit."""
    return f"{fmean(r[name] for r in rows) / unit:.1f}" if rows else "-"


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines))


def plain_table(study: Study, rows: Sequence[Row], chosen: Chosen) -> str:
    """Accuracies, what was chosen, what was sent and computed."""
    points = ("personal, after aggregation", "after local training")
    heads = ("", "global", *points, "worst client", "lr", "10^6 sent", "GFLOP")
    lines = []
    for v in study.variants:
        mine = of(rows, v, study.partition)
        accuracies = [cell([r[k] for r in mine]) for k in ("global", "personal", "after_train", "worst")]
        rest = [f"{chosen[study.partition, v][0]:g}", mean(mine, "sent", 1e6), mean(mine, "flops", 1e9)]
        lines.append([v, *accuracies, *rest])
    return markdown(heads, lines)


def first_round(row: Row, target: float) -> int | None:
    """The first evaluated round whose global accuracy reaches the target."""
    return next((t for t, _, accuracy, _ in row["curve"] if accuracy >= target), None)


def regularizer_table(study: Study, rows: Sequence[Row], chosen: Chosen) -> str:
    """Accuracies, coefficients and the rounds to what the plain run nearly comes to, as in the paper's table."""
    plain = of(rows, REFERENCE, study.partition)
    target = 0.97 * fmean(r["global"] for r in plain) if plain else 1.0
    heads = ("", "coefficient", "global", "personal, after aggregation", f"rounds to {100 * target:.1f} %")
    lines = []
    for v in study.variants:
        mine = of(rows, v, study.partition)
        reached = [first_round(r, target) for r in mine]
        rounds = f"{fmean(reached):.1f}" if reached and None not in reached else "-"
        coefficient = f"{chosen[study.partition, v][1]:g}"
        name = "none" if v == REFERENCE else v
        lines.append([name, coefficient, *(cell([r[k] for r in mine]) for k in ("global", "personal")), rounds])
    return markdown(heads, lines)


def at_budget(row: Row, budget: float) -> float | None:
    """The global accuracy when at most so many parameters were sent."""
    return next((accuracy for _, sent, accuracy, _ in reversed(row["curve"]) if sent <= budget), None)


def budget_table(rows: Sequence[Row], short: Sequence[Row]) -> str:
    """Global accuracies at what the reference has sent after a quarter, a half and all of its rounds."""
    study = STUDIES["communication"]
    total = fmean(r["sent"] for r in of(rows, REFERENCE, study.partition))
    shares = (0.25, 0.5, 1.0)
    heads = ("", *(f"{share * total / 1e6:.1f} * 10^6 sent" for share in shares), "a schedule of that length", "rounds")
    lines = []
    for v in study.variants:
        mine = of(rows, v, study.partition)
        own = of(short, v, study.partition) or mine
        # A hair more than the budget, so that the reference's own last round lies within it on every seed.
        found = [[at_budget(r, 1.001 * share * total) for r in mine] for share in shares]
        cells = [cell([a for a in accuracies if a is not None]) for accuracies in found]
        lines.append([v, *cells, cell([r["global"] for r in own]), str(own[0]["rounds"]) if own else "-"])
    return markdown(heads, lines)


class Claim(NamedTuple):
    """That each of some variants is above the one before it, in a study."""

    text: str
    study: str
    variants: tuple[str, ...]
    short: bool = False  # all but the reference with the rounds that send as much


CLAIMS = (
    *(
        Claim(f"FedLMT above {v} at equal rounds", "communication", (v, REFERENCE))
        for v in ("fedhm", "heterofl", "fedrolex")
    ),
    Claim("FedAvg above FedLMT at equal rounds", "communication", (REFERENCE, "fedavg")),
    Claim("FedRolex above HeteroFL at equal rounds", "communication", ("heterofl", "fedrolex")),
    *(
        Claim(f"FedLMT above {v} at equal communication", "communication", (v, REFERENCE), short=True)
        for v in ("fedavg", "fedhm", "heterofl", "fedrolex")
    ),
    Claim(
        "the less often decomposed, the better (T_s = 1, 2, 5, 10, never)",
        "svd",
        (*(f"fedhmv2, T_s = {T}" for T in (1, 2, 5, 10)), "fedhmv2, never"),
    ),
    *(Claim(f"{v} above no regularizer", "regularizers", (REFERENCE, v)) for v in VARIANTS if VARIANTS[v].terms),
)


def claims_table(rows: Sequence[Row], short: Sequence[Row]) -> str:
    """What the paper says, and the word for it."""
    lines = []
    for text, name, names, brief in CLAIMS:
        partition = STUDIES[name].partition
        found = [of(short if brief and v != REFERENCE else rows, v, partition) for v in names]
        by_seed = [{r["seed"]: 100 * r[STUDIES[name].headline] for r in mine} for mine in found]
        means = ", ".join(f"{fmean(v.values()):.1f}" for v in by_seed)
        lines.append(
            [text, means, verdicts.spread(verdicts.differences(by_seed[0], by_seed[-1])), verdicts.rising(by_seed)]
        )
    return markdown(("claim", "global accuracy, lowest by the claim first", "last minus first", "verdict"), lines)


def picture(rows: Sequence[Row], path: Path) -> None:
    """Global accuracy over what was sent."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    study = STUDIES["communication"]
    colors = ("#555555", "#a3244f", "#1b6ca8", "#d98200", "#2e8b57")
    for v, color in zip(study.variants, colors, strict=True):
        curves = np.array([r["curve"] for r in of(rows, v, study.partition)])
        if len(curves):
            sent, accuracy = curves[:, :, 1].mean(0), 100 * curves[:, :, 2]
            axis.plot(sent, accuracy.mean(0), color=color, marker=".", label=v)
            axis.fill_between(sent, accuracy.min(0), accuracy.max(0), color=color, alpha=0.15, linewidth=0)
    axis.set(xscale="log", xlabel="parameters sent, both ways, all clients", ylabel="global accuracy, %")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=90)


def tables(names: Sequence[str], rows: Sequence[Row], short: Sequence[Row], chosen: Chosen) -> str:
    """Everything as Markdown."""
    parts = []
    for name in names:
        study = STUDIES[name]
        draw = regularizer_table if name == "regularizers" else plain_table
        parts.append(f"### {study.title} ({study.partition})\n\n{draw(study, rows, chosen)}")
        if name == "communication":
            parts.append(f"#### Global accuracy at equal communication\n\n{budget_table(rows, short)}")
    if set(names) == set(STUDIES):
        parts += ["### Claims", claims_table(rows, short), verdicts.RULE]
    return "\n\n".join(parts) + "\n"


def rewritten(folder: Path) -> None:
    """The tables again, from capacities.json."""
    old = json.loads((folder / "capacities.json").read_text())
    chosen = {(c["partition"], c["variant"]): (c["lr"], c["coefficient"]) for c in old["chosen"]}
    (folder / "capacities-tables.md").write_text(tables(list(STUDIES), old["runs"], old["short_runs"], chosen))


def facts(scale: Scale, rows: Sequence[Row]) -> dict[str, Any]:
    """What it was run with, and how long a run took."""
    modules = {"coterie": ct, "torch": torch, "numpy": np}
    found = {name: str(module.__version__) for name, module in modules.items()}
    seconds = [r["seconds"] for r in rows if "seconds" in r]
    return {
        "versions": {"python": platform.python_version(), **found, "on": platform.machine()},
        "scale": scale._asdict(),
        "common": COMMON | SERVER,
        "seconds_a_run": round(fmean(seconds), 1) if seconds else None,
    }


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="x_train, y_train, x_test, y_test, or WebP mosaics")
    parser.add_argument("--only", choices=STUDIES, help="one of the four instead of all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)  # to see that everything works
    return parser.parse_args()


def main() -> None:
    """Tunes, compares, writes."""
    typed = arguments()
    scale, stem = (QUICK, "capacities-quick") if typed.quick else (Scale(), "capacities")
    names = [typed.only] if typed.only else list(STUDIES)
    typed.out.mkdir(parents=True, exist_ok=True)
    run = Runner(typed.images.resolve(), scale, typed.out / f"{stem}.jsonl", typed.workers)
    chosen = tuned(names, run)
    rows = compared(names, chosen, run)
    short = shortened(rows, chosen, run) if "communication" in names else []
    listed = [{"partition": p, "variant": v, "lr": lr, "coefficient": c} for (p, v), (lr, c) in chosen.items()]
    results = {**facts(scale, rows), "chosen": listed, "runs": rows, "short_runs": short}
    (typed.out / f"{stem}.json").write_text(json.dumps(results) + "\n")
    text = tables(names, rows, short, chosen)
    (typed.out / f"{stem}-tables.md").write_text(text)
    if "communication" in names:
        picture(rows, typed.out / f"{stem}.png")
    print(text)


if __name__ == "__main__":
    main()
