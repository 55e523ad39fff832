"""The options of ``coterie recipe run``."""
# ruff: noqa: RUF009 (option makes a field)

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ...cli.fields import option
from ...cli.options import SEEDS, VALIDATION, DryRun, TrainingOptions, TuneTexts

if TYPE_CHECKING:
    from ..recipes.reading import ReadingName
else:  # Typer reads this type. What is no such name is refused later, in a sentence that lists the names.
    ReadingName = str


@dataclass(frozen=True)
class RecipeOptions(TrainingOptions):
    """The options of ``recipe run``."""

    shows: ClassVar[dict[str, str]] = {  # in place of what commands without a recipe have
        **dict.fromkeys(("data", "model", "partition", "clients", "rounds"), "that of the recipe"),
        **dict.fromkeys(("set", "record"), "those of the recipe"),
        "evaluate_every": "1",
        "validation": f"that of the reading, mostly 0; to tune, {VALIDATION:g}",
        "select": "as the paper reports it",
    }
    methods: str | None = option(
        "Only these methods, with commas: dfedalt,fedavg,mine:fedfoo.", shows="those of the recipe"
    )
    case: str | None = option("Only this case: its number, or a part of its label.", shows="all")
    seeds: int | None = option("How many seeds.", min=1, max=SEEDS, shows="the published number")
    reading: ReadingName | None = option("paper or code, where they differ.", shows="our choice, see recipe show")
    tune: TuneTexts = field(default_factory=list)
    dry_run: DryRun = False
