"""One client's own model, and what it answers."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.clients import OnDemand
from ..core.errors import UserError
from ..core.schema import Config
from ..core.tensors import Tensors
from ..models.model import Model
from .predict import Answering, Predictor


@dataclass(frozen=True, repr=False)
class Client:
    """One client's own model."""

    shared: Tensors  # what it exchanged
    personal: Tensors  # what never left it
    model: Model | None  # the model that these tensors are of; None where it must be given to coterie.load
    answering: Answering | None = None  # what its samples are and its outputs mean; of the clients of a run
    same: Hashable = None  # equal for clients that have one ``shared``, in one memory; None: nobody has this one

    def __repr__(self) -> str:
        return f"Client(shared={len(self.shared)} tensors, personal={len(self.personal)} tensors)"

    def module(self) -> nn.Module:
        """Return the client's own module, in evaluation mode, ready to use."""
        if self.model is None:
            raise UserError(
                "this run has a module of its own, or a method that makes one: give coterie.load the module that was "
                "trained, as model=..., or trust the code that the run names, as trust=['mine:net']"
            )
        return self.model.to_module(self.shared | self.personal)

    def predict(self, x: Any) -> Tensor:
        """Return the client's answers to samples as its federation holds them: a batch [B, ...], or one sample.

        Images of bytes are normalized, floating numbers take the type of the model, tokens stay. NumPy arrays and
        tensors are taken alike. A DataFrame, or a list of dictionaries, has rows of the table that the run has learned
        from, if it has: they are encoded as its rows were, missing values are filled or refused as there, and numbers
        are answered in its units. Answers are classes, 0 and 1 of labels, or numbers, by the loss that was minimized;
        ``scored()`` has probabilities, ``module()`` the outputs.
        """
        return self._predictor.predict(x)

    def scored(self, x: Any) -> dict[str, NDArray[Any]]:
        """Return the client's answers to a batch, and the probability of every class or label, as columns by name.

        Rows of a table have the columns ``prediction``, with the class's own name or a number in the target's unit,
        and ``probability_CLASS``; with several targets each has columns with its name. Other samples have
        ``prediction`` and ``probability``. A frame with them is ``frame.assign(**client.scored(frame))``.
        """
        return self._predictor.scored(x)

    @property
    def _predictor(self) -> Predictor:
        if self.answering is None:
            raise UserError("only a client of a run knows what its samples are: call module() on inputs of the model")
        return Predictor(self.module(), self.answering)


def answering(config: Config, clients: Sequence[Client]) -> Sequence[Client]:
    """Return clients who know what samples of the run are; one that somebody has is not made, or read, once more."""
    known, made = Answering.of(config), WeakValueDictionary[int, Client]()

    def make(i: int) -> Client:
        client = made.get(i)
        if client is None:
            client = made[i] = replace(clients[i], answering=known)
        return client

    return OnDemand(len(clients), make)
