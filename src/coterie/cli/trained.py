"""The command that uses a trained model: ``coterie predict``."""

from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a finished run, or a .safetensors file of a model, or a folder of these."),
    ],
    data: Annotated[
        str, typer.Option(help="The rows: a CSV, Parquet or .npz file, also as in csv:FILE,delimiter=semicolon.")
    ],
    out: Annotated[Path, typer.Option(help="The file for the rows with their answers, with the same ending.")],
    client: Annotated[
        str | None,
        typer.Option(
            help="Whose model: its name, or its number, counted from 0.", show_default="the one model of all clients"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help="Code of your own that the run names and may run here: module:function.", show_default="none"
        ),
    ] = None,
) -> None:
    """Answer new rows with a trained model: the rows in their order, with a prediction and probabilities behind them.

    Rows of a table are prepared as in training: missing values are filled
    where missing=mean filled them, and refused elsewhere; texts and numbers
    are encoded alike; numbers are predicted in the unit of the target. Other
    columns, such as the target or what training left out, are passed over.
    """
    from .predict import predict_file

    predict_file(run, client, data, out, force, trust or [])
