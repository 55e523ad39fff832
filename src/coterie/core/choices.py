"""The names that options of a run take, and what each stands for, as the helps say it without torch.

The tables of functions by these names are in the rooms that have them; the tests hold their keys to these.
"""

from collections.abc import Mapping

ENGINES = {
    "auto": "the one that suits",
    "serial": "one after another",
    "vectorized": "side by side; vectorized:16 is 16 at once",
    "graphed": "CUDA graphs, on a GPU",
    "ray": "a cluster",
}
INITS = {"common": "one model for all", "per-client": "draws of their own"}
LOSS_NAMES = {
    "cross-entropy": "classes, tokens, pixels",
    "bce": "several labels, masks",
    "mse": "numbers",
    "mae": "numbers",
    "huber": "numbers",
    "dice": "pixels, masks",
}
METRICS = {
    "accuracy": "the share of right answers",
    "balanced-accuracy": "the share of right answers of each class, mean over the classes that the samples have",
    "macro-f1": "F1 of each class, mean over those that are answered or true",
    "auroc": "the area under the ROC curve, one class against the rest, mean over the classes that have samples on "
    "both sides",
    "average-precision": "the area under precision over recall, one class against the rest, mean as that of auroc",
    "mse": "the mean squared error",
    "mae": "the mean absolute error",
    "r2": "1 - squared errors / squared distances to the mean, mean over the numbers of a target",
    "perplexity": "exp of the mean cross-entropy",
    "dice": "overlap over all pixels, 2 both / (answered + true), mean over the classes that are answered or true",
    "iou": "overlap over all pixels, both / (answered or true), mean over the classes that are answered or true",
}


def explained(table: Mapping[str, str]) -> str:
    """Write names, each with what it stands for.

    >>> explained(INITS)
    'common (one model for all), per-client (draws of their own)'
    """
    return ", ".join(f"{name} ({what})" for name, what in table.items())
