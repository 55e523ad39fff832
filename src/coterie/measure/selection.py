"""Which round of a run is reported and deployed: the last, or the best on validation samples, or on test samples.

The best of all rounds on the test samples themselves is what several papers print. It is more than the same models
would have on other samples, so whatever shows it says that it is optimistic.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from ..core.schema import FINETUNED, VALIDATION, Config, Row, Select, number, personal_column
from ..core.units import metrics_of

LAST: Select = "last"
BEST_VALIDATION: Select = "best-validation"
PER_CLIENT: Select = "best-validation-per-client"
BEST_TEST: Select = "best-test"
WORDS: dict[Select, str] = {
    LAST: "of the last evaluated round",
    BEST_VALIDATION: "of the round whose models are best on the clients' validation samples",
    PER_CLIENT: "of each client's own round, the one whose model is best on the client's own validation samples",
    BEST_TEST: "of the round that is best on the test samples themselves",
}
OPTIMISTIC = "Optimistic: with best-test the round is chosen on the very test samples that measure it."

N = TypeVar("N", float, Tensor)


def goodness(value: N, higher_is_better: bool) -> N:
    """Return a number that is higher for what is better."""
    return value if higher_is_better else -value


def rule_of(config: Mapping[str, Any]) -> Select:
    """Return how the reported round of a run is chosen."""
    rule: Select = config.get("select", LAST)
    return rule


def patience_of(config: Mapping[str, Any]) -> int | None:
    """Return after how many evaluations without improvement a run stops; None: it has all rounds."""
    return config.get("patience")


def chooses(config: Mapping[str, Any]) -> bool:
    """Return whether evaluations choose the round that is reported, or end the run."""
    return rule_of(config) != LAST or may_stop_early(config)


def by_validation(config: Mapping[str, Any]) -> list[str]:
    """Return the options of a configuration that look at validation samples, as they are written."""
    rule, limits = rule_of(config), {"patience": patience_of(config), "stop_at": config.get("stop_at")}
    chosen = [f"select={rule}"] if rule in (BEST_VALIDATION, PER_CLIENT) else []
    return chosen + [f"{name}={limit}" for name, limit in limits.items() if limit is not None]


def validation_column(config: Config) -> str:
    """Return the column that is chosen by: the first metric on the clients' validation samples."""
    return personal_column(metrics_of(config)[0], VALIDATION)


def higher_is_better(config: Config) -> bool:
    """Return which of two values of the first metric is the better one."""
    return metrics_of(config)[0]["higher_is_better"]


def _score_column(config: Config, row: Row) -> str:
    """Return the column that a rule looks at: on test samples that of the models that clients would deploy."""
    if rule_of(config) != BEST_TEST:
        return validation_column(config)
    metric = metrics_of(config)[0]
    tuned = personal_column(metric, FINETUNED)
    return tuned if tuned in row else personal_column(metric, "after_mix")


def _score(config: Config, row: Row, column: str) -> float | None:
    """Return what the models of a round are worth, higher is better, to 12 digits.

    A mean over clients has other last bits where other clients make it the same number.
    """
    value = number(row, column)
    return None if value is None else goodness(float(f"{value:.12g}"), higher_is_better(config))


def scored(config: Config, history: Sequence[Row]) -> list[tuple[float, Row]]:
    """Return the evaluated rounds, each with what its models are worth, higher is better."""
    found = ((_score(config, row, _score_column(config, row)), row) for row in history)
    return [(score, row) for score, row in found if score is not None]


def reported(config: Config, history: Sequence[Row]) -> Row | None:
    """Return the row of the round whose models count for all clients, the first of equally good ones.

    None: it is the last evaluated one, because the rule says so or nothing was scored.
    """
    rows = scored(config, history) if rule_of(config) not in (LAST, PER_CLIENT) else []
    return max(rows, key=lambda each: each[0])[1] if rows else None


def stalled(config: Config, history: Sequence[Row]) -> int:
    """Return how many evaluations ago the models were best on validation samples, on which alone a run stops early."""
    column = validation_column(config)
    scores = [score for row in history if (score := _score(config, row, column)) is not None]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0


def may_stop_early(config: Mapping[str, Any]) -> bool:
    """Return whether a run may end with fewer rounds than its configuration says."""
    return patience_of(config) is not None or config.get("stop_at") is not None


def stops_early(config: Config, history: Sequence[Row]) -> bool:
    """Return whether a run stops early after the last row."""
    patience = patience_of(config)
    return _good_enough(config, history) or (patience is not None and stalled(config, history) >= patience)


def why_stopped(config: Config, history: Sequence[Row]) -> str:
    """Say why a run has stopped early after the last row."""
    stopped = f"stopped after round {history[-1]['round']}:"
    if _good_enough(config, history):
        return f"{stopped} the models are as good on validation samples as stop_at={config['stop_at']:g} asks for"
    return f"{stopped} {patience_of(config)} evaluations were no better on validation"


def _good_enough(config: Config, history: Sequence[Row]) -> bool:
    """Return whether an evaluation has reached the value that ends a run."""
    limit = config.get("stop_at")
    if limit is None:
        return False
    metric = metrics_of(config)[0]
    least = goodness(limit / (100 if metric["percent"] else 1), metric["higher_is_better"])
    scores = (_score(config, row, validation_column(config)) for row in history)
    return any(score is not None and score >= least for score in scores)
