"""What ``clients.json`` says of every client after the last round."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..core.schema import ClientSummary, Graph
from ..core.tensors import Tensors
from ..core.tensors import entries as count
from ..measure.rows import client_columns
from ..topology import Topology
from ..topology.sparse import entries
from .client import Client
from .experiment import Experiment

LABELS = 100_000  # the most counts of samples per class that are written; the words of a language are more
EDGES = 10_000  # the most edges of a graph that are written


def client_summary(
    experiment: Experiment, values: Tensors | None, rounds: int, clients: Sequence[Client], taken: Sequence[int] = ()
) -> ClientSummary:
    """Return samples, labels, model sizes and metrics of all clients after the last round, and who hears whom.

    ``clients``: what each ends with; ``taken``: after which round, where that is not the last of ``rounds``.
    """
    names = list(experiment.federation.names)
    sizes = [(_parameters(client), _own_parameters(client)) for client in clients]
    found: Any = {  # with keys that have the names of metrics, among those of a ClientSummary
        "round": rounds,
        "train_samples": experiment.train.sizes.tolist(),
        "test_samples": experiment.tests.sizes.tolist(),
        "parameters": [whole for whole, _ in sizes],
        "personal_parameters": [own for _, own in sizes],
        "labels": _labels(experiment),
        **client_columns(values or {}, experiment.metrics.infos),
        "graph": _graph(experiment, rounds - 1),
    }
    few = {"names": names, "rounds": list(taken)}
    summary: ClientSummary = found | {key: each for key, each in few.items() if each}
    return summary


def _own_parameters(client: Client) -> int:
    """Return how many parameters of a client's model are its own."""
    trained = () if client.model is None else client.model.parameters
    return count(v for k, v in client.personal.items() if k in trained)


def _parameters(client: Client) -> int:
    """Return how many parameters of a client's model are trained."""
    trained = () if client.model is None else client.model.parameters
    return count(v for k, v in (client.shared | client.personal).items() if k in trained)


def _labels(experiment: Experiment) -> list[list[int]] | None:
    """Return [n][classes] training samples; None where a sample has no single class, or there are too many."""
    federation = experiment.federation
    if federation.classes is None or federation.y.dim() != 1 or federation.clients * federation.classes > LABELS:
        return None
    counts: list[list[int]] = federation.class_counts().tolist()
    return counts


def _graph(experiment: Experiment, t: int) -> Graph | None:
    """Return who hears whom in round ``t``; None with a server, without links, or where training decides it."""
    topology, Ws = experiment.program.topology, experiment.round(t).Ws
    return None if topology is None or topology.uses or not Ws else graph_of(topology, Ws[0], t)


def graph_of(topology: Topology, W: Tensor, t: int) -> Graph:
    """Return W of round ``t`` as [sender, receiver, weight] off the diagonal."""
    receivers, senders, weights = entries(W)
    off = receivers != senders
    messages = int(off.sum())
    edges = zip(*(v[off].tolist() for v in (senders, receivers, weights)), strict=True) if messages <= EDGES else None
    return {
        "name": topology.name,
        "fixed": topology.fixed,
        "stochastic": topology.stochastic,
        "round": t + 1,
        "messages": messages,
        "edges": None if edges is None else [list(edge) for edge in edges],
    }
