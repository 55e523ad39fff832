"""The options of a study: those of its runs, and those whose gaps a preset fills."""
# ruff: noqa: RUF009 (option makes a field)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..core.annotations import Fraction, PositiveInt
from ..core.arguments import checked_class
from ..training.prepare import ModelLike, folder_of
from ..training.settings import RunSettings, option, types_of_options
from .presets import VALIDATION
from .search import SamplerName


@checked_class("class", subject="function compare", types=types_of_options)
@dataclass(frozen=True, kw_only=True)
class StudySettings(RunSettings):
    """The options of all runs of a study."""

    rounds: PositiveInt | None = option("How many rounds; unless it is given, as many as the preset has.", None)  # type: ignore[assignment]
    evaluate_every: PositiveInt | Literal["auto"] = option(
        '"auto" unless it is given, the same rounds for all methods.', "auto"
    )
    model: str | ModelLike | None = option(
        "A name, a module, or a function that builds one; else that of the preset.", None
    )
    partition: str | None = option("Who gets which samples of a source.", None)
    clients: PositiveInt | None = option("Among how many clients a source is divided.", None)
    data_dir: str | Path | None = option("The folder of the published data sets.", None)

    @property
    def folder(self) -> Path | None:
        """Where runs are written, if anywhere."""
        folder = folder_of(self)
        return None if folder is None else folder.path


@checked_class("class", subject="function compare", types=types_of_options)
@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(StudySettings):
    """The options of a comparison in Python."""

    seeds: PositiveInt = option("How many seeds, counted up from ``seed``.", 1)
    settings: Mapping[str, Any] | None = option(
        'Of all methods by name that have them, as in ``{"lr": 0.1, "fedper.personal": "*head*"}``.', None
    )
    tune: Mapping[str, Sequence[Any]] | None = option(
        "Values of settings that every method by name chooses among first, on validation samples; it needs ``out``.",
        None,
    )
    target: float | None = option("The mean personal metric that rounds are counted to, in its unit.", None)


@checked_class("class", subject="function tune", types=types_of_options)
@dataclass(frozen=True, kw_only=True)
class TuneSettings(StudySettings):
    """The options of a tuning in Python."""

    validation: Fraction = option(
        "The part of every client's training samples that is kept out of training and decides.", VALIDATION
    )
    seeds: PositiveInt = option("How many seeds of every trial, counted up from ``seed``.", 1)
    settings: Mapping[str, Any] | None = option("Settings that are the same in all trials.", None)
    budget: PositiveInt | None = option("The most trainings, all seeds counted; as many as the grid has.", None)
    sampler: SamplerName = option(
        "grid for all, random for a part, tpe of Optuna; pip install 'coterie[tune]'.", "grid"
    )
