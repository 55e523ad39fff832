"""What is measured: accuracies with their protocol, consensus, cost."""

from .accuracy import Right, global_accuracy, personal_accuracies, right_of_one
from .consensus import averaged, consensus_distance
from .convergence import CHANGES, MEASURES, check_measure, recorded
from .report import ACCURACIES, FINETUNED, accuracy_row, rounds_to, summarize, unmeasured

__all__ = [
    "ACCURACIES",
    "CHANGES",
    "FINETUNED",
    "MEASURES",
    "Right",
    "accuracy_row",
    "averaged",
    "check_measure",
    "consensus_distance",
    "global_accuracy",
    "personal_accuracies",
    "recorded",
    "right_of_one",
    "rounds_to",
    "summarize",
    "unmeasured",
]
