"""``coterie recipe run``: a published experiment through the same loop as every other run, beside its numbers."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.table import Table

from ..engines import Serial
from ..errors import RequestError
from ..experiment import Experiment
from ..first import PER_CLIENT, first_models
from ..loop import fit
from ..problem import Model, cross_entropy
from ..recipes import READINGS, Recipe, load
from ..recipes.costs import SPEED_OF, cost, duration
from ..recipes.outcome import Compared, compared, protocol, unmeasured
from ..recipes.shorten import Changes, changed, shortenings
from ..report.collect import RECIPE
from ..store.files import write_json
from ..text import scaled
from .live import Live
from .recipe_show import MARKS, printed, table, wide_console
from .report import begin_several, leave_report
from .train import fresh_folder, interruptible, typed_command


@dataclass(frozen=True)
class Wishes:
    """The options of ``recipe run`` as typed; None where nothing was said."""

    name: str
    methods: str | None
    case: str | None
    rounds: int | None
    seeds: int | None
    reading: str | None
    clients: int | None
    data: str | None
    model: str | None
    partition: str | None
    set: Sequence[str]
    record: Sequence[str]
    evaluate_every: int | None
    out: Path | None
    resume: bool
    engine: str
    device: str
    precision: str

    @property
    def changes(self) -> Changes:
        """What is other than published."""
        return Changes(self.rounds, self.clients, self.data, self.model, self.partition, self.set)


@dataclass(frozen=True)
class Plan:
    """Which runs make up the answer."""

    published: Recipe
    wishes: Wishes
    live: Live

    @cached_property
    def read(self) -> Recipe:
        """The recipe in the reading that was asked for."""
        return self.published.read(self.wishes.reading)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as it will be run."""
        return changed(self.read, self.wishes.changes, dict.fromkeys(m for _, m in self.cells))

    @property
    def record(self) -> list[str]:
        """What is measured besides: what the experiment needs, and what was asked for."""
        return list(dict.fromkeys([*self.recipe.record, *self.wishes.record]))

    @property
    def seeds(self) -> int:
        """How many runs a number is the mean of."""
        return self.wishes.seeds or self.published.seeds

    @cached_property
    def cells(self) -> list[tuple[int, str]]:
        """Cases, counted from 1, and methods."""
        recipe = self.published
        pairs = [(n, m) for n in recipe.find(self.wishes.case) for m in recipe.cases[n - 1].methods]
        if self.wishes.methods is None:
            return pairs
        typed = [m.strip().replace("_", "-") for m in self.wishes.methods.split(",") if m.strip()]
        if not typed:
            raise RequestError(f"--methods names none: choose among {', '.join(recipe.methods)}, or leave it out")
        for method in typed:
            why = recipe.entry(method).differs or "it was not run there"
            if method not in (m for _, m in pairs):
                raise RequestError(f"{method} cannot be run in this case ({why}): choose another --case or method")
        return [(n, m) for n, m in pairs if m in typed]

    def check(self) -> None:
        """Refuses whatever cannot be run before the first run begins."""
        for number in dict.fromkeys(n for n, _ in self.cells):
            federation = self.recipe.federation(number)
            module = self.recipe.model(number, federation)
            model, rounds = Model(module, cross_entropy), self.recipe.cases[number - 1].rounds
            for method in (m for n, m in self.cells if n == number):
                algorithm = self.recipe.algorithm(method, number)
                experiment = Experiment.of(model, federation, algorithm, Serial(), 0, rounds, 0.0, self.record)
                apart = self.recipe.init(method, number) == PER_CLIENT
                first = first_models(module, model, algorithm, 0) if apart else None
                replace(experiment, first=first).check()

    def train(self, number: int, method: str, seed: int, folder: Path, shown: str | bool) -> list[dict[str, Any]]:
        """The history of one run."""
        federation = self.recipe.federation(number, seed)
        return fit(
            self.recipe.model(number, federation, seed),
            federation,
            self.recipe.algorithm(method, number),
            rounds=self.recipe.cases[number - 1].rounds,
            seed=seed,
            engine=self.wishes.engine,
            device=self.wishes.device,
            out=folder,
            resume=self.wishes.resume,
            evaluate_every=self.wishes.evaluate_every or 1,
            init=self.recipe.init(method, number),
            record=self.record,
            precision=self.wishes.precision,
            progress=shown,
            trackers=self.live.trackers,
        ).history

    @cached_property
    def runs(self) -> list[str]:
        """The folders of all runs, in the order in which they are trained."""
        return [_name(n, m, seed) for n, m in self.cells for seed in range(self.seeds)]


def _name(number: int, method: str, seed: int) -> str:
    return f"case{number}-{method}-seed{seed}"


def run_recipe(wishes: Wishes, live: Live) -> None:
    """Trains every method of every chosen case with every seed, and prints one table."""
    plan = Plan(_trainable(load(wishes.name)), wishes, live)
    folder = _folder(plan)
    plan.check()
    live.check()
    _announce(plan)
    results: list[Compared] = []
    with interruptible(folder, wishes.out, wishes.resume, live):
        begin_several(folder, typed_command(), plan.runs)
        for number, method in plan.cells:
            results += compared(plan.read, number, method, _histories(plan, number, method, folder))
        write_json(folder / RECIPE, _saved(plan, results))
        _show(plan, results, folder)
        leave_report(folder, sys.stdout, live)


def _histories(plan: Plan, number: int, method: str, folder: Path) -> list[list[dict[str, Any]]]:
    """All seeds of one method in one case."""
    histories = []
    for seed in range(plan.seeds):
        name = _name(number, method, seed)
        title = f"case {number}, {method}, seed {seed}"
        shown = plan.live.titled(title, plan.runs.index(name) + 1, len(plan.runs))
        histories.append(plan.train(number, method, seed, folder / name, shown))
    return histories


