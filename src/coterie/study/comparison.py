"""Several methods on the same clients, seed by seed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.custom import folder_names
from ..core.errors import UserError
from ..core.files import write_json
from ..core.schema_several import Plan
from ..measure.compare import Comparison, MethodRuns, RunData, check_target
from ..report.collect import COMPARISON
from ..track import Tracker
from ..training.prepare import Prepared, model_parts
from ..training.run import Run
from .folders import plan_of, several_runs, write_notes
from .grids import Grids
from .plan import StudyPlan
from .remarks import Remarks
from .trials import Tuning, trials_of_each, tuned_by, tuned_plan


@dataclass(frozen=True)
class ComparisonPlan:
    """Methods and seeds to be compared, checked before the first of them is trained."""

    plan: StudyPlan
    seeds: Sequence[int]
    folder: Path | None  # None: nothing is written
    target: float | None  # that rounds are counted to
    trials: Sequence[Tuning[StudyPlan]]  # of settings that are chosen first
    ready: dict[str, Prepared]  # the runs of the first seed by method, unless trials choose their settings
    remarks: str

    @classmethod
    def of(
        cls,
        plan: StudyPlan,
        seeds: int,
        folder: Path | None,
        target: float | None,
        grids: Grids | None = None,
        further: Sequence[str] = (),
    ) -> "ComparisonPlan":
        """Find every mistake first; ``grids``: settings to choose among; ``further``: remarks on the settings."""
        grids = {label: grid for label, grid in (grids or {}).items() if grid}
        if grids and folder is None:
            raise UserError("the trials of tune are kept in a folder: name one with out")
        trials = trials_of_each(plan, grids, folder) if folder is not None else []
        first, names = plan.first_seed, folder_names(list(plan.methods))
        named = zip(plan.methods, names, strict=True)
        folders = {} if folder is None else {m: folder / f"{name}-seed{first}" for m, name in named}
        ready, trials = checked_runs(plan, folders, trials)
        run = next(iter(ready.values()))
        plan = plan.with_options(evaluate_every=run.settings.evaluate_every)
        parts = {m: model_parts(run.experiment) for m, run in ready.items()}
        listed = (f"  {m}: {plan.preset_text(a)}; {parts[m]}" for m, a in plan.algorithms.items())
        said = "\n".join([plan.remark_on(run), *listed, *further, *plan.notes(first)])
        goal = check_target(target, next(iter(run.experiment.metrics.infos), None))
        kept = {m: r for m, r in ready.items() if m not in {t.method for t in trials}}
        return cls(plan, range(first, first + seeds), folder, goal, trials, kept, said)

    @property
    def runs(self) -> dict[str, tuple[str, int]]:
        """The method and the seed of every run, by the name of its folder."""
        labels = list(self.plan.methods)
        return {f"{n}-seed{s}": (m, s) for n, m in zip(folder_names(labels), labels, strict=True) for s in self.seeds}

    def train(
        self,
        output: Remarks,
        trackers: Sequence[Tracker],
        command: str | None = None,
        keep: Callable[[str, Run], object] = lambda method, run: None,
    ) -> Comparison:
        """Train the runs and return what they come to; ``keep`` gets each; ``command``: what makes them again."""
        with self._writing(command):
            plan, notes = tuned_plan(self.plan, self.trials, output, trackers)
            if self.folder is not None:
                write_notes(self.folder, notes)
            trained: dict[str, list[RunData]] = {}
            tuned = tuned_by(self.plan, self.trials)
            for number, (name, (method, seed)) in enumerate(self.runs.items(), 1):
                shown = output.titled(f"{method}, seed {seed}", number, len(self.runs))
                place = None if self.folder is None else self.folder / name
                own: dict[str, Any] = {"out": place, "progress": shown, "trackers": trackers}
                ready = self.ready.pop(method, None) if seed == plan.first_seed else None
                ready = plan.prepared(method, seed, **own) if ready is None else ready.having(**own)
                run = ready.run()
                trained.setdefault(method, []).append(replace(without_models(run), tuned=tuned.get(method)))
                keep(method, run)
            comparison = Comparison([MethodRuns(m, runs) for m, runs in trained.items()], self.target, notes)
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
            "tuned": tuned_by(self.plan, self.trials),
        }
        return several_runs(self.folder, plan, self.plan.settings.resume, command)


def checked_runs(
    plan: StudyPlan, folders: Mapping[str, Path], trials: Sequence[Tuning[StudyPlan]] = ()
) -> tuple[dict[str, Prepared], list[Tuning[StudyPlan]]]:
    """Find every mistake before the first run; return the runs of the first seed by method, and the trials, ready.

    ``folders``: of these runs, where they are written. All runs, those of trials included, are evaluated in the same
    rounds, because the best of many rounds is more than the best of few.
    """
    runs = {m: plan.prepared(m, plan.first_seed, out=folders.get(m)) for m in plan.methods}
    plan.check_taken(list(runs.values()))
    trials = [t.prepared() for t in trials]
    every = max(
        run.experiment.schedule.every for run in [*runs.values(), *(r for t in trials for r in t.ready.values())]
    )
    trials = [t.evaluated(every) for t in trials]
    for t in trials:
        t.check_begun()
    return {m: run.having(evaluate_every=every) for m, run in runs.items()}, trials


def without_models(run: Run) -> RunData:
    """Return a run without its models, because those of all runs would fill the memory."""
    return RunData(run.config, run.history, run.summary, run.client_summary)
