"""Trials of settings: trained one after another, scored on validation samples alone, written down after each."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, Protocol, Self, TypeVar

from ..algorithms.variation import builder_of, variation
from ..core.checked_json import read_json
from ..core.custom import folder_names
from ..core.errors import DamagedFileError, DivergedError, UserError
from ..core.files import write_json
from ..core.schema_several import SavedTrial, SavedTuning, Tuned
from ..measure.selection import BEST_VALIDATION, LAST, goodness
from ..report.tuning import settings_text
from ..store.folder import CHECKPOINT, RunFolder
from ..store.models import MODELS
from ..study.search import Grid, SamplerName, Search, Texts, combinations, search
from ..study.trial_watcher import EndedEarly, Watcher
from ..track import Tracker
from ..training.prepare import Prepared
from .common.options import VALIDATION, Output, TrainingOptions
from .request import RunPlan, settings_from_file
from .training.grids import check_not_in_file, listed, typed_grids

TUNING = "tune.json"


class Trainable(Protocol):
    """The plan of a command, as trials see it."""

    @property
    def options(self) -> TrainingOptions: ...

    @property
    def rounds(self) -> int: ...

    @property
    def first_seed(self) -> int: ...

    def with_options(self, **changed: Any) -> Self: ...

    def with_settings(self, typed: Sequence[str]) -> Self: ...

    def titled(self, method: str) -> str: ...

    def has(self, method: str, key: str) -> bool: ...

    def prepared(self, method: str, among: Sequence[str], seed: int, **chosen: Any) -> Prepared: ...


P = TypeVar("P", bound=Trainable)


@dataclass(frozen=True)
class Tuning(Generic[P]):
    """Trials of one method in a folder of their own."""

    plan: P
    method: str
    among: Sequence[str]  # all methods of the command
    grid: Grid
    seeds: int
    sampler: SamplerName
    trials: int | None  # at most so many; None: the whole grid
    folder: Path
    ready: dict[tuple[str, ...], Prepared] = field(default_factory=dict)  # runs of the first seed, by their settings

    @property
    def first_seed(self) -> int:
        """The seed of every trial's first training."""
        return self.plan.first_seed

    def search(self) -> Search:
        """Return the search from its beginning."""
        return search(self.sampler, self.grid, self.trials, self.first_seed)

    def prepared(self) -> Self:
        """Return the same trials with the run of the first seed of each, so that every mistake is found first."""
        every = {tuple(t.values()): self._run_of(t, self.first_seed) for t in combinations(self.grid)}
        return replace(self, ready=every)

    def evaluated(self, every: int) -> Self:
        """Return the same trials, evaluated in other rounds."""
        ready = {key: run.having(evaluate_every=every) for key, run in self.ready.items()}
        return replace(self, plan=self.plan.with_options(evaluate_every=every), ready=ready)

    @property
    def _limits(self) -> dict[str, Any]:
        return {"resume": self.plan.options.resume, "time_limit": self.plan.options.for_}

    def _run_of(self, texts: Texts, seed: int, **chosen: Any) -> Prepared:
        return self.with_settings(texts).prepared(self.method, self.among, seed, **chosen)

    def with_settings(self, texts: Texts) -> P:
        """Return the plan with these settings, as if somebody had typed them."""
        return self.plan.with_settings(self.typed(texts))

    def typed(self, texts: Texts) -> list[str]:
        """Return settings as one would type them."""
        return [f"{self.method}.{key}={text}" for key, text in texts.items()]

    def check_begun(self) -> None:
        """Refuse to go on with trials of another command; one is enough to tell, as all are alike but for the grid."""
        first = self.search().ask()
        if first is None or not self._begun()["trials"]:
            return
        config = self.ready[tuple(first.values())].config
        RunFolder(self.folder / run_name(1, self.first_seed)).check_same(config)

    def run(self, output: Output, trackers: Sequence[Tracker]) -> SavedTuning:
        """Run all trials that are left, and return what was tried."""
        chooser, found = self.search(), self._begun()
        for i, trial in enumerate(found["trials"]):
            self._tell_again(chooser, trial, i + 1, found)
        self._drop_models(len(found["trials"]))  # of a trial that was interrupted while they were removed
        while (self.trials is None or len(found["trials"]) < self.trials) and (texts := chooser.ask()) is not None:
            found["trials"].append(self._trial(texts, chooser, found, output, trackers))
            chooser.tell(trial_goodness(found["trials"][-1], found))
            write_json(self.folder / TUNING, found)
            self._drop_models(len(found["trials"]))
        return found

    def _begun(self) -> SavedTuning:
        """Return what was tried before in this folder; refuse trials of another grid."""
        fresh: SavedTuning = {
            "method": self.method,
            "grid": {key: list(values) for key, values in self.grid.items()},
            "sampler": self.sampler,
            "seeds": self.seeds,
            "first_seed": self.first_seed,
            "validation": self.plan.options.given("validation"),
            "metric": "",
            "higher_is_better": True,
            "trials": [],
        }
        if not (self.folder / TUNING).exists():
            return fresh
        saved = read_json(self.folder / TUNING, SavedTuning)
        for key in ("method", "grid", "sampler", "seeds", "first_seed", "validation"):
            if saved[key] != fresh[key]:
                raise UserError(
                    f"{self.folder} has trials with {key} {saved[key]}, not {fresh[key]}: type the same command, or "
                    "choose another --out"
                )
        return saved

    def _tell_again(self, chooser: Search, trial: SavedTrial, place: int, found: SavedTuning) -> None:
        """Bring a search to where it was after a trial."""
        if chooser.ask() != trial["settings"]:
            raise DamagedFileError(self.folder / TUNING, f"trial {place} is not the one that this search comes to")
        for k, curve in enumerate(trial["curves"]):
            for t, value in curve:
                chooser.ends(k * self.plan.rounds + int(t), goodness(value, found["higher_is_better"]))
        chooser.tell(trial_goodness(trial, found))

    def _trial(
        self, texts: Texts, chooser: Search, found: SavedTuning, output: Output, trackers: Sequence[Tracker]
    ) -> SavedTrial:
        """Train one trial, seed after seed."""
        place = len(found["trials"]) + 1
        trial: SavedTrial = {"settings": texts, "scores": [], "curves": [], "ended": "done"}
        said = f"{self.plan.titled(self.method)} {', '.join(f'{key}={text}' for key, text in texts.items())}"
        for k, seed in enumerate(range(self.first_seed, self.first_seed + self.seeds)):
            watcher = Watcher(chooser, k * self.plan.rounds, found)
            shown = output.titled(f"{said}, seed {seed}", (place - 1) * self.seeds + k + 1, self.trainings)
            try:
                where = self.folder / run_name(place, seed)
                ready = None if where.exists() or k else self.ready.pop(tuple(texts.values()), None)
                run = self._run_of(texts, seed, out=where) if ready is None else ready.having(out=where, **self._limits)
                run.having(progress=shown, trackers=[*trackers, watcher]).run()
            except (DivergedError, EndedEarly) as error:
                trial["ended"] = "diverged" if isinstance(error, DivergedError) else "ended early"
                output.say(f"{said}: {error}")
            trial["curves"].append(watcher.curve)
            if trial["ended"] != "done":
                break
            trial["scores"].append(watcher.score)
        return trial

    @property
    def trainings(self) -> int:
        """The most trainings that all trials take."""
        every = len(combinations(self.grid))
        return self.seeds * (every if self.trials is None else min(every, self.trials))

    def _drop_models(self, place: int) -> None:
        """Remove the models of a trial, which nobody deploys; its configuration and its rows stay."""
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            for part in (CHECKPOINT, MODELS):
                shutil.rmtree(self.folder / run_name(place, seed) / part, ignore_errors=True)


