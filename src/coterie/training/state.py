"""What is carried from round to round."""

from typing import Any, NamedTuple

from torch import Tensor

from ..core.tensors import Tensors

AFTER_TRAIN = "measured/after_train"  # its name in a checkpoint


class RunState(NamedTuple):
    """The state of a method, and what was measured of it."""

    state: Any
    after_train: Tensor  # [n, metrics] of each client when it last trained; NaN before that
    values: Tensors | None = None  # [n, metrics] by protocol, if this round was evaluated; not saved
