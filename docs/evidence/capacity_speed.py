"""How long rounds of unequal clients take, against the rounds they stand for: on a CPU, with one thread.

    python docs/evidence/capacity_speed.py [--repeats 5] [--only heterofl] [--out docs/evidence]

heterofl  a round of three widths against its three groups, each a federation of its own at its width
fedlmt    a round of the model of low rank (three layers whole, rank ratio 0.15) against FedAvg's of the full model

All sides of a comparison take turns in one process, so that whatever else the machine does meets all of them. A round
is local work and exchange without evaluation. Prints ratios of medians, and writes capacity_speed.json and
capacity_speed.md.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.append(str(Path(__file__).parents[2] / "bench"))

import torch
from torch import nn

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.data import Federation
from coterie.engines import Serial
from coterie.models.cost import cost
from coterie.models.model import Model, cross_entropy
from coterie.submodels import narrow
from coterie.training.experiment import Experiment
from coterie.training.select_engine import select_engine
from measure import machine

RATES = (1.0, 0.75, 0.5)
LIMIT = 1.2  # what unequal widths in one federation may cost above the groups alone
SEED = 0


class Work(NamedTuple):
    """A model and how much of it is trained in a round."""

    model: str
    shape: tuple[int, ...]
    clients: int  # a multiple of three, where there are three widths
    samples: int  # a client
    batch_size: int


HETEROFL = {
    "small": Work("small-cnn", (1, 8, 8), 60, 64, 16),  # so small that clients train side by side
    "residual": Work("resnet8-bn", (3, 32, 32), 6, 32, 16),
}
FEDLMT = {
    "resnet8-bn": Work("resnet8-bn", (3, 32, 32), 4, 64, 32),
    "resnet18-bn": Work("resnet18-bn", (3, 32, 32), 4, 32, 32),
}
ENGINES = ("auto", "serial")


class Part(NamedTuple):
    """One experiment of a side, its name, and what its engine came to."""

    name: str
    experiment: Experiment
    engine: str


class Comparison(NamedTuple):
    """A side against the sum of others."""

    name: str
    engine: str  # as asked for
    mine: Part
    others: Mapping[str, Sequence[Part]]  # by what they are called


def clients(w: Work, which: range) -> Federation:
    """Some of the clients of a work; each has the same samples in whatever federation it is."""
    pairs = []
    for client in which:
        g = torch.Generator().manual_seed(client)
        pairs.append((torch.randn(w.samples, *w.shape, generator=g), torch.randint(0, 10, (w.samples,), generator=g)))
    return ct.data.from_tensors(train=pairs, test=[(x[:1], y[:1]) for x, y in pairs], classes=10)


def settings(w: Work) -> dict[str, Any]:
    """What all methods have in common."""
    return {"lr": 0.01, "batch_size": w.batch_size, "epochs": 1, "participation": 1.0, "weighting": "uniform"}


def part(name: str, w: Work, module: nn.Module, fed: Federation, algorithm: Algorithm, engine: str) -> Part:
    """An experiment on the engine that fits it, or on the one that is asked for."""
    model = Model(module, cross_entropy)
    e = Experiment.of(model, fed, algorithm, Serial(), SEED, 100)
    chosen = select_engine(engine, e, fed.clients).engine
    return Part(name, replace(e, engine=chosen), type(chosen).__name__.lower())


def unequal(name: str, w: Work, engine: str) -> Comparison:
    """Three widths together, against each alone: cut from the full model, or as a narrow model of its own."""
    module = ct.models.build(w.model, classes=10, input_shape=w.shape)
    third = w.clients // len(RATES)
    method, common = ct.algorithms.heterofl, settings(w)
    text = "-".join(f"{rate:g}" for rate in RATES)
    mine = part("together", w, module, clients(w, range(w.clients)), method(capacities=text, **common), engine)
    cut, own = [], []
    for group, rate in enumerate(RATES):
        fed = clients(w, range(group * third, (group + 1) * third))
        cut.append(part(f"heterofl, {rate:g}", w, module, fed, method(capacities=f"{rate:g}", **common), engine))
        fedavg = ct.algorithms.fedavg(**lmt(common))
        own.append(part(f"fedavg, {rate:g}", w, narrow(module, rate), fed, fedavg, engine))
    return Comparison(f"heterofl, {name}", engine, mine, {"the three groups alone": cut, "narrow fedavg, summed": own})


def lmt(common: Mapping[str, Any]) -> dict[str, Any]:
    """FedAvg with the options that FedLMT's experiments give to all methods: it does not clip then."""
    return {**common, "lr_min": 1e-4, "clip": None}


