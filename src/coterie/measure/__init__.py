"""What is measured: accuracies with their protocol, consensus, cost."""

from .accuracy import global_accuracy, personal_accuracies
from .consensus import averaged, consensus_distance
from .report import ACCURACIES, accuracy_row, summarise

__all__ = [
    "ACCURACIES",
    "accuracy_row",
    "averaged",
    "consensus_distance",
    "global_accuracy",
    "personal_accuracies",
    "summarise",
]
