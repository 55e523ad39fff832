"""What a run says of itself, as plain data: all files of its folder (of several runs: ``schema_several``).

Who writes a file and who reads it have one type for it; ``core/checked_json`` holds what is read against it, ranges
included. A type behind that of a dict says which keys it always has.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from .annotations import MOST, Fraction, NonNegative, PositiveInt, Range
from .bounds import EngineName, EqualRows, RightAnswers
from .schema_parts import (
    Count,
    Graph,
    Newcomers,
    NewcomerSummary,
    OwnTrainColumns,
    PeerOrigin,
    Protocols,
    SampleShape,
    SavedColumns,
)

FINETUNED = "after_finetune"  # the protocol of methods that fine-tune for the measurement
VALIDATION = "validation"  # that of what a client would deploy, on its validation samples, where clients have some
EngineText = Annotated[str, EngineName()]
Init = Literal["common", "per-client"]
"""What clients begin with: one model for all, or a draw of each one's own."""
Precision = Literal["fp32", "tf32", "bf16"]
"""How forward and backward passes multiply; weights keep their type."""
Select = Literal["last", "best-validation", "best-validation-per-client", "best-test"]
"""Which round of a run is reported and deployed."""
MeasureName = Literal["gradients", "sharpness", "singular-values", "perplexity", "train-accuracy", "constants", "mass",
                      "deltas", "own-train", "clients"]  # fmt: skip
"""What ``record`` adds to the row of every evaluated round."""


class MetricInfo(TypedDict):
    """What is known of a metric without its formula."""

    name: str
    column: str  # the name as columns have it
    higher_is_better: bool
    average: Literal["clients", "samples"]  # over clients: each counts alike, or as much as it has test samples
    percent: bool  # whether it is shown in %


ACCURACY = MetricInfo(name="accuracy", column="accuracy", higher_is_better=True, average="clients", percent=True)


class Row(OwnTrainColumns):
    """One round: one line of metrics.jsonl. None: the round has not measured it, or it is beyond all numbers.

    Another metric than accuracy has the same columns with its name in place of "accuracy" and any numbers in them, and
    ``_undefined``: how many clients with test samples have no value, where there are some.
    ``singular-values`` also has one ``smallest_singular_value_block_N`` per block of the model, counted from 1.
    """

    round: PositiveInt  # counted from 1
    # The accuracy of each client's own model on its own test samples: mean, spread, lowest, 10th percentile, and the
    # mean in which each client counts as much as it has test samples.
    personal_accuracy_after_mix: NotRequired[Fraction | None]
    personal_accuracy_after_mix_std: NotRequired[Fraction | None]
    personal_accuracy_after_mix_worst: NotRequired[Fraction | None]
    personal_accuracy_after_mix_p10: NotRequired[Fraction | None]
    personal_accuracy_after_mix_weighted: NotRequired[Fraction | None]
    personal_accuracy_after_train: NotRequired[Fraction | None]
    personal_accuracy_after_train_std: NotRequired[Fraction | None]
    personal_accuracy_after_train_worst: NotRequired[Fraction | None]
    personal_accuracy_after_train_p10: NotRequired[Fraction | None]
    personal_accuracy_after_train_weighted: NotRequired[Fraction | None]
    personal_accuracy_after_finetune: NotRequired[Fraction | None]  # of methods that fine-tune for the measurement
    personal_accuracy_after_finetune_std: NotRequired[Fraction | None]
    personal_accuracy_after_finetune_worst: NotRequired[Fraction | None]
    personal_accuracy_after_finetune_p10: NotRequired[Fraction | None]
    personal_accuracy_after_finetune_weighted: NotRequired[Fraction | None]
    personal_accuracy_validation: NotRequired[Fraction | None]  # of what a client would deploy, on validation samples
    personal_accuracy_validation_std: NotRequired[Fraction | None]
    personal_accuracy_validation_worst: NotRequired[Fraction | None]
    personal_accuracy_validation_p10: NotRequired[Fraction | None]
    personal_accuracy_validation_weighted: NotRequired[Fraction | None]
    global_accuracy: NotRequired[Fraction | None]  # of the one model that all agree on, on all test samples
    global_accuracy_local: NotRequired[Fraction | None]  # the same on each client's own, mean over the clients
    train_loss: float | None
    consensus_distance: float | None  # (1/n) sum_i |u_i - mean u|^2
    gradient_norm_shared: NotRequired[float | None]  # gradients: G_u
    gradient_norm_personal: NotRequired[float | None]  # gradients: G_v
    sharpness: NotRequired[float | None]
    sharpness_worst: NotRequired[float | None]
    smallest_singular_value: NotRequired[float | None]  # singular-values
    perplexity: NotRequired[float | None]
    perplexity_chunks: NotRequired[float | None]
    global_perplexity: NotRequired[float | None]
    global_perplexity_chunks: NotRequired[float | None]
    global_accuracy_train: NotRequired[Fraction | None]  # train-accuracy
    objective: NotRequired[float | None]  # constants: F
    smoothness: NotRequired[float | None]  # constants: L
    dissimilarity: NotRequired[float | None]  # constants: b^2
    noise_shared: NotRequired[float | None]  # constants: sigma_u^2
    noise_personal: NotRequired[float | None]  # constants: sigma_v^2
    mass_least: NotRequired[float | None]  # mass
    mass_greatest: NotRequired[float | None]
    delta_u: NotRequired[float | None]  # deltas
    delta_v: NotRequired[float | None]
    clients: NotRequired[dict[str, dict[str, list[float | None]]]]  # clients: by metric and protocol, of every client
    bytes_sent: Count  # by all nodes together
    parameters_sent: Count
    messages_sent: Count
    busiest_bytes_up: Count  # by the node that sends most
    busiest_bytes_down: Count  # to the node that gets most
    flops: Count  # of the training
    forward_flops: Count  # of one sample through every participant's own model
    seconds: NonNegative  # of training and aggregation; the first round also builds what the engine runs
    evaluation_seconds: NonNegative  # of all that was measured of the round


