"""Several methods on the same clients, seed by seed: ``coterie compare``, and ``coterie.compare`` of Python."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...algorithms.variation import variation
from ...core.custom import folder_name, folder_names
from ...core.errors import UserError
from ...core.files import write_json
from ...core.schema_several import Plan
from ...measure.compare import Comparison, MethodRuns, RunData, check_target
from ...report.collect import COMPARISON
from ...track import Tracker
from ...training.model_parts import model_parts
from ...training.prepare import Prepared
from ...training.run import Run
from ..common.interrupted import interruptible
from ..common.options import Output, RunOptions
from ..common.results import TABLE, TableStyle, show_comparison
from ..request import RunPlan, check_settings
from ..results.report import leave_report
from ..several import folder_of_several, plan_of, several_runs, typed_command, write_notes
from ..trials import Tuning, trials_of_each, tuned_by, tuned_plan
from .run import checked_runs, said_before, without_models


@dataclass(frozen=True)
class ComparisonPlan:
    """Methods and seeds to be compared, checked before the first of them is trained."""

    plan: RunPlan
    methods: Sequence[str]  # as they are typed, which is also what the tables call them
    seeds: Sequence[int]
    folder: Path | None  # None: nothing is written
    target: float | None  # that rounds are counted to
    trials: Sequence[Tuning[RunPlan]]  # of settings that are chosen first
    ready: dict[str, Prepared]  # the runs of the first seed by method, unless trials choose their settings
    remarks: str

    @classmethod
    def of(
        cls,
        plan: RunPlan,
        methods: Sequence[str],
        seeds: int,
        folder: Path | None,
        target: float | None,
        tune: Sequence[str] = (),
    ) -> "ComparisonPlan":
        """Find every mistake first; ``tune``: the values of settings to choose among."""
        if len(set(methods)) != len(methods):
            raise UserError(f"a method is named twice: name each once, or with other settings, as {methods[0]}@lr=0.1")
        if tune and folder is None:
            raise UserError("the trials of tune are kept in a folder: name one with out")
        trials = trials_of_each(plan, methods, tune, folder) if tune and folder is not None else []
        first, names = plan.first_seed, zip(methods, folder_names(methods), strict=True)
        chosen = [plan.algorithm(m, methods) for m in methods]
        plan.check_different(methods, chosen)
        folders = {} if folder is None else {m: folder / f"{name}-seed{first}" for m, name in names}
        ready, trials = checked_runs(plan, methods, folders, trials)
        run = ready[methods[0]]
        plan = plan.with_options(evaluate_every=run.settings.evaluate_every)
        parts = (model_parts(ready[method].experiment) for method in methods)
        each = zip(methods, chosen, parts, strict=True)
        listed = (f"  {method}: {plan.preset_text(a)}; {part}" for method, a, part in each)
        said = "\n".join([said_before(plan, methods, run), *listed, *plan.file_text(methods), *plan.notes(first)])
        goal = check_target(target, next(iter(run.experiment.metrics.infos), None))
        kept = {m: r for m, r in ready.items() if m not in {t.method for t in trials}}
        return cls(plan, methods, range(first, first + seeds), folder, goal, trials, kept, said)

    @property
    def runs(self) -> dict[str, tuple[str, int]]:
        """The method and the seed of every run, by the name of its folder."""
        named = zip(folder_names(self.methods), self.methods, strict=True)
        return {f"{name}-seed{s}": (m, s) for name, m in named for s in self.seeds}

    def train(
        self,
        output: Output,
        trackers: Sequence[Tracker],
        command: str | None = None,
        keep: Callable[[str, Run], object] = lambda method, run: None,
    ) -> Comparison:
        """Train the runs and return what they come to; ``keep`` is told each; ``command``: what makes them again."""
        with self._writing(command):
            plan, notes = tuned_plan(self.plan, self.trials, output, trackers)
            if self.folder is not None:
                write_notes(self.folder, notes)
            trained: dict[str, list[RunData]] = {}
            tuned = tuned_by(self.plan, self.trials, self.methods)
            for number, (name, (method, seed)) in enumerate(self.runs.items(), 1):
                shown = output.titled(f"{method}, seed {seed}", number, len(self.runs))
                place = None if self.folder is None else self.folder / name
                told: dict[str, Any] = {"out": place, "progress": shown, "trackers": trackers}
                ready = self.ready.pop(method, None) if seed == plan.first_seed else None
                ready = plan.prepared(method, self.methods, seed, **told) if ready is None else ready.having(**told)
                run = ready.run()
                trained.setdefault(method, []).append(replace(without_models(run), tuned=tuned.get(method)))
                keep(method, run)
            comparison = Comparison([MethodRuns(m, trained[m]) for m in self.methods], self.target, notes)
            if self.folder is not None:
                write_json(self.folder / COMPARISON, comparison.saved)
            return comparison

    def _writing(self, command: str | None) -> AbstractContextManager[None]:
        """Hold the folder, if there is one, and say in it what there will be."""
        if self.folder is None:
            return nullcontext()
        plan: Plan = {
            **plan_of(list(self.runs), self.target),
            "labels": {name: method for name, (method, _) in self.runs.items()},
            "tuned": tuned_by(self.plan, self.trials, self.methods),
        }
        return several_runs(self.folder, plan, self.plan.options.resume, command)


def compare_methods(
    methods: Sequence[str],
    options: RunOptions,
    seeds: int,
    style: TableStyle,
    output: Output,
    tune: Sequence[str] = (),
) -> None:
    """Train all methods on the same clients, seed by seed, and print one table; ``tune``: what is chosen before."""
    methods = [variation(text).typed for text in methods]
    check_settings(methods, options)
    plan = RunPlan.of(options)
    folder = folder_of_several(options, "compare-" + folder_name(plan.source.partition(":")[0]), "comparison")
    asked = ComparisonPlan.of(plan, methods, seeds, folder, style.target, tune)
    trackers = output.trackers()
    output.say(asked.remarks)
    with interruptible(folder, options, output):
        show_comparison(asked.train(output, trackers, typed_command()), folder, style.format)
        leave_report(folder, sys.stdout if style.format == TABLE else sys.stderr, output, options.data_dir)
