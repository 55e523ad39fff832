"""What is refused of an exchange: rules, graphs and absences that do not fit together or change nothing."""

from typing import TYPE_CHECKING

from ..algorithms.options import Training, members
from ..core.errors import UserError
from ..topology import Topology
from ..topology.sparse import entries

if TYPE_CHECKING:
    from .experiment import Experiment


def check_exchange(e: "Experiment") -> None:
    """Refuse what does not fit together between clients, or changes nothing there."""
    for name in ("quantize", "robust"):
        if getattr(e.program.training, name) is not None and not e.program.message(e.model.start):
            raise UserError(f"{name} changes nothing, because {e.algorithm.name} sends nothing: leave it out")
    if e.program.gossip_steps > 1 and not e.program.message(e.model.start):
        raise UserError(f"gossip_steps changes nothing, because {e.algorithm.name} sends nothing: leave it out")
    graph = e.program.topology
    if e.program.rule is not None and graph is not None:
        _check_compared(graph, e.program.training)
    _check_company(e)
    if e.program.fresh_graph and graph is not None and graph.fixed:
        raise UserError(f"fresh_graph changes nothing, because {graph.name} is always the same: leave it out")
    for name, likely in e.settings.lost.items():
        _check_lost(e, name, likely)


def _check_company(e: "Experiment") -> None:
    """Refuse rounds of a single client where clients mix with each other: 1 is more often meant as all of them."""
    wanted, clients = e.program.participation, e.federation.clients
    if e.program.topology is not None and members(wanted, clients) == 1 < clients:
        raise UserError(
            f"participation={wanted} is one client a round, which has nobody to mix with: write participation=1.0 for "
            "all clients, or a count of 2 or more"
        )


def _check_compared(graph: Topology, t: Training) -> None:
    """Refuse a rule against liars where nobody hears two others: of two models none can be told to be the lie."""
    receivers, senders, _ = entries(graph(0))
    others = receivers[receivers != senders]
    if not len(others) or int(others.bincount().max()) < 2:
        raise UserError(
            f"robust={t.robust} compares what several others send, and with {graph.name} everybody hears one at most: "
            "choose a graph of more neighbors, or leave robust out"
        )


def _check_lost(e: "Experiment", name: str, likely: float) -> None:
    if likely and e.program.topology is None and not e.program.message(e.model.start):
        raise UserError(f"{name} changes nothing, because {e.algorithm.name} sends nothing: leave it out")
    if likely and e.program.topology is None:
        instead = "lower its participation" if "participation" in e.algorithm.settings else "give it a topology"
        raise UserError(
            f"{name}={likely} is for clients that mix with each other, {e.algorithm.name} has a server: "
            f"{instead} instead"
        )
