"""``coterie.tune``, and what it shares with ``coterie tune``: settings of a method, chosen on validation samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Annotated, Any

from ..algorithms.variation import variation
from ..core.annotations import Example
from ..core.arguments import accept, checked
from ..core.custom import display_name
from ..core.errors import UserError
from ..core.extras import frames, warn_without_frames
from ..core.schema_several import SavedTuning
from ..core.settings_file import TUNED, write_settings
from ..data import Federation
from ..measure.selection import BEST_VALIDATION, LAST
from ..report.library import compressed_library
from ..report.tuning import write_tuning
from ..track import Tracker
from ..training.prepare import begun_folder, takes_options
from .folders import check_free, plan_of, several_runs
from .grids import ValueGrid, grids_of, handed_values
from .handed import by_method, planned
from .plan import StudyPlan
from .presets import DATA
from .remarks import Remarks
from .search import SamplerName
from .settings import TuneSettings
from .trials import Tuning, best_trial, run_name, trial_score

if TYPE_CHECKING:
    import pandas

SETTINGS, PAGE = "settings.toml", "tune.html"


@dataclass(frozen=True, eq=False)
class TuneResult:
    """The settings that were chosen for a method, and every trial."""

    settings: Mapping[str, Any]  # all that were chosen, those that were the same in all trials included
    saved: SavedTuning  # what tune.json has
    grid: ValueGrid
    folder: Path | None  # where all of it was written, if anywhere
    page: Path | None = None
    problem: str = ""  # why there is no page

    def __repr__(self) -> str:
        trials = len(self.saved["trials"])
        chosen = ", ".join(f"{key}={text}" for key, text in self._best["settings"].items())
        return f"TuneResult({self.saved['method']}: {chosen}, the best of {trials} trials)"

    @property
    def _best(self) -> Any:
        return self.saved["trials"][self.place]

    @property
    def place(self) -> int:
        """Which trial was chosen, counted from 0."""
        return best_trial(self.saved)

    @property
    def best(self) -> dict[str, Any]:
        """The values that were chosen."""
        return {key: self.grid[key][text] for key, text in self._best["settings"].items()}

    @property
    def score(self) -> float:
        """What they came to on validation samples, as a mean over the seeds."""
        return float(self.rows()[self.place]["score"])

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per trial: its number, its settings, its score, the spread of the seeds, its end."""
        found = []
        for number, trial in enumerate(self.saved["trials"], 1):
            values = {key: self.grid[key][text] for key, text in trial["settings"].items()}
            scores, score = [s for s in trial["scores"] if s is not None], trial_score(trial)
            spread = stdev(scores) if score is not None and len(scores) > 1 else None
            found.append({"trial": number, **values, "score": score, "spread": spread, "end": trial["ended"]})
        return found

    def frame(self) -> "pandas.DataFrame":
        """Return ``rows()`` as a DataFrame of pandas (coterie[tables]), by trial; what has no value is NaN."""
        pandas = frames("found.rows(), a list of dictionaries")
        return pandas.DataFrame(self.rows()).set_index("trial").astype({"score": float, "spread": float})


@takes_options(TuneSettings)
@checked("function")
def tune(
    method: str,
    grid: Annotated[Mapping[str, Sequence[Any]], Example('{"lr": [0.01, 0.1]}')],
    data: Annotated[str | Federation, Example('"digits" or coterie.data.federate("digits")')] = DATA,
    **options: Any,
) -> TuneResult:
    """Choose settings of a method on validation samples, and return them with every trial.

    It is what ``coterie tune`` does: a part of every client's training samples is kept out of training and decides, and
    no test sample is looked at. What is not given is the preset of the data. With ``out`` the folder has what the
    command writes: ``tune.json``, the settings as a file for ``--settings``, a page, and the rows of every trial.

    Args:
        method: The name of a method, or ``module:function`` of your own.
        grid: The values of every setting that is tried.
        data: A source as it is typed (see ``coterie.data.federate``), or a federation.
        {options}

    >>> import coterie as ct
    >>> found = ct.tune("fedavg", {"lr": [1e-6, 0.1]}, "synthetic:size=200", clients=3, rounds=1, progress=False)
    >>> found
    TuneResult(fedavg: lr=0.1, the best of 2 trials)
    >>> found.best, list(found.frame()["end"])
    ({'lr': 0.1}, ['done', 'done'])
    """
    settings = TuneSettings(**options)
    begun_folder(settings)  # refuses what needs a folder
    if typed := variation(method).settings:
        key = typed[0].partition("=")[0]
        raise UserError(f"tune tries settings of {method}: give those that stay as settings={{{key!r}: ...}}")
    (named,) = planned({display_name(method): method}, settings.settings)
    tried = {k: accept("function tune", f"grid[{k!r}]", v, list | tuple) for k, v in grid.items()}
    items = [(*by_method(key), handed_values(f"grid[{key!r}]", values)) for key, values in tried.items()]
    fixed = {by_method(key) for key in settings.settings or {}}
    (values,) = grids_of(items, {named.label: named.builder}, "grid", fixed).values()
    out = settings.folder
    if out is not None and not settings.resume:
        check_free(out)
    plan = StudyPlan.of([named], data, settings)
    tuning = tuning_of(plan, values, settings.seeds, settings.budget, settings.sampler, out)
    output = Remarks(quiet=not settings.progress)
    output.say(remark_on(tuning))
    warn_without_frames("found.rows() has what found.frame() would have")
    return run_trials(tuning, output, settings.trackers)


