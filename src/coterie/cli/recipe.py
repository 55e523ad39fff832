"""``coterie recipe``: published experiments in one line. What the commands do is imported when they run."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from .options import MLflow, Quiet, Record, Set, TensorBoard, WandB
from .process import look_in, share_cores

recipe = typer.Typer(
    help="Published experiments: list them, show their facts and numbers, run them beside the published numbers.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="A recipe (see `coterie recipe list`), such as dfedalt-t1.")]


@recipe.command(name="list")
def list_(
    paper: Annotated[
        str | None, typer.Option(help="Only those of one paper: dfedalt, dfedpgp, fedlmt, dfedsam, fedavg-p.")
    ] = None,
) -> None:
    """List the recipes with what they compare and what they cost."""
    from .recipe_show import show_recipes

    show_recipes(paper)


@recipe.command()
def show(name: Name) -> None:
    """Show everything about a recipe: cases, methods, both readings, published numbers."""
    from .recipe_show import show_recipe

    show_recipe(name)


@recipe.command()
def run(
    name: Name,
    methods: Annotated[
        str | None, typer.Option(help="Only these methods, with commas: dfedalt,fedavg,mine:fedfoo.")
    ] = None,
    case: Annotated[str | None, typer.Option(help="Only this case: its number, or a part of its label.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Other than the published rounds.", min=1)] = None,
    seeds: Annotated[int | None, typer.Option(help="Other than the published number of seeds.", min=1)] = None,
    reading: Annotated[
        str | None, typer.Option(help="paper or code, where they differ; by default our choice (see show).")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Other than the published number.", min=1)] = None,
    data: Annotated[str | None, typer.Option(help="Other data, such as digits.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model, such as small-cnn.")] = None,
    partition: Annotated[str | None, typer.Option(help="Another partition, such as iid.")] = None,
    set_: Set = None,
    record: Record = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Rounds between two evaluations; by default every round is evaluated.", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the results; else a new one under runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what an interruption left in --out.")] = False,
    engine: Annotated[str, typer.Option(help="auto, serial, vectorized, graphed.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16.")] = "fp32",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The folder of the data sets; by default COTERIE_DATA, else that of `coterie data dir`."),
    ] = None,
    quiet: Quiet = False,
    tensorboard: TensorBoard = False,
    mlflow: MLflow = False,
    wandb: WandB = False,
) -> None:
    """Run a recipe and print published, ours and the difference; a shortened run says that it is one."""
    typed = {**locals(), "set": set_ or [], "record": record or []}
    share_cores()
    look_in(data_dir)
    from .output import Output
    from .recipe_run import RecipeOptions, run_recipe

    options = RecipeOptions(**{field.name: typed[field.name] for field in fields(RecipeOptions)})
    run_recipe(options, Output(quiet, tensorboard, mlflow, wandb))
