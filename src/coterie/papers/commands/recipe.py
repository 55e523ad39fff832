"""``coterie recipe``: published experiments in one line. What the commands do is imported when they run."""
# ruff: noqa: RUF009 (option makes a field)

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from ...cli.common.fields import option, with_options
from ...cli.common.options import SEEDS, DryRun, Output, TrainingOptions, TuneTexts
from ...cli.common.training_command import TrainingCommand
from ...cli.common.typed import Commands
from ...study.presets import VALIDATION

if TYPE_CHECKING:
    from ..recipes.reading import ReadingName
else:  # Typer reads this type. What is no such name is refused later, in a sentence that lists the names.
    ReadingName = str

group = Commands(
    help="Published experiments: list them, show their facts and numbers, run them beside the published numbers.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="A recipe (see `coterie recipe list`), such as dfedalt-t1.")]


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


@group.command(name="list")
def list_recipes(
    paper: Annotated[
        str | None, typer.Option(help="Only those of one paper: dfedalt, dfedpgp, fedlmt, dfedsam, fedavg-p.")
    ] = None,
) -> None:
    """List the recipes with what they compare and what they cost."""
    from .recipe_show import show_recipes

    show_recipes(paper)


@group.command(name="show")
def show_facts(name: Name) -> None:
    """Show everything about a recipe: cases, methods, both readings, published numbers."""
    from .recipe_show import show_recipe

    show_recipe(name)


@group.command(name="run", cls=TrainingCommand)
@with_options
def run_published(name: Name, options: RecipeOptions, output: Output) -> None:
    """Run a recipe and print published, ours and the difference; a shortened run says that it is one."""
    from .recipe_run import run_recipe

    run_recipe(name, options, output)
