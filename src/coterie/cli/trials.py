"""Trials of settings: trained one after another, scored on validation samples alone, written down after each."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from .. import algorithms
from ..algorithms.settings import settings_of
from ..core.checked_json import read_json
from ..core.custom import folder_names
from ..core.errors import DamagedFileError, DivergedError, UserError, no_option
from ..core.files import write_json
from ..core.schema_several import SavedTrial, SavedTuning, Tuned
from ..core.spec import given_twice
from ..measure.selection import BEST_VALIDATION, LAST, goodness
from ..report.tuning import settings_text
from ..store.folder import CHECKPOINT, MODELS, RunFolder
from ..track import Tracker
from ..training.run import Run
from ..training.search import Grid, SamplerName, Search, Texts, combinations, search
from .options import VALIDATION, Output, RunOptions
from .request import RunPlan, settings_from_file
from .trial_watcher import EndedEarly, Watcher, known_config
from .variations import variation

TUNING = "tune.json"
TrainSeed = Callable[[RunPlan, str, Sequence[str], int, Path | None, bool | str, Sequence[Tracker]], Run]


def typed_grid(items: Sequence[str], option: str, methods: Sequence[str], options: RunOptions) -> dict[str, list[str]]:
    """Return the values to try of every setting; refuse what no method has, and what is set already.

    Values that have commas themselves are separated by semicolons, as in ``epochs=1,2;3``.
    """
    found: dict[str, list[str]] = {}
    known = dict.fromkeys(k for m in methods for k in settings_of(algorithms.builder(m)))
    for item in items:
        key, equals, text = (part.strip() for part in item.partition("="))
        values = [value.strip() for value in text.split(";" if ";" in text else ",") if value.strip()]
        if not equals or not values:
            raise UserError(
                f"{option} {item} has no values: write {option} KEY=VALUE,VALUE, as in {option} lr=0.01,0.1"
            )
        if key not in known:
            raise no_option(f"method {' or '.join(methods)}", key, known)
        if key in found:
            raise given_twice(option, key, listed(found[key]), listed(values))
        if len(set(values)) < len(values):
            raise UserError(f"{option} {item} has a value twice: leave one out")
        if any(typed.partition("=")[0].strip().rpartition(".")[2] == key for typed in options.set):
            raise UserError(f"--set and {option} both have {key}: leave one of them out")
        if options.settings and any(key in own for own in settings_from_file(options, methods).values()):
            raise UserError(f"{options.settings.path} and {option} both have {key}: leave it out of one of them")
        found[key] = values
    return found


def listed(values: Sequence[str]) -> str:
    """Return values as they are typed.

    >>> listed(["0.1", "0.2"]), listed(["1,2", "3"]), listed(["1,2"])
    ('0.1,0.2', '1,2;3', '1,2;')
    """
    if not any("," in value for value in values):
        return ",".join(values)
    return ";".join(values) if len(values) > 1 else f"{values[0]};"


@dataclass(frozen=True)
class Tuning:
    """Trials of one method in a folder of their own."""

    plan: RunPlan
    method: str
    among: Sequence[str]  # all methods of the command
    grid: Grid
    seeds: int
    sampler: SamplerName
    trials: int | None  # at most so many; None: the whole grid
    folder: Path
    train: TrainSeed

    @property
    def first_seed(self) -> int:
        """The seed of every trial's first training."""
        return int(self.plan.options.given("seed"))

    def search(self) -> Search:
        """Return the search from its beginning."""
        return search(self.sampler, self.grid, self.trials, self.first_seed)

    def evaluated(self, every: int | None) -> "Tuning":
        """Return the same trials, evaluated in other rounds."""
        return replace(self, plan=replace(self.plan, options=replace(self.plan.options, evaluate_every=every)))

    def with_settings(self, texts: Texts) -> RunPlan:
        """Return the plan with these settings, as if somebody had typed them."""
        options = self.plan.options
        return replace(self.plan, options=replace(options, set=[*options.set, *self.typed(texts)]))

    def typed(self, texts: Texts) -> list[str]:
        """Return settings as one would type them."""
        return [f"{self.method}.{key}={text}" for key, text in texts.items()]

    def check_begun(self) -> None:
        """Refuse to go on with trials of another command; one is enough to tell, as all are alike but for the grid."""
        first = self.search().ask()
        if first is None or not self._begun()["trials"]:
            return
        plan = self.with_settings(first)
        alone = replace(plan, options=replace(plan.options, resume=False, for_=None))  # without a folder to go on in
        seed = self.first_seed
        config = known_config(lambda told: self.train(alone, self.method, self.among, seed, None, False, told))
        RunFolder(self.folder / run_name(1, seed)).check_same(config)

    def run(self, output: Output, trackers: Sequence[Tracker]) -> SavedTuning:
        """Run all trials that are left, and return what was tried."""
        chooser, found = self.search(), self._begun()
        for i, trial in enumerate(found["trials"]):
            self._tell_again(chooser, trial, i + 1, found)
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
        place, plan = len(found["trials"]) + 1, self.with_settings(texts)
        trial: SavedTrial = {"settings": texts, "scores": [], "curves": [], "ended": "done"}
        said = f"{self.method} {', '.join(f'{key}={text}' for key, text in texts.items())}"
        for k, seed in enumerate(range(self.first_seed, self.first_seed + self.seeds)):
            watcher = Watcher(chooser, k * self.plan.rounds, found)
            shown = output.titled(f"{said}, seed {seed}", (place - 1) * self.seeds + k + 1, self.trainings)
            try:
                where = self.folder / run_name(place, seed)
                self.train(plan, self.method, self.among, seed, where, shown, [*trackers, watcher])
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