def tuning_of(
    plan: StudyPlan, grid: ValueGrid, seeds: int, budget: int | None, sampler: SamplerName, folder: Path | None
) -> Tuning[StudyPlan]:
    """Return the trials of a plan's only method; find every mistake before the first of them."""
    (label,) = plan.methods
    if not plan.validation:
        raise UserError("tune chooses on validation samples, and --validation 0 keeps none: leave it out")
    if plan.settings.select not in (LAST, BEST_VALIDATION):
        raise UserError(
            f"tune chooses one round for all by validation samples: leave --select {plan.settings.select} out"
        )
    if not grid:
        raise UserError("there is nothing to try: add --grid KEY=VALUE,VALUE, as in --grid lr=0.01,0.03,0.1")
    if budget is not None and budget < seeds:
        raise UserError(f"--budget {budget} is less than one trial of {seeds} seeds: raise it to {seeds} or more")
    trials = None if budget is None else budget // seeds
    tuning = Tuning(plan, label, label, grid, seeds, sampler, trials=trials, folder=folder)
    tuning.search()  # refuses a budget that does not fit
    tuning = tuning.prepared()
    plan.check_taken(list(tuning.ready.values()))
    tuning = tuning.evaluated(max(run.experiment.schedule.every for run in tuning.ready.values()))
    tuning.check_begun()
    return tuning


def run_trials(
    tuning: Tuning[StudyPlan], output: Remarks, trackers: Sequence[Tracker], command: str | None = None, by: str = ""
) -> TuneResult:
    """Run all trials that are left, and write what they come to.

    ``command``: what makes the folder again; ``by``: what the file of settings says of its origin.
    """
    if tuning.folder is None:
        found = tuning.run(output, trackers)
        return TuneResult(_chosen(tuning, found), found, tuning.grid, None)
    trials, seeds = range(1, tuning.trainings // tuning.seeds + 1), range(tuning.seeds)
    names = [run_name(k, tuning.first_seed + s) for k in trials for s in seeds]
    with several_runs(tuning.folder, plan_of(names), tuning.plan.settings.resume, command):
        found = tuning.run(output, trackers)
        result = TuneResult(_chosen(tuning, found), found, tuning.grid, tuning.folder)
        score = spread_text(result.rows()[result.place])
        remarks = [f"{TUNED} {len(found['trials'])} trials: {score} {metric_text(found)}", protocol_text(tuning), by]
        write_settings(tuning.folder / SETTINGS, {found["method"]: result.settings}, list(filter(None, remarks)))
        return _with_page(result, tuning.folder / PAGE)


def _with_page(result: TuneResult, path: Path) -> TuneResult:
    try:
        compressed_library()
        page = write_tuning(result.saved, result.place, path)
    except UserError as error:
        return replace(result, problem=str(error))
    return replace(result, page=page)


def _chosen(tuning: Tuning[StudyPlan], found: SavedTuning) -> Mapping[str, Any]:
    """Return all settings that were chosen for the method."""
    best = found["trials"][best_trial(found)]
    return tuning.with_settings(best["settings"]).methods[tuning.method].chosen


def remark_on(tuning: Tuning[StudyPlan]) -> str:
    """Return what is going to be tried on what, for the person to see before it begins."""
    trials = f"{len(tuning.ready)} settings, at most {tuning.trainings} trainings, {protocol_text(tuning)}"
    return f"{tuning.method}, {trials}\n{tuning.plan.remark_on(next(iter(tuning.ready.values())))}"


def protocol_text(tuning: Tuning[StudyPlan]) -> str:
    """Say what decides."""
    seeds = f"the mean of {tuning.seeds} seeds" if tuning.seeds > 1 else f"seed {tuning.first_seed}"
    kept = f"{tuning.plan.validation:g} of every client's training samples"
    return f"chosen on validation samples ({kept}, {seeds}), never on test samples"


def metric_text(found: SavedTuning) -> str:
    """Say what the scores are."""
    better = "higher" if found["higher_is_better"] else "lower"
    return f"{found['metric']} on validation samples, mean over the clients ({better} is better)"


def spread_text(row: Mapping[str, Any]) -> str:
    """Return the score of a trial with the spread of its seeds."""
    if row["score"] is None:
        return "-"
    return f"{row['score']:.4g}" + ("" if row["spread"] is None else f" ±{row['spread']:.2g}")
