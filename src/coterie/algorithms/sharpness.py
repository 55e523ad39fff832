"""Sharpness-aware methods: DFedSAM, DFedSAM-MGS and DFedSalt between peers, FedSAM around a server."""

from typing import Unpack

from ..directions import sam
from ..local import Phase
from ..split import Patterns
from ..topology import Topology
from .base import Algorithm, Problem, Program
from .dfedalt import alternating
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
    """
    return _dfedsam("dfedsam", rho, topology, gossip_steps, FLAT.given(options))


def dfedsam_mgs(
    *, rho: float = 0.01, topology: str | Topology = "random:10", gossip_steps: int = 4, **options: Unpack[Options]
) -> Algorithm:
    """DFedSAM-MGS: DFedSAM with several exchanges over the same graph in every round.

    z_i <- local(x_i);   x <- W^Q z,  Q = gossip_steps

    >>> dfedsam_mgs(topology="ring").settings["gossip_steps"]
    4

    Reference: DFedSAM, equation 5. Differs from the paper in: its listing counts one exchange more than its text.
    """
    return _dfedsam("dfedsam-mgs", rho, topology, gossip_steps, FLAT.given(options))


def _dfedsam(name: str, rho: float, topology: str | Topology, gossip_steps: int, t: Training) -> Algorithm:
    check_range("rho", rho, 0, float("inf"))
    check_range("gossip_steps", gossip_steps, 1, float("inf"))

    def bind(p: Problem) -> Program[Peers]:
        phase = ascent(Phase(p.parameters, t.amount, t.lr), rho)
        return decentralised(p, [phase], t, topology, shared=p.names, gossip_steps=gossip_steps)

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

    >>> fedsam().settings["weight_decay"]
    0.0

    Reference: Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", 2022.
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
    sam_on: str = "shared",
    personal: Patterns = "head",
    topology: str | Topology = "random-pull:10",
    personal_lr: float = 0.001,
    personal_epochs: int | None = 1,
    personal_steps: int | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """DFedSalt: DFedAlt with sharpness-aware steps on the part that is mixed.

    v_i <- local(v; u_i held);   z_i <- local(u; v_i held) along grad_u F_i(u + rho g_u/|g_u|, v_i);
    u_i <- sum_j W[i, j] z_j

    sam_on: "shared", "personal" or "both"; each phase perturbs only the part it trains.

    >>> dfedsalt(topology="ring", sam_on="both").settings["sam_on"]
    'both'

    Reference: DFedAlt/DFedSalt, Algorithm 1, option II, and Table 3 for ``sam_on``.
    """
    check_range("rho", rho, 0, float("inf"))
    check_choice("sam_on", sam_on, ("shared", "personal", "both"))
    own = {"personal_lr": personal_lr, "personal_epochs": personal_epochs, "personal_steps": personal_steps}
    t = Training().given(options)

    def salted(first: Phase, second: Phase) -> list[Phase]:
        return [
            ascent(first, rho if sam_on != "shared" else 0),
            ascent(second, rho if sam_on != "personal" else 0),
        ]

    base = alternating("dfedsalt", personal, topology, own, t, salted)
    return Algorithm(base.name, {"rho": rho, "sam_on": sam_on, **base.settings}, base.bind)
