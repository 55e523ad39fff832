"""What only some runs say of themselves: of the columns of a table, of clients that came later."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from .annotations import Fraction, NonNegative, Positive, PositiveInt, Range
from .bounds import Edges

Count = Annotated[int, Range()]
SampleShape = list[Count] | list[list[Count]] | dict[str, list[Count]]
"""Of one sample: of one input, of several in order, or of several by name."""
TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN = "train_after_mix", "train_after_train"  # own models on own training samples


class OwnTrainColumns(TypedDict, total=False):
    """What ``own-train`` adds to a row: the accuracy of each client's own model on its own training samples."""

    personal_accuracy_train_after_mix: Fraction | None
    personal_accuracy_train_after_mix_std: Fraction | None
    personal_accuracy_train_after_mix_worst: Fraction | None
    personal_accuracy_train_after_mix_p10: Fraction | None
    personal_accuracy_train_after_mix_weighted: Fraction | None
    personal_accuracy_train_after_train: Fraction | None
    personal_accuracy_train_after_train_std: Fraction | None
    personal_accuracy_train_after_train_worst: Fraction | None
    personal_accuracy_train_after_train_p10: Fraction | None
    personal_accuracy_train_after_train_weighted: Fraction | None


class Protocols(TypedDict):
    """When every run measures the clients' accuracies; others fine-tune for it as well."""

    after_mix: Any
    after_train: Any
    train_after_mix: NotRequired[Any]
    train_after_train: NotRequired[Any]


class Graph(TypedDict):
    """Who heard whom in one round."""

    name: str
    fixed: bool
    stochastic: Literal["doubly", "row", "column"]
    round: PositiveInt
    messages: Count
    edges: Annotated[list[list[Any]], Edges()] | None  # [sender, receiver, weight]; None where they are too many


class _Columns(TypedDict):
    """How the samples of a table are made, without what numbers are divided by."""

    features: dict[str, list[str] | None]  # by column, in the order of the inputs: its texts; None: a number
    mean: list[float]  # of every input
    fill: NotRequired[list[float]]  # what stands in every input for a missing value; left out: these are refused
    target: list[str]
    classes: list[str] | None  # None: the targets are numbers
    target_mean: list[float]


class SavedColumns(_Columns):
    """How the samples were made of a table: inputs are (value - mean) / std, those of texts are 1 for the text."""

    std: list[Positive]
    target_std: list[Positive]


class SharedColumns(_Columns):
    """What the members of a federation make samples with, and the number of training rows that it was found in."""

    std: list[NonNegative]  # as it is, 0 where all values are equal: tables are put together by it
    target_std: list[NonNegative]
    rows: PositiveInt


class Newcomers(TypedDict):
    """The metric that decides of every client that came after the last round.

    None: it has no value, as without test samples, or the method shares nothing.
    """

    names: list[str]  # none where the data do not name them
    train_samples: list[Count]
    test_samples: list[Count]
    received: list[float | None]  # of the model that all agree on, as it is
    personalized: list[float | None]  # after the newcomer has trained its own part


class NewcomerSummary(TypedDict):
    """The means over the clients that came after the last round; None where nothing could be measured."""

    clients: PositiveInt
    received: float | None
    personalized: float | None


class PeerOrigin(TypedDict):
    """Whose run it is, where one participant of a federation has run it on its own."""

    federation: str
    name: str  # of the participant
    number: Count  # its place among the members
    members: list[str]
    train_samples: Count  # of its own
    test_samples: Count


class DigestFile(TypedDict):
    """digests.json: the hashes of the other files of a finished run, by their paths in its folder."""

    sha256: dict[str, str]
