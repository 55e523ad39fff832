"""Trials of settings: trained one after another, scored on validation samples alone, written down after each."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, Protocol, Self, TypeVar

from ..core.checked_json import read_json
from ..core.custom import folder_names
from ..core.errors import DamagedFileError, DivergedError, UserError
from ..core.files import write_json
from ..core.schema_several import SavedTrial, SavedTuning, Tuned
from ..measure.selection import BEST_VALIDATION, LAST, goodness
from ..report.tuning import settings_text
from ..store.folder import CHECKPOINT, RunFolder
from ..store.models import MODELS
from ..track import Tracker
from ..training.prepare import Prepared
from .grids import Grids, ValueGrid, listed
from .plan import StudyPlan
from .presets import VALIDATION
from .remarks import Remarks
from .search import Grid, SamplerName, Search, Texts, combinations, search
from .trial_watcher import EndedEarly, Watcher

TUNING = "tune.json"


class Trainable(Protocol):
    """A plan, as trials see it."""

    @property
    def rounds(self) -> int: ...

    @property
    def first_seed(self) -> int: ...

    @property
    def validation(self) -> float: ...

    @property
    def limits(self) -> Mapping[str, Any]: ...

    @property
    def known_settings(self) -> Mapping[str, Collection[str]]: ...

    def with_options(self, **changed: Any) -> Self: ...

    def with_settings(self, label: str, values: Mapping[str, Any]) -> Self: ...

    def prepared(self, label: str, seed: int, **chosen: Any) -> Prepared: ...


P = TypeVar("P", bound=Trainable)


@dataclass(frozen=True)
class Tuning(Generic[P]):
    """Trials of one method, in a folder of their own if there is one."""

    plan: P
    method: str  # what the plan calls it
    title: str  # what remarks call it
    grid: ValueGrid
    seeds: int
    sampler: SamplerName
    trials: int | None  # at most so many; None: the whole grid
    folder: Path | None
    ready: dict[tuple[str, ...], Prepared] = field(default_factory=dict)  # runs of the first seed, by their settings

    @property
    def first_seed(self) -> int:
        """The seed of every trial's first training."""
        return self.plan.first_seed

    def search(self) -> Search:
        """Return the search from its beginning."""
        return search(self.sampler, self.texts, self.trials, self.first_seed)

    @property
    def texts(self) -> Grid:
        """The grid as it is written down."""
        return {key: list(values) for key, values in self.grid.items()}

    def prepared(self) -> Self:
        """Return the same trials with the run of the first seed of each, so that every mistake is found first."""
        every = {tuple(t.values()): self._run_of(t, self.first_seed) for t in combinations(self.texts)}
        return replace(self, ready=every)

    def evaluated(self, every: int) -> Self:
        """Return the same trials, evaluated in other rounds."""
        ready = {key: run.having(evaluate_every=every) for key, run in self.ready.items()}
        return replace(self, plan=self.plan.with_options(evaluate_every=every), ready=ready)

    def _run_of(self, texts: Texts, seed: int, **chosen: Any) -> Prepared:
        return self.with_settings(texts).prepared(self.method, seed, **chosen)

    def with_settings(self, texts: Texts) -> P:
        """Return the plan with the settings of a trial."""
        return self.plan.with_settings(self.method, self.values(texts))

    def values(self, texts: Texts) -> dict[str, Any]:
        """Return the settings of a trial, which are written down as texts."""
        return {key: self.grid[key][text] for key, text in texts.items()}

    def check_begun(self) -> None:
        """Refuse to go on with trials of another command; one is enough to tell, as all are alike but for the grid."""
        first = self.search().ask()
        if self.folder is None or first is None or not self._begun()["trials"]:
            return
        config = self.ready[tuple(first.values())].config
        RunFolder(self.folder / run_name(1, self.first_seed)).check_same(config)

    def run(self, output: Remarks, trackers: Sequence[Tracker]) -> SavedTuning:
        """Run all trials that are left, and return what was tried."""
        chooser, found = self.search(), self._begun()
        for i, trial in enumerate(found["trials"]):
            self._tell_again(chooser, trial, i + 1, found)
        self._drop_models(len(found["trials"]))  # of a trial that was interrupted while they were removed
        while (self.trials is None or len(found["trials"]) < self.trials) and (texts := chooser.ask()) is not None:
            found["trials"].append(self._trial(texts, chooser, found, output, trackers))
            chooser.tell(trial_goodness(found["trials"][-1], found))
            if self.folder is not None:
                write_json(self.folder / TUNING, found)
            self._drop_models(len(found["trials"]))
        return found

    def _begun(self) -> SavedTuning:
        """Return what was tried before in this folder; refuse trials of another grid."""
        fresh: SavedTuning = {
            "method": self.method,
            "grid": {key: list(texts) for key, texts in self.texts.items()},
            "sampler": self.sampler,
            "seeds": self.seeds,
            "first_seed": self.first_seed,
            "validation": self.plan.validation,
            "metric": "",
            "higher_is_better": True,
            "trials": [],
        }
        if self.folder is None or not (self.folder / TUNING).exists():
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
        if chooser.ask() != trial["settings"] and self.folder is not None:
            raise DamagedFileError(self.folder / TUNING, f"trial {place} is not the one that this search comes to")
        for k, curve in enumerate(trial["curves"]):
            for t, value in curve:
                chooser.ends(k * self.plan.rounds + int(t), goodness(value, found["higher_is_better"]))
        chooser.tell(trial_goodness(trial, found))

    def _trial(
        self, texts: Texts, chooser: Search, found: SavedTuning, output: Remarks, trackers: Sequence[Tracker]
    ) -> SavedTrial:
        """Train one trial, seed after seed."""
        place = len(found["trials"]) + 1
        trial: SavedTrial = {"settings": texts, "scores": [], "curves": [], "ended": "done"}
        said = f"{self.title} {', '.join(f'{key}={text}' for key, text in texts.items())}"
        for k, seed in enumerate(range(self.first_seed, self.first_seed + self.seeds)):
            watcher = Watcher(chooser, k * self.plan.rounds, found)
            shown = output.titled(f"{said}, seed {seed}", (place - 1) * self.seeds + k + 1, self.trainings)
            try:
                out = None if self.folder is None else self.folder / run_name(place, seed)
                begun = out is not None and out.exists()
                ready = None if begun or k else self.ready.pop(tuple(texts.values()), None)
                limits = {} if out is None else self.plan.limits
                run = self._run_of(texts, seed, out=out) if ready is None else ready.having(out=out, **limits)
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
        every = len(combinations(self.texts))
        return self.seeds * (every if self.trials is None else min(every, self.trials))

    def _drop_models(self, place: int) -> None:
        """Remove the models of a trial, which are not deployed; its configuration and its rows stay."""
        if self.folder is None:
            return
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            for part in (CHECKPOINT, MODELS):
                shutil.rmtree(self.folder / run_name(place, seed) / part, ignore_errors=True)