class TrackedRow(Row):
    """A row as trackers get it."""

    bytes_sent_total: Count  # in all rounds so far


class MetricSummary(TypedDict):
    """A personal metric over the evaluated rounds of a run."""

    final: float
    best: float
    last_tenth: float  # mean over the last tenth of them
    worst: float  # client of the last one
    std: NonNegative  # over the clients, in the last one
    weighted: NotRequired[float]  # the mean of the last one, each client counting as much as it has samples
    undefined: NotRequired[Count]  # clients with test samples and no value, in the last one


class AccuracySummary(MetricSummary):
    """The same of a share."""

    final: Fraction
    best: Fraction
    last_tenth: Fraction
    worst: Fraction
    weighted: NotRequired[Fraction]


class SelectionSummary(TypedDict):
    """Which models a run ends with, where these are not those of the last round."""

    rule: Select
    round: PositiveInt | None  # None: each client has its own, which clients.json has
    row: NotRequired[dict[str, float | None]]  # the columns of the clients' models, where their rounds differ


class Summary(TypedDict):
    """summary.json: what a finished run comes to; another metric than accuracy has keys with its own name."""

    method: str
    rounds: Count
    seed: int
    engine: EngineText
    personal_accuracy: NotRequired[Annotated[dict[str, AccuracySummary | None], Protocols]]
    global_accuracy: NotRequired[Fraction | None]
    global_accuracy_local: NotRequired[Fraction | None]
    train_loss: float | None
    consensus_distance: float | None
    bytes_sent: Count
    parameters_sent: Count
    flops: Count
    seconds: NonNegative
    busiest_bytes_up: Count  # in any round
    busiest_bytes_down: Count
    selection: NotRequired[SelectionSummary]
    rounds_to: dict[str, PositiveInt | None]  # by the mean personal metric after aggregation in %, where it is shown so
    newcomers: NotRequired[NewcomerSummary]  # where clients were kept out of training


Labels = Annotated[list[list[Count]], EqualRows()]
"""[client][class] training samples."""


