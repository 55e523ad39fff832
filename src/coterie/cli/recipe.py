"""``coterie recipe``: published experiments in one line. What the commands do is imported when they run."""

from pathlib import Path
from typing import Annotated

import typer

from .common.fields import with_options
from .common.options import Output, RecipeOptions
from .common.training_command import TrainingCommand
from .common.typed import Commands

recipe = Commands(
    help="Published experiments: list them, show their facts and numbers, run them beside the published numbers.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="A recipe (see `coterie recipe list`), such as dfedalt-t1.")]


@recipe.command(name="list")
def list_recipes(
    paper: Annotated[
        str | None, typer.Option(help="Only those of one paper: dfedalt, dfedpgp, fedlmt, dfedsam, fedavg-p.")
    ] = None,
) -> None:
    """List the recipes with what they compare and what they cost."""
    from .recipe_show import show_recipes

    show_recipes(paper)


@recipe.command(name="show")
def show_facts(name: Name) -> None:
    """Show everything about a recipe: cases, methods, both readings, published numbers."""
    from .recipe_show import show_recipe

    show_recipe(name)


@recipe.command(name="run", cls=TrainingCommand)
@with_options
def run_published(name: Name, options: RecipeOptions, output: Output) -> None:
    """Run a recipe and print published, ours and the difference; a shortened run says that it is one."""
    from .recipe_run import run_recipe

    run_recipe(name, options, output)


@recipe.command()
def speed(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of three or more rounds, finished or not.")],
    to: Annotated[
        Path | None, typer.Option(help="The file that keeps the speeds; by default one in your configuration folder.")
    ] = None,
) -> None:
    """Learn from runs how fast their machine is, so that list, show and run tell times for it."""
    from .recipe_time import learn_speeds

    learn_speeds(runs, to)