def trials_of_each(plan: RunPlan, methods: Sequence[str], items: Sequence[str], folder: Path) -> list[Tuning[RunPlan]]:
    """Return the trials of every method of a comparison, on the same samples and with the same seed."""
    for m in methods if items else ():
        if (typed := variation(m)).settings:
            raise UserError(f"--tune chooses settings of {typed.method}, and {m} has its own: leave one of them out")
    grids = typed_grids(items, "--tune", {m: builder_of(m) for m in methods}, plan.options.set)
    check_not_in_file(grids, "--tune", methods, plan.options)
    plan = plan.with_options(**by_validation(plan.options, plan.options.validation or VALIDATION))
    return [
        Tuning(plan, m, methods, grids[m], 1, "grid", None, folder / f"tune-{name}")
        for m, name in zip(methods, folder_names(methods), strict=True)
        if grids[m]
    ]


def by_validation(options: TrainingOptions, kept: float) -> dict[str, Any]:
    """Return the options that differ in trials: they are scored on validation samples alone."""
    return {"validation": kept, "select": BEST_VALIDATION if options.select == BEST_VALIDATION else LAST}


def tuned_plan(
    plan: RunPlan, trials: Sequence[Tuning[RunPlan]], output: Output, trackers: Sequence[Tracker]
) -> tuple[RunPlan, list[str]]:
    """Choose the settings of every method; return the plan with them, and what to say of it."""
    chosen, notes = chosen_settings(trials, output, trackers)
    return plan.with_settings([text for typed in chosen for text in typed]), notes


