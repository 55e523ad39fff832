"""What is measured: accuracies with their protocol, consensus, cost."""

from .accuracy import Right, global_accuracy, personal_accuracies, right_of_one
from .consensus import averaged, consensus_distance
from .convergence import MEASURES, check_measure
from .report import ACCURACIES, FINETUNED, accuracy_row, rounds_to, summarise, unmeasured

__all__ = [
    "ACCURACIES",
    "FINETUNED",
    "MEASURES",
    "Right",
    "accuracy_row",
    "averaged",
    "check_measure",
    "consensus_distance",
    "global_accuracy",
    "personal_accuracies",
    "right_of_one",
    "rounds_to",
    "summarise",
    "unmeasured",
]
