"""DFedSAM-MGS: DFedSAM with several exchanges in every round."""

from typing import Annotated, Unpack

from ..core.errors import UserError
from ..local.corrections import sam as sharpness_aware
from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, Range, Rate, SamForm, TopologyLike, Training, method
from .options import FLAT
from .peers import Peers, decentralized


def _check(fresh_graph: bool, gossip_steps: int) -> None:
    if fresh_graph and gossip_steps == 1:
        raise UserError("fresh_graph is for several gossip steps: raise gossip_steps, or leave it out")


@method(FLAT, check=_check, theorem="sam", presets={"papers": {"topology": "random:10"}})
def dfedsam_mgs(
    p: Problem,
    t: Training,
    *,
    rho: Rate = 0.01,
    sam: SamForm = "plain",
    sam_eta: Rate = 0.0,
    topology: TopologyLike = "random:10",
    participation: Participation = 1.0,
    gossip_steps: Annotated[int, Range(1, 1000)] = 4,
    fresh_graph: bool = False,
    **options: Unpack[Options],
) -> Program[Peers]:
    """DFedSAM-MGS: DFedSAM with several exchanges in every round, over the same graph or each over one of its own.

    z_i <- local(x_i) along grad F_i(x + rho g/|g|);   x <- W^Q z,  Q = gossip_steps
    fresh_graph:   x <- W_Q ... W_1 z

    Args:
        fresh_graph: Whether each of them has a graph of its own.

    >>> dfedsam_mgs(topology="ring").settings["gossip_steps"]
    4

    Reference: DFedSAM, equation 5.
    Differs from the paper in: the number of exchanges, where its listing contradicts itself: read line by line it
    makes Q + 1, equation 5 has Q, and so has this. Q = 4 is that of its Section 5.2; its Appendix B.3 prints 1. Its
    Appendix B.4, where 10 Q clients are drawn for Q steps, is topology="clique:10,turns=4", fresh_graph=True.
    """
    phase = Phase(p.parameters, t.amount, t.lr, sharpness_aware(rho, sam, sam_eta))
    return decentralized(p, [phase], t, topology, p.names, participation, gossip_steps, fresh_graph)
