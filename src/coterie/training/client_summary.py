"""Who the clients are and how they ended: what ``clients.json`` holds beside the rows of the rounds."""

from torch import Tensor

from ..core.schema import ClientSummary, Graph
from ..core.tensors import Tensors
from ..core.tensors import entries as count
from ..topology.sparse import entries
from .experiment import Experiment

LABELS = 100_000  # numbers of samples a class that are written down at most; the words of a language are more
EDGES = 10_000  # of a graph


def client_summary(experiment: Experiment, accuracies: Tensors | None) -> ClientSummary:
    """After the last round: samples, labels, size of the model and accuracies of every client, and whom it hears."""
    last = max(0, experiment.rounds - 1)
    return {
        "round": experiment.rounds,
        "train_samples": experiment.train.sizes.tolist(),
        "test_samples": experiment.tests.sizes.tolist(),
        "parameters": _parameters(experiment),
        "labels": _labels(experiment),
        "accuracy": {protocol: _plain(each) for protocol, each in (accuracies or {}).items()},
        "graph": _graph(experiment, last),
    }


def _parameters(experiment: Experiment) -> list[int]:
    """[n] how many parameters each client's own model has."""
    modules = experiment.modules()
    sizes = {id(m): count(v for k, v in m.start.items() if k in m.parameters) for m in set(modules)}
    return [sizes[id(m)] for m in modules]


def _labels(experiment: Experiment) -> list[list[int]] | None:
    """[n][classes] how many training samples of which class; None where a sample has no single class, or too many."""
    federation = experiment.federation
    if federation.classes is None or federation.y.dim() != 1 or federation.clients * federation.classes > LABELS:
        return None
    counts: list[list[int]] = federation.class_counts().tolist()
    return counts


def _graph(experiment: Experiment, t: int) -> Graph | None:
    """W of round ``t`` as [sender, receiver, weight] off the diagonal; None where there is a server or nobody."""
    topology, Ws = experiment.program.topology, experiment.round(t).Ws
    if topology is None or not Ws:
        return None
    receivers, senders, weights = entries(Ws[0])
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


def _plain(accuracies: Tensor) -> list[float | None]:
    """NaN, of a client without test samples, is no JSON."""
    return [None if value != value else value for value in accuracies.tolist()]
