"""What a run says of itself, as plain data: the rows, the summary, the clients and the configuration of its folder."""

from typing import Any, Literal, NotRequired, TypedDict

Init = Literal["common", "per-client"]
"""What clients begin with: one model for all, or a draw of each one's own."""
Precision = Literal["fp32", "tf32", "bf16"]
"""How forward and backward passes multiply; weights keep their type."""
MeasureName = Literal[
    "gradients", "sharpness", "singular-values", "perplexity", "train-accuracy", "constants", "mass", "deltas"
]
"""What ``record`` adds to the row of every evaluated round."""


class Row(TypedDict):
    """One round: one line of metrics.jsonl. None: the round has not measured it.

    ``singular-values`` also has one ``smallest_singular_value_block_N`` per block of the model, counted from 1.
    """

    round: int  # counted from 1
    # The accuracy of each client's own model on its own test samples: mean, spread, lowest and 10th percentile.
    personal_accuracy_after_mix: float | None
    personal_accuracy_after_mix_std: float | None
    personal_accuracy_after_mix_worst: float | None
    personal_accuracy_after_mix_p10: float | None
    personal_accuracy_after_train: float | None
    personal_accuracy_after_train_std: float | None
    personal_accuracy_after_train_worst: float | None
    personal_accuracy_after_train_p10: float | None
    personal_accuracy_after_finetune: NotRequired[float | None]  # of methods that fine-tune for the measurement
    personal_accuracy_after_finetune_std: NotRequired[float | None]
    personal_accuracy_after_finetune_worst: NotRequired[float | None]
    personal_accuracy_after_finetune_p10: NotRequired[float | None]
    global_accuracy: float | None  # of the one model that all agree on, on all test samples
    global_accuracy_local: float | None  # the same on each client's own, mean over the clients
    train_loss: float | None
    consensus_distance: float | None  # (1/n) sum_i |u_i - mean u|^2
    gradient_norm_shared: NotRequired[float]  # gradients: G_u
    gradient_norm_personal: NotRequired[float]  # gradients: G_v
    sharpness: NotRequired[float]
    sharpness_worst: NotRequired[float]
    smallest_singular_value: NotRequired[float]  # singular-values
    perplexity: NotRequired[float]
    perplexity_chunks: NotRequired[float]
    global_perplexity: NotRequired[float]
    global_perplexity_chunks: NotRequired[float]
    global_accuracy_train: NotRequired[float]  # train-accuracy
    objective: NotRequired[float]  # constants: F
    smoothness: NotRequired[float]  # constants: L
    dissimilarity: NotRequired[float]  # constants: b^2
    noise_shared: NotRequired[float]  # constants: sigma_u^2
    noise_personal: NotRequired[float]  # constants: sigma_v^2
    mass_least: NotRequired[float]  # mass
    mass_greatest: NotRequired[float]
    delta_u: NotRequired[float]  # deltas
    delta_v: NotRequired[float]
    bytes_sent: int  # by all nodes together
    parameters_sent: int
    messages_sent: int
    busiest_bytes_up: int  # by the node that sends most
    busiest_bytes_down: int  # to the node that gets most
    flops: int  # of the training
    forward_flops: int  # of one sample through every participant's own model
    seconds: float  # of training and mixing; the first round also builds what the engine runs
    evaluation_seconds: float  # of all that was measured of the round


class TrackedRow(Row):
    """A row as trackers get it."""

    bytes_sent_total: int  # in all rounds so far


class AccuracySummary(TypedDict):
    """A personal accuracy over the evaluated rounds of a run."""

    final: float
    best: float
    last_tenth: float  # mean over the last tenth of them
    worst: float  # client of the last one
    std: float  # over the clients, in the last one


class Summary(TypedDict):
    """summary.json: what a finished run comes to."""

    method: str
    rounds: int
    seed: int
    engine: str
    personal_accuracy: dict[str, AccuracySummary | None]  # by protocol: after_mix, after_train, after_finetune
    global_accuracy: float | None
    global_accuracy_local: float | None
    train_loss: float | None
    consensus_distance: float | None
    bytes_sent: int
    parameters_sent: int
    flops: int
    seconds: float
    busiest_bytes_up: int  # in any round
    busiest_bytes_down: int
    rounds_to: dict[str, int | None]  # by the mean personal accuracy after mixing in %


class Graph(TypedDict):
    """Who heard whom in one round."""

    name: str
    fixed: bool
    stochastic: Literal["doubly", "row", "column"]
    round: int
    messages: int
    edges: list[list[Any]] | None  # [sender, receiver, weight]; None where they are too many


class ClientSummary(TypedDict, total=False):
    """clients.json: every client after the last round; empty as long as a run is not finished."""

    round: int
    train_samples: list[int]
    test_samples: list[int]
    parameters: list[int]  # of each client's own model
    labels: list[list[int]] | None  # [client][class] training samples; None where there are no classes, or too many
    accuracy: dict[str, list[float | None]]  # by protocol
    graph: Graph | None  # None with a server, and where nobody is heard


class Repeatable(TypedDict):
    """What it takes to do a run again."""

    method: str
    settings: dict[str, Any]
    data: dict[str, Any]
    model: dict[str, Any]
    loss: str
    rounds: int
    seed: int
    init: Init
    drop_messages: float
    offline: float
    evaluate_every: int
    record: list[MeasureName]
    precision: Precision
    device: str
    engine: str


class Config(Repeatable):
    """config.json: all of that, and what it was done with."""

    transform: dict[str, Any] | None
    engine_reason: str
    machine: str  # the GPU, or the processor and its threads
    fingerprints: dict[str, str]
    versions: dict[str, str]


def number(row: Row, column: str) -> float | None:
    """Return the number of a column by its name, None where the round has not measured it."""
    found = row.get(column)
    return found if isinstance(found, int | float) else None
