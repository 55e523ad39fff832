"""Options that several commands have: settings of methods, and what is seen of a run while it trains."""

from typing import Annotated

import typer

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method, such as lr=0.05; repeat for more."),
]
Record = Annotated[
    list[str] | None,
    typer.Option(
        help="Measure this too: gradients, sharpness, singular-values, perplexity, train-accuracy, deltas, mass, "
        "constants; repeat for more."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no remarks: errors and results only.")]
TensorBoard = Annotated[
    bool,
    typer.Option(
        "--tensorboard", help="Write every round into RUN/tensorboard too; pip install 'coterie\\[tensorboard]'."
    ),
]
MLflow = Annotated[
    bool,
    typer.Option(
        "--mlflow",
        help="Log every round to MLFLOW_TRACKING_URI, by default ./mlflow.db; pip install 'coterie\\[mlflow]'.",
    ),
]
WandB = Annotated[
    bool,
    typer.Option(
        "--wandb",
        help="Log every round to Weights & Biases (WANDB_MODE=offline works); pip install 'coterie\\[wandb]'.",
    ),
]
