"""What evaluating and saving a run cost its training.

    python docs/evidence/overlap.py [--repeats 5] [--out docs/evidence]
    python docs/evidence/overlap.py --device cuda --model resnet18-gn --clients 100 --samples 500

DFedAvg (FedAvg where only some take part) on random images, three runs that differ in nothing else: neither evaluated
nor saved (but for the evaluation of the last round, which is always done), evaluated as often as commands do it where
nobody says, and evaluated and saved. They take turns, so that whatever else the machine does meets all of them. The
time of a round is taken from outside, from the end of the first that is evaluated to the end of the last but one:
everything between them counts, whoever waits. What of it is local work and mixing, the run itself records: the rest is
what training waits for, some of it for the round's own bookkeeping. The CPU's time, of all threads together, tells what
the writing beside the training takes from it, and is the steadier number where others use the machine too.

Without a model: the works below, and overlap.json and overlap.md are written.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

# As the commands have it, before torch starts its threads: those that spin while they wait ruin a busy machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
sys.path.append(str(Path(__file__).parents[2] / "bench"))

import torch

import coterie as ct
from coterie.core.tensors import size_in_bytes
from coterie.data import Federation
from coterie.store import RunFolder
from coterie.training.experiment import Experiment
from measure import machine

LIMIT = 0.1  # of the training's time
ABOUT = """# What evaluating and saving a run cost its training

Made by [overlap.py](overlap.py), which says how. Medians, and between which values half of the turns lie. Waiting: the
time of a round that is neither local work nor mixing, as a share of local work and mixing.
"""
NEITHER, EVALUATED, SAVED = "neither", "evaluated", "evaluated and saved"


class Work(NamedTuple):
    """A model and how much of it is trained in a round."""

    model: str
    shape: tuple[int, ...]
    clients: int
    samples: int  # a client; a third as many test it, as with the embedded digits
    batch_size: int
    epochs: int
    rounds: int
    repeats: int
    device: str = "cpu"
    engine: str = "auto"
    participants: int | None = None  # None: all, and no server


# Short runs in many turns, because the machine is shared.
SMALL = Work("small-cnn", (1, 8, 8), 20, 68, 16, 5, rounds=12, repeats=9)
WORKS = (
    SMALL,
    SMALL._replace(epochs=1, rounds=201, repeats=5),
    SMALL._replace(epochs=1, rounds=401, repeats=5, participants=4),
    Work("logreg", (1, 28, 28), 1000, 60, 20, 1, rounds=701, repeats=3, participants=100),
    Work("mlp:width=300", (3, 32, 32), 100, 64, 16, 1, rounds=21, repeats=3),  # a million parameters
)


class Watch:
    """When rounds ended, how much the CPU had done by then, and how long checkpoints took."""

    def __init__(self) -> None:
        self.ended: list[float] = []
        self.cpu: list[float] = []
        self.saving: list[float] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notes them, of every run in this process."""
        play, save = Experiment.run_round, RunFolder.save

        def played(*values: Any, **options: Any) -> Any:
            result = play(*values, **options)
            self.ended.append(time.perf_counter())
            self.cpu.append(time.process_time())
            return result

        def saved(*values: Any) -> None:
            began = time.perf_counter()
            save(*values)
            self.saving.append(time.perf_counter() - began)

        with patch.object(Experiment, "run_round", played), patch.object(RunFolder, "save", saved):
            yield


