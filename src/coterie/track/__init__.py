"""Where the numbers of a run go while it trains, beside its folder: TensorBoard, MLflow, Weights & Biases, or your own.

    ct.fit(..., out="runs/a", trackers=[ct.track.TensorBoard()])

A tracker of your own has a name and three functions (``Tracker``); ``fit`` calls them.
"""

from .base import Tracker, Tracking
from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "Tracking", "WandB"]