class ClientSummary(TypedDict, total=False):
    """clients.json: every client after the last round; empty as long as a run is not finished."""

    round: Count
    train_samples: list[Count]
    test_samples: list[Count]
    parameters: list[Count]  # of each client's own model
    personal_parameters: list[Count]  # those of them that no other client has
    names: list[str]  # of the clients; only where the data name them
    newcomers: Newcomers  # only where clients were kept out of training
    rounds: list[PositiveInt]  # after which each client's model was taken; only where that is not the last one
    labels: Labels | None  # None where there are no classes, or too many
    accuracy: dict[str, list[Fraction | None]]  # by protocol; another metric has its own name here
    graph: Graph | None  # None with a server, and where nobody is heard
    # [client][draw] the first metric of the model that it ends with, over test samples drawn again; only where
    # something is measured and the clients are not too many
    resampled: Annotated[list[list[float | None]], EqualRows()]
    # of every client: which of its test samples that model gets right, as 1 and 0; only where clients are too few for a
    # test over clients, and answers are right or wrong
    right: list[Annotated[str, RightAnswers()]]


class DataOrigin(TypedDict):
    """What is always known of the data, and what names those that can be made again."""

    clients: PositiveInt
    source: NotRequired[str]
    partition: NotRequired[str]


class ModelOrigin(TypedDict):
    """A model by its name, with its options, or a module of one's own."""

    name: NotRequired[str]
    module: NotRequired[str]
    classes: NotRequired[PositiveInt]
    input_shape: NotRequired[SampleShape]


TargetKind = Literal["classes", "tokens", "pixels", "labels", "masks", "numbers", "probabilities"]


class Normalization(TypedDict):
    """What images are normalized with; the rest is for training."""

    mean: list[float]
    std: list[float]


class Fingerprints(TypedDict):
    """Short hashes of what a run began with."""

    data: str
    model: str


class SelectionConfig(TypedDict, total=False):
    """What a run is chosen by; what is left out is as usual."""

    validation: Fraction  # of every client's training samples; left out: none
    select: Select  # left out: last
    patience: PositiveInt  # evaluations without improvement that end a run; left out: it has all rounds
    stop_at: float  # the value on validation samples that ends a run, in the unit of tables; left out: none does


class Repeatable(SelectionConfig):
    """What it takes to do a run again."""

    method: str
    settings: dict[str, Any]
    data: Annotated[dict[str, Any], DataOrigin]
    model: Annotated[dict[str, Any], ModelOrigin]
    loss: str
    rounds: Annotated[int, Range(0, MOST)]
    seed: int
    init: Init
    drop_messages: Fraction
    offline: Fraction
    evaluate_every: PositiveInt
    holdout_clients: NotRequired[PositiveInt]  # that were kept out of training; left out: none
    record: list[MeasureName]
    precision: Precision
    device: Literal["cpu", "cuda"]
    engine: EngineText


class Config(Repeatable):
    """config.json: all of that, and what it was done with."""

    targets: NotRequired[TargetKind | None]  # what a model answers; missing: one class per sample
    metrics: NotRequired[list[MetricInfo]]  # what is measured, the first one decides; missing: accuracy alone
    transform: Annotated[dict[str, Any], Normalization] | None
    engine_reason: str
    machine: str  # the GPU, or the processor and its threads
    fingerprints: Annotated[dict[str, str], Fingerprints]
    versions: dict[str, str]
    columns: NotRequired[SavedColumns]  # of a table
    in_one_place: NotRequired[bool]  # whether all samples were together, which is not federated
    sample_shape: NotRequired[SampleShape]  # where the model is a module that Coterie did not build
    sample_type: NotRequired[list[str] | dict[str, str]]  # of each of several inputs
    peer: NotRequired[PeerOrigin]  # of a participant's own folder


class CheckpointFile(TypedDict):
    """The JSON file of a checkpoint: the hashes of its other files, which it makes valid."""

    round: Count
    sha256: NotRequired[str]  # of the one file of a run in one process
    parts: NotRequired[dict[str, str]]  # of the files of all shards, by name


def number(row: Row, column: str) -> float | None:
    """Return the number of a column by its name, None where the round has not measured it."""
    found = row.get(column)
    return found if isinstance(found, int | float) else None
