"""Runs of two methods with metrics over resampled test samples."""

from typing import Any

from coterie.core.schema import ACCURACY
from coterie.measure.compare import MethodRuns, RunData


def told(values: list[float], drawn: list[list[float | None]], method: str, **changed: Any) -> MethodRuns:
    config: Any = {"method": method, "seed": 0, "fingerprints": {"data": "d"}, "data": {"clients": len(values)}}
    summary: Any = {"bytes_sent": 0 if method == "local" else 8, "consensus_distance": None, "flops": 1e9}
    own = [5 if method == "local" else 2] * len(values)
    clients: Any = {changed.get("metric", ACCURACY)["column"]: {"after_mix": values}, "resampled": drawn}
    clients |= {"parameters": [5] * len(values), "personal_parameters": own, "train_samples": [9] * len(values)}
    config |= {"metrics": [changed.get("metric", ACCURACY)]} | changed.get("config", {})
    return MethodRuns(method, [RunData(config, [], summary, clients | changed.get("clients", {}))])  # type: ignore[typeddict-item]
