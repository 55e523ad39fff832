"""The files of a folder of several runs, as plain data: a comparison, or the runs of a recipe."""

from typing import Literal, NotRequired, TypedDict

from .annotations import Count, Fraction, PositiveInt
from .schema import FileName, Labels, Summary


class Tuned(TypedDict):
    """How the settings of a method were chosen, where trials chose them."""

    settings: list[str]  # their names
    how: str  # as in "best of 3 trainings"


class Plan(TypedDict):
    """plan.json: what a comparison or a recipe is going to run."""

    runs: list[FileName]
    target: float | None  # that rounds are counted to, in the unit of the metric; None: 80 % where it is shown in %
    notes: NotRequired[list[str]]  # what is said beside the results
    labels: NotRequired[dict[str, str]]  # by run folder: what its method is called, as it was typed
    tuned: NotRequired[dict[str, Tuned]]  # by label; a method that is not here was not tuned


class SiteVerdict(TypedDict):
    """The best method against another at one client, by its own test samples, where clients are few."""

    against: str
    client: Count
    name: str
    verdict: Literal["better", "worse", "unclear"]
    difference: float  # in the metric's unit, mean over the seeds; above 0 the best method is better
    low: float  # the interval of 95 %, by drawing the test samples again
    high: float
    p: Fraction | None  # exact, corrected for all that was compared; None where answers are not right or wrong


class ComparedMethod(TypedDict):
    """One entry of compare.json."""

    method: str
    runs: list[Summary]
    sites: NotRequired[list[SiteVerdict]]  # of the best method, where clients are too few for a test over clients


class SavedTrial(TypedDict):
    """One trial of tune.json: settings as they are typed, and how they did on validation samples."""

    settings: dict[str, str]
    scores: list[float | None]  # of every seed that was trained to its end
    curves: list[list[list[float]]]  # of every seed: [round, score]
    ended: Literal["done", "diverged", "ended early"]


class SavedTuning(TypedDict):
    """tune.json: what was tried of one method."""

    method: str
    grid: dict[str, list[str]]
    sampler: Literal["grid", "random", "tpe"]
    seeds: PositiveInt
    first_seed: int
    validation: Fraction
    metric: str
    higher_is_better: bool
    trials: list[SavedTrial]


class SavedResult(TypedDict):
    """One number of recipe.json, ours for every seed and the published one."""

    case: str
    method: str
    metric: str
    protocol: str
    published: float | None
    certainty: str | None
    ours: list[float | None]
    difference: float | None


class SavedSplit(TypedDict):
    """Who holds what in one case of a recipe that draws it."""

    case: str
    labels: Labels


class SavedRecipe(TypedDict):
    """recipe.json: what a recipe's runs came to, beside what was published."""

    recipe: str
    reading: str
    seeds: PositiveInt
    shortened: list[str]  # what keeps the numbers from being comparable
    changed: NotRequired[list[str]]  # what is not as printed, so that a claim can show
    warnings: NotRequired[list[str]]  # what is known of the reading
    draws: str | None
    results: list[SavedResult]
    splits: NotRequired[list[SavedSplit]]