def chosen_settings(
    trials: Sequence[Tuning[Any]], output: Output, trackers: Sequence[Tracker]
) -> tuple[list[list[str]], list[str]]:
    """Run all trials; return the settings that each of them chose, as they are typed, and what to say of it."""
    typed, said = [], []
    for each in trials:
        found = each.run(output, trackers)
        best = found["trials"][best_trial(found)]
        typed.append(each.typed(best["settings"]))
        said.append(f"{each.plan.titled(each.method)} {settings_text(best)} (the best of {each.trainings})")
    return typed, [_said_how(trials, said)] if trials else []


def tuned_by(plan: RunPlan, trials: Sequence[Tuning[RunPlan]], methods: Sequence[str]) -> dict[str, Tuned]:
    """Return how the settings of each method were chosen: by these trials, or by those of `coterie tune` before."""
    tuned: dict[str, Tuned] = {}
    file = plan.options.settings
    if file is not None and file.tuned:
        for method, settings in settings_from_file(plan.options, methods).items():
            if settings:
                tuned[method] = {"settings": list(settings), "how": str(file.path)}
    for each in trials:
        tuned[each.method] = {"settings": list(each.grid), "how": f"best of {each.trainings} trainings"}
    return tuned


def _said_how(trials: Sequence[Tuning[Any]], said: Sequence[str]) -> str:
    """Say among which values settings were chosen, whether these were the same for all methods, and the choices."""
    plan, grids = trials[0].plan, {t.method: t.grid for t in trials}
    tried = {(key, listed(values)) for grid in grids.values() for key, values in grid.items()}
    having = [(m, key, values) for m in trials[0].among for key, values in tried if plan.has(m, key)]
    if all(listed(grids.get(m, {}).get(key, ())) == values for m, key, values in having):
        every = "; ".join(dict.fromkeys(f"{key}={listed(v)}" for t in trials for key, v in t.grid.items()))
        how = f"Every method was tuned alike, one training for each of {every} as far as it has these settings"
    else:
        own = (f"{m} {'; '.join(f'{key}={listed(v)}' for key, v in grid.items())}" for m, grid in grids.items())
        how = f"Methods were not tuned alike, with one training for each of their own values, {', '.join(own)}"
    kept = plan.options.given("validation")
    return (
        f"{how}, chosen on validation samples ({kept:g} of every client's training samples, seed {plan.first_seed}), "
        f"never on test samples: {'; '.join(said)}."
    )


def run_name(place: int, seed: int) -> str:
    """Return the folder of one training of a trial."""
    return f"trial{place:03d}-seed{seed}"


def trial_score(trial: SavedTrial) -> float | None:
    """Return the mean over the seeds; None where a training has no score."""
    known = [score for score in trial["scores"] if score is not None]
    return fmean(known) if trial["ended"] == "done" and len(known) == len(trial["scores"]) else None


def trial_goodness(trial: SavedTrial, found: SavedTuning) -> float | None:
    """Return the score of a trial as a search takes it, higher is better."""
    score = trial_score(trial)
    return None if score is None else goodness(score, found["higher_is_better"])


def best_trial(found: SavedTuning) -> int:
    """Return the place of the best trial, the first of equal ones; refuse where none has a score."""
    scores = {i: good for i, t in enumerate(found["trials"]) if (good := trial_goodness(t, found)) is not None}
    if not scores:
        raise UserError(
            f"no trial of {found['method']} has a score on validation samples: choose lower rates, or another metric"
        )
    return max(scores, key=lambda i: scores[i])
