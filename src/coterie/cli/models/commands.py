"""The commands that use a trained model. What they do is imported when they run."""

from pathlib import Path
from typing import Annotated

import typer

from ...core.annotations import MOST
from ..common.options import DataDir

TrustedCode = Annotated[
    list[str] | None,
    typer.Option(help="Code of your own that the run names and may run here: module:function.", show_default="none"),
]


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    client: Annotated[str, typer.Option(help="Whose model: its name, or its number, counted from 0, or all.")],
    out: Annotated[Path, typer.Option(help="The file to write; with --client all a folder, one file per client.")],
    format: Annotated[
        str | None,
        typer.Option(help="safetensors, onnx or torchscript; by default what --out ends with (.onnx, .pt)."),
    ] = None,
    form: Annotated[
        str, typer.Option(help="Of models of low rank: recovered (ordinary layers) or factorized.")
    ] = "recovered",
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    trust: TrustedCode = None,
) -> None:
    """Write a client's own model into a file that works elsewhere.

    ONNX and TorchScript files contain the normalization: they take samples as
    the data set gives them, so images as uint8 from 0 to 255; data that
    Coterie holds as numbers, such as digits, go in as they are.

    A safetensors file is the state dict alone, for inputs that are normalized;
    its metadata hold mean and std, and much more.

    ONNX needs pip install 'coterie\\[export]'.
    """
    from .export import export_models

    export_models(run, client, format, out, form, force, trust or [])


def personalize(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[
        str, typer.Option(help="The new site's samples: a file like those of the run, or any data, as in npz:FILE.")
    ],
    out: Annotated[Path, typer.Option(help="The file for the site's model: .safetensors, .onnx or .pt.")],
    epochs: Annotated[
        int | None, typer.Option(help="Passes through its samples; by default those of a round.", min=1, max=MOST)
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="safetensors, onnx or torchscript; by default what --out ends with.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Give a new site the model that a run's clients share, and train its own part of it."""
    from .personalize import personalize_site

    personalize_site(run, data, out, epochs, format, force, data_dir)


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
    trust: TrustedCode = None,
) -> None:
    """Answer new rows with a trained model: the rows in their order, with a prediction and probabilities behind them.

    Rows of a table are prepared as in training: missing values are filled
    where missing=mean filled them, and refused elsewhere; texts and numbers
    are encoded alike; numbers are predicted in the unit of the target. Other
    columns, such as the target or what training left out, are passed over.
    """
    from .predict import predict_file

    predict_file(run, client, data, out, force, trust or [])
