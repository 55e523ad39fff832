"""What is known of every client, at the end of a run and round by round, as pandas DataFrames."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, unknown
from ..core.extras import frames
from ..core.schema import ClientSummary, Config, Row
from ..core.units import client_names, metrics_of, of_clients

if TYPE_CHECKING:
    import pandas

COUNTS = ("train_samples", "test_samples", "parameters", "personal_parameters")


def client_table(config: Config, summary: ClientSummary) -> "pandas.DataFrame":
    """Return one row per client by its name, newcomers last; what is not known of somebody is NaN."""
    pandas = frames("run.client_summary, which is a dictionary of lists")
    known: Any = summary
    found: dict[str, Any] = {key: known[key] for key in COUNTS if known.get(key)}
    for metric in metrics_of(config):
        for protocol, values in of_clients(summary, metric).items():
            found[f"{metric['column']}_{protocol}"] = [float("nan") if v is None else v for v in values]
    table = pandas.DataFrame(found, index=pandas.Index(client_names(summary), name="client"))
    table["newcomer"] = False
    later = summary.get("newcomers")
    if later is None:
        return table
    column = metrics_of(config)[0]["column"]
    some = {
        "train_samples": later["train_samples"],
        "test_samples": later["test_samples"],
        f"{column}_received": later["received"],
        f"{column}_personalized": later["personalized"],
        "newcomer": True,
    }
    names = later["names"] or [f"newcomer {i}" for i in range(len(later["train_samples"]))]
    return pandas.concat([table, pandas.DataFrame(some, index=pandas.Index(names, name="client"))])


def client_history(
    config: Config, history: Sequence[Row], summary: ClientSummary, protocol: str, metric: str | None
) -> "pandas.DataFrame":
    """Return a metric of every client, one row per evaluated round, one column per client."""
    pandas = frames("run.history, whose rows have clients")
    kept = {row["round"]: row["clients"] for row in history if "clients" in row}
    if not kept:
        raise UserError("nothing was kept of single clients in every round: train with record=['clients']")
    known = next(iter(kept.values()))
    column = metric or metrics_of(config)[0]["column"]
    if column not in known:
        raise unknown("metric", column, known)
    if protocol not in known[column]:
        raise unknown("protocol", protocol, known[column])
    values = [each[column][protocol] for each in kept.values()]
    return pandas.DataFrame(values, pandas.Index(list(kept), name="round"), client_names(summary), dtype=float)
