"""Metrics as the files of a run have them, and in words: names as people write them, numbers in their unit."""

from collections.abc import Callable
from typing import Any

from .clients import client_name
from .schema import ACCURACY, ClientSummary, Config, MetricInfo, MetricSummary, Summary

_WORDS = {
    "balanced-accuracy": "balanced accuracy",
    "macro-f1": "macro F1",
    "auroc": "AUROC",
    "average-precision": "average precision",
    "mse": "MSE",
    "mae": "MAE",
    "r2": "R2",
    "dice": "Dice",
    "iou": "IoU",
}


def words(metric: MetricInfo) -> str:
    """Return the name of a metric as sentences have it."""
    return _WORDS.get(metric["name"], metric["column"])


def unit(metric: MetricInfo) -> str:
    """Return the unit that a metric is shown in: % for shares of right answers, none for all others."""
    return "%" if metric["percent"] else ""


def scale(metric: MetricInfo) -> float:
    """Return what a value is multiplied with to have that unit."""
    return 100.0 if metric["percent"] else 1.0


def written(metric: MetricInfo) -> Callable[[float], str]:
    """Return how numbers are written that have the metric's unit already.

    >>> [written({**ACCURACY, "percent": percent})(84.523) for percent in (True, False)]
    ['84.5', '84.52']
    """
    if metric["percent"]:
        return "{:,.1f}".format
    return lambda value: f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:#.4g}".rstrip(".")


def digits(metric: MetricInfo, value: float) -> str:
    """Write a value in its unit, without it.

    >>> digits(ACCURACY, 0.845), digits({**ACCURACY, "percent": False}, 23456.7)
    ('84.5', '23,457')
    """
    return written(metric)(scale(metric) * value)


def with_unit(metric: MetricInfo, value: float) -> str:
    """Write a value with its unit."""
    return f"{digits(metric, value)} {unit(metric)}".rstrip()


def personal_summary(summary: Summary, metric: MetricInfo) -> dict[str, MetricSummary | None]:
    """Return what a summary says of a personal metric, by protocol."""
    found: Any = summary.get(f"personal_{metric['column']}")
    return found or {}


def metrics_of(config: Config) -> list[MetricInfo]:
    """Return what a run measures; the first one decides. A run of a task that no metric knows has none."""
    return config.get("metrics", [ACCURACY])


def of_clients(summary: ClientSummary, metric: MetricInfo) -> dict[str, list[float | None]]:
    """Return what clients.json says of a metric: every client's value, by protocol."""
    found: Any = summary.get(metric["column"])
    return found or {}


def client_names(summary: ClientSummary) -> list[str]:
    """Return what the clients are called: by their sites, or by their numbers.

    >>> client_names({"train_samples": [8, 9]})
    ['client 0', 'client 1']
    """
    return [client_name(summary.get("names", ()), i) for i in range(len(summary.get("train_samples", ())))]
