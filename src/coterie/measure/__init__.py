"""What is measured: accuracies with their protocol, consensus, cost."""

from .convergence import CHANGES, MEASURES, check_measure, record_columns
from .evaluate import (
    Correct,
    averaged,
    consensus_distance,
    count_correct,
    global_accuracy,
    personal_accuracies,
)
from .rows import ACCURACIES, FINETUNED, accuracy_row, rounds_to, summarize, unmeasured

__all__ = [
    "ACCURACIES",
    "CHANGES",
    "FINETUNED",
    "MEASURES",
    "Correct",
    "accuracy_row",
    "averaged",
    "check_measure",
    "consensus_distance",
    "count_correct",
    "global_accuracy",
    "personal_accuracies",
    "record_columns",
    "rounds_to",
    "summarize",
    "unmeasured",
]
