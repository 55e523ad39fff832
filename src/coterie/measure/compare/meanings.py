"""What the columns of a comparison are, in words."""

from ...core.schema import ACCURACY, FINETUNED, TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN, MetricInfo
from ...core.units import words

TARGET = 80.0  # known before anybody has looked at the runs, so that no method is favored, and equal in all tables
POINTS = {
    "after_mix": "after aggregation",
    "after_train": "after local training",
    FINETUNED: "after fine-tuning",
    TRAIN_AFTER_MIX: "after aggregation, on training samples",
    TRAIN_AFTER_TRAIN: "after local training, on training samples",
}
MEANS = {  # {metric}: its name; {worst}: the lowest or the highest; {beyond}: who is on the wrong side
    "after_mix": "right after the models were averaged",
    "after_train": "right after local training, before aggregation; a client that did not take part counts with its "
    "latest training",
    FINETUNED: "after every client has tuned a copy of its model before it is measured and returned, for methods that "
    "do so; training goes on without it",
    TRAIN_AFTER_MIX: "of each client's own model on its own training samples, after aggregation (--record own-train)",
    TRAIN_AFTER_TRAIN: "of each client's own model on its own training samples, after local training (--record "
    "own-train)",
    "worst": "the {worst} {metric} of all clients after aggregation; over several seeds, the mean of each seed's "
    "{worst}",
    "p10": "the {metric} after aggregation that a tenth of the clients {beyond}",
    "weighted": "the mean {metric} after aggregation, each client counting as much as it has test samples",
    "global": "the {metric} of the averaged model, or of the server's, on all test samples together, after aggregation",
    "rounds": "the first evaluated round whose mean personal {metric} after aggregation is that {good}; over several "
    "seeds, the mean if all of them get there; -: not reached (--target counts to another)",
    "sent": "over all links, both directions, all rounds",
    "busiest": "the most that one node, a server included, sends (up) or gets (down) in a round, in any seed",
    "flops": "forward and backward passes of all clients, all rounds, without the final fine-tuning",
    "seconds": "training and aggregation in all rounds, without evaluation and without the final fine-tuning",
}


def meanings(metric: MetricInfo) -> dict[str, str]:
    """Return what the columns are, in the words for this metric."""
    higher = metric["higher_is_better"]
    said = {"metric": words(metric), "worst": "lowest" if higher else "highest", "good": "high" if higher else "low"}
    return {k: v.format(**said, beyond="stays below" if higher else "exceeds") for k, v in MEANS.items()}


def column_meanings() -> dict[str, str]:
    """Return the titles of all columns that a table may have, and what each is, in the words for accuracies."""
    titles = {
        **POINTS,
        "worst": "worst client",
        "p10": "10th percentile",
        "weighted": "weighted",
        "global": "global",
        "rounds": f"rounds to {TARGET:g} %",
        "sent": "sent",
        "flops": "FLOPs",
        "seconds": "seconds",
        "busiest": "busiest node",
    }
    return {titles[k]: means for k, means in meanings(ACCURACY).items()}