def trials_of_each(plan: StudyPlan, grids: Grids, folder: Path) -> list[Tuning[StudyPlan]]:
    """Return the trials of every method of a comparison, on the same samples and with the same seed."""
    plan = plan.with_options(**by_validation(plan.settings.select, plan.validation or VALIDATION))
    return [
        Tuning(plan, m, m, grids[m], seeds=1, sampler="grid", trials=None, folder=folder / f"tune-{name}")
        for m, name in zip(plan.methods, folder_names(list(plan.methods)), strict=True)
        if grids.get(m)
    ]


def by_validation(select: str | None, kept: float) -> dict[str, Any]:
    """Return the options that differ in trials: they are scored on validation samples alone."""
    return {"validation": kept, "select": BEST_VALIDATION if select == BEST_VALIDATION else LAST}


def tuned_plan(
    plan: StudyPlan, trials: Sequence[Tuning[StudyPlan]], output: Remarks, trackers: Sequence[Tracker]
) -> tuple[StudyPlan, list[str]]:
    """Choose the settings of every method; return the plan with them, and what to say of it."""
    chosen, notes = chosen_settings(trials, output, trackers)
    for tuning, values in zip(trials, chosen, strict=True):
        plan = plan.with_settings(tuning.method, values)
    return plan, notes


def chosen_settings(
    trials: Sequence[Tuning[Any]], output: Remarks, trackers: Sequence[Tracker]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run all trials; return the settings that each of them chose, and what to say of it."""
    chosen, said = [], []
    for tuning in trials:
        found = tuning.run(output, trackers)
        best = found["trials"][best_trial(found)]
        chosen.append(tuning.values(best["settings"]))
        said.append(f"{tuning.title} {settings_text(best)} (the best of {tuning.trainings})")
    return chosen, [_said_how(trials, said)] if trials else []


def tuned_by(plan: StudyPlan, trials: Sequence[Tuning[StudyPlan]]) -> dict[str, Tuned]:
    """Return how the settings of each method were chosen: by these trials, or by those of `coterie tune` before."""
    before = {label: method.tuned for label, method in plan.methods.items() if method.tuned is not None}
    here: dict[str, Tuned] = {
        t.method: {"settings": list(t.grid), "how": f"best of {t.trainings} trainings"} for t in trials
    }
    return before | here


def _said_how(trials: Sequence[Tuning[Any]], said: Sequence[str]) -> str:
    """Say among which values settings were chosen, whether these were the same for all methods, and the choices."""
    plan, grids = trials[0].plan, {t.method: t.texts for t in trials}
    tried = {(key, listed(values)) for grid in grids.values() for key, values in grid.items()}
    having = [(m, key, values) for m, known in plan.known_settings.items() for key, values in tried if key in known]
    if all(listed(grids.get(m, {}).get(key, ())) == values for m, key, values in having):
        every = "; ".join(dict.fromkeys(f"{key}={listed(v)}" for t in trials for key, v in t.texts.items()))
        how = f"Every method was tuned alike, one training for each of {every} as far as it has these settings"
    else:
        own = (f"{m} {'; '.join(f'{key}={listed(v)}' for key, v in grid.items())}" for m, grid in grids.items())
        how = f"Methods were not tuned alike, with one training for each of their own values, {', '.join(own)}"
    kept = f"{plan.validation:g} of every client's training samples"
    return (
        f"{how}, chosen on validation samples ({kept}, seed {plan.first_seed}), "
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