def _trainable(recipe: Recipe) -> Recipe:
    if not recipe.methods or recipe.protocol.metric == "none":
        raise RequestError(f"{recipe.name} has nothing to train: {recipe.differs[0]}")
    return recipe


def _folder(plan: Plan) -> Path:
    wishes = plan.wishes
    if wishes.resume and wishes.out is None:
        raise RequestError("--resume needs to know which run: add --out FOLDER")
    folder = wishes.out or fresh_folder(plan.published.name)
    if folder.exists() and not wishes.resume:
        raise RequestError(f"{folder} already exists: choose another --out, or continue it with --resume")
    return folder


def _announce(plan: Plan) -> None:
    """What will be run, and what the published size would take."""
    recipe = plan.published
    numbers, methods = (list(dict.fromkeys(column)) for column in zip(*plan.cells, strict=True))
    spent = cost(recipe, numbers, methods)
    reading = plan.wishes.reading or f"our choice between {' and '.join(READINGS)} (see coterie recipe show)"
    plan.live.say(
        f"{recipe.name}, {recipe.where}: cases {len(numbers)}, methods {len(methods)}, seeds {plan.seeds}; "
        f"reading: {reading}\nat its published size: {scaled(spent.flops, 'FLOP')}, {scaled(spent.bytes, 'B')} sent, "
        f"{duration(spent.seconds)} on {SPEED_OF}"
    )


def _shortened(plan: Plan) -> list[str]:
    """What makes this another experiment, each once."""
    every = plan.wishes.evaluate_every or 1
    seldom = [f"evaluated every {every} rounds"] if every > 1 else []
    return [*shortenings(plan.read, plan.recipe, plan.cells, plan.seeds), *seldom]


def _saved(plan: Plan, results: list[Compared]) -> dict[str, Any]:
    return {
        "recipe": plan.published.name,
        "reading": plan.wishes.reading or "ours",
        "seeds": plan.seeds,
        "shortened": _shortened(plan),
        "results": [
            {
                "case": plan.published.cases[r.case - 1].label,
                "method": r.method,
                "metric": r.metric,
                "protocol": protocol(r.metric, plan.read, plan.read.entry(r.method)),
                "published": None if r.published is None else r.published.value,
                "certainty": None if r.published is None else r.published.certainty,
                "ours": r.ours,
                "difference": r.difference,
            }
            for r in results
        ],
    }


def _show(plan: Plan, results: list[Compared], folder: Path) -> None:
    """The table, what its numbers are, and whether they can be compared at all."""
    console = wide_console()
    recipe, shortened = plan.read, _shortened(plan)
    console.print(_table(recipe, results))
    for sentence in dict.fromkeys(protocol(r.metric, recipe, recipe.entry(r.method)) for r in results):
        over = f"; mean ± std over {plan.seeds} seeds" if plan.seeds > 1 else "; one seed"
        console.print(sentence + over, style="dim", markup=False)
    console.print(f"published: {MARKS}", style="dim", markup=False)
    apart = [f"{m}: {d}" for m in dict.fromkeys(r.method for r in results) if (d := recipe.entry(m).differs)]
    for sentence in (*recipe.differs, *apart):
        console.print(f"differs: {sentence}", style="dim", markup=False)
    if left_out := [metric.replace("_", " ") for metric in unmeasured(recipe, plan.cells)]:
        console.print(f"published, but not measured by a run: {', '.join(left_out)}", style="dim", markup=False)
    reading = f"reading: {plan.wishes.reading or 'our choice'}"
    if shortened:
        words = ", ".join(shortened)
        console.print(
            f"SHORTENED OR CHANGED, not comparable with the published numbers: {words}; {reading}",
            markup=False,
            soft_wrap=True,
        )
    else:
        console.print(f"the published size; {reading}; numbers and their certainty: coterie recipe show {recipe.name}")
    console.print(f"results: {folder}", markup=False)


def _table(recipe: Recipe, results: list[Compared]) -> Table:
    made = table("case", "method", "number", ">published", ">ours", ">difference")
    for r in results:
        label = recipe.cases[r.case - 1].label
        theirs = "-" if r.published is None else printed(r.published)
        made.add_row(label, r.method, r.metric.replace("_", " "), theirs, _ours(r), _signed(r.difference))
    return made


def _ours(result: Compared) -> str:
    if result.mean is None:
        return _not_reached(result) if result.metric.startswith("rounds_to") else "-"
    return _digits(result.mean) + ("" if result.spread is None else f" ±{_digits(result.spread)}")


def _not_reached(result: Compared) -> str:
    """Rounds have no mean unless all seeds reach the target.

    >>> _not_reached(Compared(1, "dfedalt", "rounds_to_80", None, [131, None, 140]))
    'reached by 2 of 3 seeds'
    """
    reached = sum(value is not None for value in result.ours)
    return f"reached by {reached} of {len(result.ours)} seeds" if reached else "not reached"


def _digits(value: float, sign: str = "") -> str:
    """Two digits behind the point, or three that count where these would be noughts.

    >>> _digits(-2.345, "+"), _digits(0.00131), _digits(0.0)
    ('-2.35', '0.00131', '0.00')
    """
    return f"{value:{sign}.2f}" if abs(value) >= 0.1 or not value else f"{value:{sign}.3g}"


def _signed(difference: float | None) -> str:
    return "-" if difference is None else _digits(difference, "+")
