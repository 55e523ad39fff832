"""What is measured: metrics with their protocol, consensus, cost."""

from ..core.schema import FINETUNED, VALIDATION
from .convergence import CHANGES, MEASURES, check_measure, record_columns
from .evaluate import (
    CommonModel,
    averaged,
    consensus_distance,
    global_accuracy,
    measure_common,
    metrics_for,
    personal_values,
)
from .metric import BUILT_IN, Metric, Metrics, metric
from .rows import PROTOCOLS, metric_row, rounds_to, summarize

__all__ = [
    "BUILT_IN",
    "CHANGES",
    "FINETUNED",
    "MEASURES",
    "PROTOCOLS",
    "VALIDATION",
    "CommonModel",
    "Metric",
    "Metrics",
    "averaged",
    "check_measure",
    "consensus_distance",
    "global_accuracy",
    "measure_common",
    "metric",
    "metric_row",
    "metrics_for",
    "personal_values",
    "record_columns",
    "rounds_to",
    "summarize",
]