def low_rank(name: str, w: Work, engine: str) -> Comparison:
    """The model of low rank against the full one."""
    module, fed = ct.models.build(w.model, classes=10, input_shape=w.shape), clients(w, range(w.clients))
    common = settings(w)
    low = ct.algorithms.fedlmt(keep_layers=3, rank_ratio=0.15, **common)
    full = part("fedavg", w, module, fed, ct.algorithms.fedavg(**lmt(common)), engine)
    return Comparison(f"fedlmt, {name}", engine, part("fedlmt", w, module, fed, low, engine), {"fedavg": [full]})


def timed(c: Comparison, repeats: int) -> dict[str, list[float]]:
    """The seconds of a round by part, ``repeats`` times, the parts taking turns; a round before them warms up."""
    parts = [c.mine, *(p for others in c.others.values() for p in others)]
    now = {p.name: p.experiment.start() for p in parts}
    seconds: dict[str, list[float]] = {p.name: [] for p in parts}
    for t in range(repeats + 1):
        for p in parts:
            now[p.name], row = p.experiment.run_round(now[p.name], t, evaluate=False)
            seconds[p.name].append(row["seconds"])
    return {name: each[1:] for name, each in seconds.items()}


def forward_flops(p: Part) -> int:
    """Of one sample, in the form that is trained."""
    return cost(p.experiment.model.evaluation, p.experiment.federation.x[:2]).flops


def measured(c: Comparison, repeats: int) -> list[dict[str, Any]]:
    """Ratios of a comparison, one row a side it is compared with."""
    seconds, rows = timed(c, repeats), []
    for name, others in c.others.items():
        sums = [sum(each) for each in zip(*(seconds[p.name] for p in others), strict=True)]
        mine = seconds[c.mine.name]
        rows.append(
            {
                "what": c.name,
                "against": name,
                "engine": c.engine,
                "chosen": sorted({p.engine for p in (c.mine, *others)}),
                "seconds": median(mine),
                # The sum of medians, not the median of sums: a hiccup in one part must not count for all.
                "seconds_against": sum(median(seconds[p.name]) for p in others),
                "ratio_by_repeat": [a / b for a, b in zip(mine, sums, strict=True)],
                "seconds_by_part": {p.name: seconds[p.name] for p in (c.mine, *others)},
            }
        )
        if len(others) == 1:
            rows[-1]["flops"] = forward_flops(c.mine) / forward_flops(others[0])
    return [{**row, "ratio": row["seconds"] / row["seconds_against"]} for row in rows]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    heads = ("round of", "against", "engine", "seconds", "seconds, against", "ratio", "by repeat", "FLOPs, ratio")
    lines = [heads, ("---",) * len(heads)]
    for r in rows:
        engine = r["engine"] if [r["engine"]] == r["chosen"] else f"{r['engine']}: {', '.join(r['chosen'])}"
        spread = f"{min(r['ratio_by_repeat']):.2f} to {max(r['ratio_by_repeat']):.2f}"
        flops = f"{r['flops']:.2f}" if "flops" in r else "-"
        times = (f"{r[k]:.3f}" for k in ("seconds", "seconds_against"))
        lines.append((r["what"], r["against"], engine, *times, f"{r['ratio']:.2f}", spread, flops))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether three widths together stay below the limit."""
    found = [r["ratio"] for r in rows if r["against"] == "the three groups alone"]
    if not found:
        return ""
    return (
        f"\nThree widths together take {min(found):.2f} to {max(found):.2f} times what their groups take alone, "
        f"the limit is {LIMIT}: {'kept' if max(found) <= LIMIT else '**not kept**'}.\n"
    )


KINDS: dict[str, tuple[Callable[[str, Work, str], Comparison], dict[str, Work]]] = {
    "heterofl": (unequal, HETEROFL),
    "fedlmt": (low_rank, FEDLMT),
}


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    typed = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for kind in [typed.only] if typed.only else KINDS:
        make, works = KINDS[kind]
        for name, w in works.items():
            for engine in ENGINES:
                rows += measured(make(name, w, engine), typed.repeats)
                print(f"{rows[-1]['what']}, {engine}: {rows[-1]['ratio']:.2f}", flush=True)
    facts = {"machine": machine(), "repeats": typed.repeats, "work": {**HETEROFL, **FEDLMT}}
    typed.out.mkdir(parents=True, exist_ok=True)
    (typed.out / "capacity_speed.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    text = f"{table(rows)}\n{verdict(rows)}"
    (typed.out / "capacity_speed.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
