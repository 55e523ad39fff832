"""DFedSAM: sharpness-aware steps between peers."""

from typing import Annotated, Unpack

from ..local.corrections import sam as sharpness_aware
from ..local.steps import Phase
from .method import Options, Participation, Problem, Program, Range, Rate, SamForm, TopologyLike, Training, method
from .options import FLAT
from .peers import Peers, decentralized


@method(FLAT, theorem="sam", presets={"papers": {"topology": "random:10"}})
def dfedsam(
    p: Problem,
    t: Training,
    *,
    rho: Rate = 0.01,
    sam: SamForm = "plain",
    sam_eta: Rate = 0.0,
    topology: TopologyLike = "random:10",
    participation: Participation = 1.0,
    gossip_steps: Annotated[int, Range(1, 1000)] = 1,
    **options: Unpack[Options],
) -> Program[Peers]:
    """DFedSAM: sharpness-aware steps, then one exchange of everything.

    z_i <- local(x_i) along grad F_i(x + rho g/|g|);   x_i <- sum_j W[i, j] z_j

    >>> dfedsam(topology="ring").settings["rho"]
    0.01

    Reference: DFedSAM, Algorithm 1.
    Differs from the paper in: nothing we know of. No momentum and weight decay 5e-4 are its appendix's; it names no
    clipping, and there is none. rho is the radius itself, as in its listing; its equation 2 bounds the square by rho.
    We know of no public code of its own; a third party's has momentum 0.9 and no weight decay.
    """
    phase = Phase(p.parameters, t.amount, t.lr, sharpness_aware(rho, sam, sam_eta))
    return decentralized(p, [phase], t, topology, p.names, participation, gossip_steps)
