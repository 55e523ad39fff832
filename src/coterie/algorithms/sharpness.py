"""Sharpness-aware methods: DFedSAM, DFedSAM-MGS and DFedSalt between peers, FedSAM around a server."""

from typing import Unpack

from ..directions import sam
from ..errors import RequestError
from ..local import Phase
from ..split import Patterns
from ..topology import Topology
from .base import Algorithm, Problem, Program
from .dfedalt import alternating, personal_phase
from .families import Peers, Server, decentralised, federated
from .options import SAM_PAPER, Options, Training, check_choice, check_range
from .server import check_server

FLAT = SAM_PAPER._replace(clip=None)  # DFedSAM clips nothing


def ascent(phase: Phase, rho: float) -> Phase:
    """The phase with sharpness-aware steps; rho = 0 leaves it as it is."""
    return phase._replace(direction=sam(rho), gradients=2) if rho else phase


def dfedsam(
    *, rho: float = 0.01, topology: str | Topology = "random:10", gossip_steps: int = 1, **options: Unpack[Options]
) -> Algorithm:
    """DFedSAM: sharpness-aware steps, then one exchange of everything.

    z_i <- local(x_i) along grad F_i(x + rho g/|g|);   x_i <- sum_j W[i, j] z_j

    >>> dfedsam(topology="ring").settings["rho"]
    0.01

    Reference: DFedSAM, Algorithm 1.
    Differs from the paper in: nothing we know of. No momentum and weight decay 5e-4 are its appendix's; it names no
    clipping, and there is none. rho is the radius itself, as in its listing; its equation 2 bounds the square by rho.
    We know of no public code of its own; a third party's has momentum 0.9 and no weight decay.
    """
    return _dfedsam("dfedsam", rho, topology, gossip_steps, FLAT.given(options))


def dfedsam_mgs(
    *,
    rho: float = 0.01,
    topology: str | Topology = "random:10",
    gossip_steps: int = 4,
    fresh_graph: bool = False,
    **options: Unpack[Options],
) -> Algorithm:
    """DFedSAM-MGS: DFedSAM with several exchanges in every round, over the same graph or each over one of its own.

    z_i <- local(x_i) along grad F_i(x + rho g/|g|);   x <- W^Q z,  Q = gossip_steps
    fresh_graph:   x <- W_Q ... W_1 z

    >>> dfedsam_mgs(topology="ring").settings["gossip_steps"]
    4

    Reference: DFedSAM, equation 5.
    Differs from the paper in: the number of exchanges, where its listing contradicts itself: read line by line it
    makes Q + 1, equation 5 has Q, and so has this. Q = 4 is that of its Section 5.2; its Appendix B.3 prints 1. Its
    Appendix B.4, where 10 Q clients are drawn for Q steps, is topology="clique:10,turns=4", fresh_graph=True.
    """
    if fresh_graph and gossip_steps == 1:
        raise RequestError("fresh_graph is for several gossip steps: raise gossip_steps, or leave it out")
    base = _dfedsam("dfedsam-mgs", rho, topology, gossip_steps, FLAT.given(options), fresh_graph)
    return Algorithm(base.name, {**base.settings, "fresh_graph": fresh_graph}, base.bind)


def _dfedsam(
    name: str, rho: float, topology: str | Topology, gossip_steps: int, t: Training, fresh_graph: bool = False
) -> Algorithm:
    check_range("rho", rho, 0, float("inf"))
    check_range("gossip_steps", gossip_steps, 1, float("inf"))

    def bind(p: Problem) -> Program[Peers]:
        phase = ascent(Phase(p.parameters, t.amount, t.lr), rho)
        return decentralised(p, [phase], t, topology, p.names, gossip_steps, fresh_graph)

    settings = {"rho": rho, "topology": topology, "gossip_steps": gossip_steps, **t._asdict()}
    return Algorithm(name, settings, bind)


def fedsam(
    *,
    rho: float = 0.05,
    participation: float | int = 0.1,
    weighting: str = "size",
    outer_lr: float = 1.0,
    **options: Unpack[Options],
) -> Algorithm:
    """FedSAM: FedAvg with sharpness-aware steps.

    x_i <- local(x) along grad F_i(x + rho g/|g|) for i in S;   x <- x + outer_lr (sum_S q_i x_i - x)

    >>> fedsam().settings["weight_decay"]
    0.0

    Reference: Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", 2022.
    Differs from the paper in: the constants, which are those of DFedSAM's experiments (no momentum, no weight
    decay, no clipping, rates that decay by 0.998 a round).
    """
    check_server(participation, weighting, outer_lr)
    check_range("rho", rho, 0, float("inf"))
    t = FLAT._replace(weight_decay=0.0).given(options)

    def bind(p: Problem) -> Program[Server]:
        phase = ascent(Phase(p.parameters, t.amount, t.lr), rho)
        return federated(p, [phase], t, p.names, participation, weighting, outer_lr)

    server = {"participation": participation, "weighting": weighting, "outer_lr": outer_lr}
    return Algorithm("fedsam", {"rho": rho, **server, **t._asdict()}, bind)


def dfedsalt(
    *,
    rho: float = 0.7,
    personal_rho: float | None = None,
    sam_on: str = "shared",
    personal: Patterns = "head",
    topology: str | Topology = "random-pull:10",
    personal_lr: float = 0.001,
    personal_epochs: int | None = None,
    personal_steps: int | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """DFedSalt: DFedAlt with sharpness-aware steps on the part that is mixed.

    v_i <- local(v; u_i held);   z_i <- local(u; v_i held) along grad_u F_i(u + rho g_u/|g_u|, v_i);
    u_i <- sum_j W[i, j] z_j

    sam_on: "shared", "personal" or "both"; each phase perturbs only the part it trains; personal_rho: the radius of the
    personal phase, None: rho.

    >>> dfedsalt(topology="ring", sam_on="both").settings["sam_on"]
    'both'

    Reference: DFedAlt/DFedSalt, Algorithm 1, option II, and Table 3 for ``sam_on``.
    Differs from the paper in: what dfedalt differs in. Line 19 of its listing prints another gradient than its
    text; taken is the text's, at (u + rho g_u/|g_u|, v_i). Momentum acts on that gradient and weight decay at the
    point before the ascent, as in the usual code for SAM. We know of no public code.
    """
    check_range("rho", rho, 0, float("inf"))
    check_range("personal_rho", personal_rho, 0, float("inf"))
    check_choice("sam_on", sam_on, ("shared", "personal", "both"))
    if personal_rho is not None and sam_on == "shared":
        raise RequestError("personal_rho is the radius of the personal phase: add sam_on=both, or leave it out")
    own = personal_phase(personal_lr, personal_epochs, personal_steps, usual=1)
    t = Training().given(options)
    personal_radius = 0.0 if sam_on == "shared" else rho if personal_rho is None else personal_rho

    def salted(first: Phase, second: Phase) -> list[Phase]:
        return [
            ascent(first, personal_radius),
            ascent(second, rho if sam_on != "personal" else 0),
        ]

    base = alternating("dfedsalt", personal, topology, own, t, salted)
    return Algorithm(
        base.name, {"rho": rho, "personal_rho": personal_rho, "sam_on": sam_on, **base.settings}, base.bind
    )