def trials_of_each(
    plan: RunPlan, methods: Sequence[str], items: Sequence[str], folder: Path, train: TrainSeed
) -> list[Tuning]:
    """Return the trials of every method of a comparison: the same values, samples and seed for all of them."""
    options = plan.options
    for m in methods if items else ():
        if (typed := variation(m)).settings:
            raise UserError(f"--tune chooses settings of {typed.method}, and {m} has its own: leave one of them out")
    grid = typed_grid(items, "--tune", methods, options)
    if not grid:
        return []
    kept, rule = options.validation or VALIDATION, BEST_VALIDATION if options.select == BEST_VALIDATION else LAST
    plan = replace(plan, options=replace(options, validation=kept, select=rule))
    found = []
    for m, name in zip(methods, folder_names(methods), strict=True):
        own = {key: values for key, values in grid.items() if key in settings_of(algorithms.builder(m))}
        if own:
            found.append(Tuning(plan, m, methods, own, 1, "grid", None, folder / f"tune-{name}", train))
    return found


def tuned_plan(
    plan: RunPlan, trials: Sequence[Tuning], output: Output, trackers: Sequence[Tracker]
) -> tuple[RunPlan, list[str]]:
    """Choose the settings of every method; return the plan with them, and what to say of it."""
    typed, said = list(plan.options.set), []
    for each in trials:
        found = each.run(output, trackers)
        best = found["trials"][best_trial(found)]
        typed += each.typed(best["settings"])
        said.append(f"{each.method} {settings_text(best)} (the best of {each.trainings})")
    notes = [_said_alike(trials, said)] if trials else []
    return replace(plan, options=replace(plan.options, set=typed)), notes


def tuned_by(plan: RunPlan, trials: Sequence[Tuning], methods: Sequence[str]) -> dict[str, Tuned]:
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


def _said_alike(trials: Sequence[Tuning], said: Sequence[str]) -> str:
    """Say that all methods had the same chance, and what each of them chose of how many trainings."""
    grid = {key: listed(values) for t in trials for key, values in t.grid.items()}
    kept, seed = trials[0].plan.options.given("validation"), trials[0].first_seed
    return (
        f"Every method was tuned alike, one training for each of {'; '.join(f'{k}={v}' for k, v in grid.items())} as "
        f"far as it has these settings, chosen on validation samples ({kept:g} of every client's training samples, "
        f"seed {seed}), never on test samples: {'; '.join(said)}."
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
