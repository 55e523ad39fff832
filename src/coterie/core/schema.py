"""What a run says of itself, as plain data: all files of its folder (of several runs: ``schema_several``).

The writer and the reader of a file share its type; ``core/checked_json`` holds what is read against it with msgspec,
ranges and patterns included.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

from .annotations import MOST, Count, Fraction, Meta, NonNegative, Positive, PositiveInt

FINETUNED = "after_finetune"  # the protocol of methods that fine-tune for the measurement
VALIDATION = "validation"  # that of what a client would deploy, on its validation samples, where clients have some
TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN = "train_after_mix", "train_after_train"  # own models on own training samples
ENGINE_NAME = r"\A(ray:)?(serial|(vectorized|graphed)(:[1-9][0-9]{0,9})?)\Z"
EngineName = Annotated[str, Meta(pattern=ENGINE_NAME)]
"""The full name of an engine: with its clients side by side, and on a cluster that of its workers."""
FileName = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\\]{1,255}\Z")]
"""The name of a file or a folder inside another folder."""
RightAnswers = Annotated[str, Meta(pattern=r"\A[01]*\Z")]
"""Of every sample, whether a model gets it right, as 1 and 0."""
SampleShape = list[Count | list[Count]] | dict[str, list[Count]]
"""Of one sample: of one input, of several in order, or of several by name."""
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


personal_column = "personal_{0[column]}_{1}".format
"""The column of a metric of the clients' own models: ``personal_column(metric, "after_mix")``."""
global_column = "global_{0[column]}".format
"""The column of a metric of the one model that all agree on; with ``_local`` behind it, the mean over the clients."""
ACCURACY = MetricInfo(name="accuracy", column="accuracy", higher_is_better=True, average="clients", percent=True)


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


class PersonalAccuracy(TypedDict):
    """The clients' accuracies by protocol: two that every run measures, and those of some runs."""

    after_mix: AccuracySummary | None
    after_train: AccuracySummary | None
    after_finetune: NotRequired[AccuracySummary | None]
    validation: NotRequired[AccuracySummary | None]
    train_after_mix: NotRequired[AccuracySummary | None]
    train_after_train: NotRequired[AccuracySummary | None]


class SelectionSummary(TypedDict):
    """Which models a run ends with, where these are not those of the last round."""

    rule: Select
    round: PositiveInt | None  # None: each client has its own, which clients.json has
    row: NotRequired[dict[str, float | None]]  # the columns of the clients' models, where their rounds differ


class NewcomerSummary(TypedDict):
    """The means over the clients that came after the last round; None where nothing could be measured."""

    clients: PositiveInt
    received: float | None
    personalized: float | None


class Summary(TypedDict):
    """summary.json: what a finished run comes to; another metric than accuracy has keys with its own name."""

    method: str
    rounds: Count
    seed: int
    engine: EngineName
    personal_accuracy: NotRequired[PersonalAccuracy]
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


Labels = Annotated[list[list[Count]], Meta(min_length=1)]
"""[client][class] training samples."""
if TYPE_CHECKING:  # JSON has lists where msgspec checks [sender, receiver, weight] as a tuple
    Edge = list[Any]
else:
    Edge = tuple[Count, Count, float]


class Graph(TypedDict):
    """Who heard whom in one round."""

    name: str
    fixed: bool
    stochastic: Literal["doubly", "row", "column"]
    round: PositiveInt
    messages: Count
    edges: list[Edge] | None  # None where they are too many


class Newcomers(TypedDict):
    """The metric that decides of every client that came after the last round.

    None: it has no value, as without test samples, or the method shares nothing.
    """

    names: list[str]  # none where the data do not name them
    train_samples: list[Count]
    test_samples: list[Count]
    received: list[float | None]  # of the model that all agree on, as it is
    personalized: list[float | None]  # after the newcomer has trained its own part


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
    # something is measured and the clients are not too many; in a file of its own, resampled.safetensors
    resampled: list[list[float | None]]
    # of every client: which of its test samples that model gets right, as 1 and 0; only where clients are too few for a
    # test over clients, and answers are right or wrong
    right: list[RightAnswers]


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


if TYPE_CHECKING:  # the other keys are options of a source, a model or a transform, which no type lists
    Data = dict[str, Any]
    Module = dict[str, Any]
    Transformation = dict[str, Any]
else:
    Data, Module, Transformation = DataOrigin, ModelOrigin, Normalization


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
    data: Data
    model: Module
    loss: str
    rounds: Annotated[int, Meta(ge=0, le=MOST)]
    seed: int
    init: Init
    drop_messages: Fraction
    offline: Fraction
    evaluate_every: PositiveInt
    holdout_clients: NotRequired[PositiveInt]  # that were kept out of training; left out: none
    record: list[MeasureName]
    precision: Precision
    device: Literal["cpu", "cuda"]
    engine: EngineName


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


class PeerOrigin(TypedDict):
    """Whose run it is, where one participant of a federation has run it on its own."""

    federation: str
    name: str  # of the participant
    number: Count  # its place among the members
    members: list[str]
    train_samples: Count  # of its own
    test_samples: Count


class Config(Repeatable):
    """config.json: all of that, and what it was done with."""

    targets: NotRequired[TargetKind | None]  # what a model answers; missing: one class per sample
    metrics: NotRequired[list[MetricInfo]]  # what is measured, the first one decides; missing: accuracy alone
    transform: Transformation | None
    engine_reason: str
    machine: str  # the GPU, or the processor and its threads
    fingerprints: Fingerprints
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
    parts: NotRequired[dict[FileName, str]]  # of the files of all shards, by name


class DigestFile(TypedDict):
    """digests.json: the hashes of the other files of a finished run, by their paths in its folder."""

    sha256: dict[str, str]


def number(row: Row, column: str) -> float | None:
    """Return the number of a column by its name, None where the round has not measured it."""
    found = row.get(column)
    return found if isinstance(found, int | float) else None
