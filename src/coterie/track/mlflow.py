"""MLflow: a server, or a file on this machine."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.arguments import checked_class
from ..core.errors import UserError
from ..core.extras import import_extra
from ..core.schema import Config, Row, Summary
from .base import dotted, mark, name_of, reason, remember, scalars

LONGEST = 500  # characters of a parameter that every server takes
AT_ONCE = 100  # parameters per request
SUMMARY = "summary."


@checked_class("class")
class MLflow:
    """Logs the configuration as parameters and every number of every round as a metric.

    uri: else MLFLOW_TRACKING_URI, else what MLflow takes by itself; experiment: else MLFLOW_EXPERIMENT_NAME, else
    "coterie".
    """

    name = "mlflow"

    def __init__(self, experiment: str | None = None, uri: str | None = None) -> None:
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # of its own it keeps a round waiting for minutes
        mlflow = import_extra("mlflow", self.name, "this tracker")
        uri = uri or mlflow.get_tracking_uri()
        try:
            self.client = mlflow.MlflowClient(tracking_uri=uri)
            self.experiment = self._experiment(experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "coterie"))
        except Exception as error:
            raise UserError(
                f"MLflow cannot be used at {uri} ({reason(error)}): set MLFLOW_TRACKING_URI to a server that answers "
                "or to sqlite:///FILE, or leave mlflow out"
            ) from error
        self.uri, self.entities = uri, import_extra("mlflow.entities", self.name, "this tracker")
        self.run, self.last, self.summed = "", 0, False

    def begin(self, config: Config, folder: Path | None, history: Sequence[Row]) -> str:
        """Go on with the run of this folder where the server has it; what it lacks of the history is added."""
        known = mark(folder, self.name)
        if known is None or not self._found(known):
            self._create(config, name_of(config, folder))
            remember(folder, self.name, self.run)
        for row in history:
            self.round(row)
        return f"run {self.run} at {self.uri}"

    def round(self, row: Row) -> None:
        """Log a round, unless the server has it already."""
        if row["round"] > self.last:
            self._log(scalars(row), row["round"])
            self.last = row["round"]

    def end(self, summary: Summary | None) -> None:
        """Log what the run comes to, once."""
        if summary is not None and not self.summed:
            self._log({SUMMARY + k: v for k, v in scalars(dict(dotted(summary))).items()}, self.last)
        self.client.set_terminated(self.run, "KILLED" if summary is None else "FINISHED")

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return str(self.client.create_experiment(name) if found is None else found.experiment_id)

    def _found(self, known: str) -> bool:
        """Take up a run of this server; return whether it has it."""
        try:
            data = self.client.get_run(known).data
        except Exception as error:
            if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        steps = [m.step for m in self.client.get_metric_history(known, "seconds")]  # every round has it
        self.run, self.last = known, max(steps, default=0)
        self.summed = any(name.startswith(SUMMARY) for name in data.metrics)
        self.client.update_run(known, status="RUNNING")
        return True

    def _create(self, config: Config, name: str) -> None:
        run = self.client.create_run(self.experiment, run_name=name, tags={"mlflow.source.name": "coterie"})
        self.run, self.last, self.summed = run.info.run_id, 0, False
        params = [self.entities.Param(k, str(v)[:LONGEST]) for k, v in dotted(config)]
        for first in range(0, len(params), AT_ONCE):
            self.client.log_batch(self.run, params=params[first : first + AT_ONCE])

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self.client.log_batch(self.run, [self.entities.Metric(k, v, now, step) for k, v in values.items()])