def federation(w: Work) -> Federation:
    """Clients whose samples are noise."""
    g = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, *w.shape, generator=g), torch.randint(0, 10, (count,), generator=g)

    train, test = ([draw(count) for _ in range(w.clients)] for count in (w.samples, w.samples // 3))
    return ct.data.from_tensors(train=train, test=test, classes=10)


def run(w: Work, fed: Federation, mode: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """One run: seconds a round, what of them is local work and mixing, and what comes after the last round."""
    settings: dict[str, Any] = {"lr": 0.01, "batch_size": w.batch_size, "epochs": w.epochs}
    algorithm = (
        ct.algorithms.fedavg(participation=w.participants, **settings)
        if w.participants
        else ct.algorithms.dfedavg(topology="random:5", **settings)
    )
    watch = Watch()
    with TemporaryDirectory() as folder, watch.watching():
        done = ct.fit(
            ct.models.build(w.model, fed),
            fed,
            algorithm,
            rounds=w.rounds,
            engine=w.engine,
            device=w.device,
            out=Path(folder) / "run" if mode == SAVED else None,
            evaluate_every=w.rounds if mode == NEITHER else "auto",
            progress=False,
            **options,
        )
        end = time.perf_counter() - watch.ended[-1]
    # From the first evaluated round, which builds what it needs, to the last but one: an integer of periods.
    every = 1 if mode == NEITHER else done.config["evaluate_every"]
    first, last = every, (w.rounds - 1) // every * every
    count = last - first
    return {
        "round": (watch.ended[last - 1] - watch.ended[first - 1]) / count,
        "cpu": (watch.cpu[last - 1] - watch.cpu[first - 1]) / count,
        "training": sum(row["seconds"] for row in done.history[first:last]) / count,
        "end": end,
        "checkpoints": len(watch.saving),
        "checkpoint": median(watch.saving or [0.0]),
        "engine": done.config["engine"],
        "every": done.config["evaluate_every"],
        "state": size_in_bytes(done.final.values()),
    }


def measured(w: Work, options: Mapping[str, Any]) -> dict[str, Any]:
    """Medians of every mode, and how much longer than without both a round takes."""
    fed = federation(w)
    runs: dict[str, list[dict[str, Any]]] = {NEITHER: [], EVALUATED: [], SAVED: []}
    for repeat in range(w.repeats):
        for mode in sorted(runs, key=lambda mode: (repeat + list(runs).index(mode)) % len(runs)):
            runs[mode].append(run(w, fed, mode, options))
            print(f"{w.model}, {mode}: {runs[mode][-1]['round']:.3f} s a round", flush=True)
    names = ("round", "cpu", "training", "end", "checkpoints", "checkpoint")
    modes = {mode: {k: median(r[k] for r in each) for k in names} for mode, each in runs.items()}
    for mode, each in modes.items():
        each["waiting"] = [r["round"] / r["training"] - 1 for r in runs[mode]]
        each["longer"] = {other: longer("round", runs[mode], runs[other]) for other in runs}
        each["more_cpu"] = {other: longer("cpu", runs[mode], runs[other]) for other in runs}
    one = runs[SAVED][0]
    return {"work": w._asdict(), **{k: one[k] for k in ("engine", "every", "state")}, "modes": modes}


def longer(what: str, these: Sequence[Mapping[str, Any]], than: Sequence[Mapping[str, Any]]) -> list[float]:
    """How much more of it, turn by turn."""
    return [a[what] / b[what] - 1 for a, b in zip(these, than, strict=True)]


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    heads = ("work", "run", "s a round", "waiting", "longer than neither", "more of the CPU", "checkpoints")
    lines = [heads, ("---",) * len(heads)]
    for each in found:
        w = each["work"]
        who = f"{w['participants']} of {w['clients']}" if w["participants"] else w["clients"]
        name = f"{w['model']}, {who} clients x {w['samples']} samples x {w['epochs']} epochs, {each['engine']}"
        for mode, m in each["modes"].items():
            more = [spread(m[k][NEITHER]) if mode != NEITHER else "-" for k in ("longer", "more_cpu")]
            saved = f"{m['checkpoints']:.0f} in {w['rounds']} rounds, {m['checkpoint']:.3f} s each"
            cells = (f"{m['round']:.3f}", spread(m["waiting"]), *more, saved if mode == SAVED else "-")
            lines.append((name, mode if mode == NEITHER else f"{mode} every {each['every']}", *cells))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(shares: Sequence[float]) -> str:
    """Of all turns: the median, and between which half of them lie."""
    low, middle, high = (f"{100 * share:.1f}" for share in quantiles([*shares, *shares], n=4))
    return f"{middle} % ({low} to {high})"


def costs(each: Mapping[str, Any]) -> dict[str, float]:
    """What training waits for, as shares of its own time."""
    waiting = {mode: median(m["waiting"]) for mode, m in each["modes"].items()}
    return {
        "evaluating": waiting[EVALUATED] - waiting[NEITHER],
        "saving": waiting[SAVED] - waiting[EVALUATED],
        "both": waiting[SAVED] - waiting[NEITHER],
        "all that a round has beside them": waiting[NEITHER],
    }


def verdict(each: Mapping[str, Any]) -> str:
    """What training waits for, and what comes after the rounds."""
    m, w, shares = each["modes"], each["work"], costs(each)
    said = ", ".join(f"{part} {100 * share:.1f} %" for part, share in shares.items())
    cpu, state = spread(m[SAVED]["more_cpu"][EVALUATED]), each["state"] / 2**20
    kept = "kept" if shares["both"] <= LIMIT else "**not kept**"
    return (
        f"* {w['model']}, {w['epochs']} epochs, evaluated every {each['every']} rounds, a state of {state:.1f} MiB: "
        f"training waits for {said} of its own time; "
        f"the limit of {100 * LIMIT:.0f} % is {kept}. Saving takes {cpu} more of the CPU. After the last round: "
        f"{m[SAVED]['end']:.2f} s with the last checkpoint and the clients' files, {m[NEITHER]['end']:.2f} s without."
    )


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """The page of all works."""
    return f"{ABOUT}\n{table(found)}\n\n" + "\n".join(map(verdict, found)) + "\n"


def typed_work(typed: argparse.Namespace) -> Work:
    """The work that the options describe."""
    shape = tuple(int(n) for n in typed.shape.split(","))
    return Work(
        *(typed.model, shape, typed.clients, typed.samples, typed.batch_size, typed.epochs, typed.rounds),
        typed.repeats or 5,
        typed.device,
        typed.engine,
    )


def main() -> None:
    """Measures, prints, and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="one work instead of those below: this model, and what follows")
    parser.add_argument("--shape", default="3,32,32")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision", help="handed to fit where it is given")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--out", type=Path, help="where to write; by default beside this file, where no model is named")
    typed = parser.parse_args()
    options = {} if typed.precision is None else {"precision": typed.precision}
    works = [typed_work(typed)] if typed.model else [w._replace(repeats=typed.repeats or w.repeats) for w in WORKS]
    found = [measured(w, options) for w in works]
    text = page(found)
    print(text)
    out = typed.out or (None if typed.model else Path(__file__).parent)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        facts = {"machine": machine(), "found": found}
        (out / "overlap.json").write_text(json.dumps(facts, indent=1) + "\n")
        (out / "overlap.md").write_text(text)


if __name__ == "__main__":
    main()
