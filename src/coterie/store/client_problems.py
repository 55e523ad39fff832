"""What no type tells of clients.json: as many entries as clients, and all that every run has."""

from collections.abc import Iterator, Sequence
from typing import get_type_hints

from ..core.schema import ClientSummary, Config
from ..core.units import metrics_of, of_clients

SOME = {"names", "newcomers", "rounds", "accuracy", "resampled", "right", "personal_parameters"}  # not of all runs


def client_problems(summary: ClientSummary, config: Config) -> Iterator[str]:
    """Yield what no type tells: a key that is missing, a client that is missing or one too many."""
    clients, metrics = config["data"]["clients"], metrics_of(config)
    yield from (f"{key} is missing" for key in get_type_hints(ClientSummary).keys() - SOME if key not in summary)
    each: dict[str, Sequence[object] | None] = {
        "names": summary.get("names"),
        "rounds": summary.get("rounds"),
        "resampled": summary.get("resampled"),
        "right": summary.get("right"),
        "personal_parameters": summary.get("personal_parameters"),
        **{key: summary[key] for key in ("train_samples", "test_samples", "parameters", "labels")},
        **{f"{m['column']}.{protocol}": v for m in metrics for protocol, v in of_clients(summary, m).items()},
    }
    for key, values in each.items():
        if values is not None and len(values) != clients:
            yield f"{key} has {len(values)} entries for {clients} clients"
    if [len(text) for text in summary.get("right", [])] not in ([], summary["test_samples"]):
        yield "right has other numbers of answers than test_samples"
    edges = None if summary["graph"] is None else summary["graph"]["edges"]
    if any(not 0 <= end < clients for edge in edges or () for end in edge[:2]):
        yield f"graph.edges has other clients than 0 to {clients - 1}"
