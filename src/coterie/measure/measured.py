"""What measures see of an experiment, which lies above them."""

from typing import Any, Protocol

from ..core.tensors import Tensors
from ..data.batches import Samples
from ..engines.base import Engine
from ..models.model import Model


class Measured(Protocol):
    """What a measure needs of an experiment."""

    @property
    def engine(self) -> Engine: ...

    @property
    def model(self) -> Model: ...

    @property
    def train(self) -> Samples: ...

    @property
    def tests(self) -> Samples: ...

    @property
    def program(self) -> Any: ...

    def agreed(self, state: Any) -> Tensors: ...
