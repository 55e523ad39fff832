"""Partly personal models: FedRep and FedAvg-P around a server, DFedAvgM-P between peers."""

from typing import Unpack

from ..directions import drawn
from ..errors import RequestError
from ..local import Group, Phase
from ..split import Patterns
from ..topology import Topology
from .base import Algorithm, Problem, Program
from .dfedalt import Own, alternating, personal_phase, two_phases
from .families import Peers, Server, decentralised, federated
from .options import Options, Training, check_choice, check_range, refuse_given
from .server import check_server

# FedAvg-P's and Scaffold-P's experiments: plain SGD, 25 steps, 9 of 10 clients, step size 0.001 in all.
P_PAPER = Training(
    lr=0.001 / 3, lr_decay=1.0, momentum=0.0, weight_decay=0.0, clip=None, batch_size=None, epochs=None, steps=25
)
P_PERSONAL_LR, P_OUTER, P_PERSONAL_OUTER = 0.001 / 1.0541, 3.0, 1.0541


def fedrep(
    *,
    personal: Patterns = "head",
    participation: float | int = 0.1,
    weighting: str = "size",
    personal_lr: float = 0.1,
    personal_epochs: int | None = None,
    personal_steps: int | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """FedRep (FedAlt): first the personal head, then the shared body, which the server averages.

    v_i <- local(v; u held);   u_i <- local(u; v_i held) for i in S;   u <- sum_S q_i u_i

    personal_epochs (10 where nothing is said) or personal_steps: how long the first phase is.

    >>> fedrep().settings["personal_epochs"]
    10

    Reference: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021.
    Differs from the paper in: 10 epochs for the head and 5 for the body, and the rates, momentum and clipping of
    DFedAlt's experiments. Released code has one optimiser for both phases, momentum 0.5 and a last head phase for
    everybody; here each phase has its own and nothing follows the last round.
    """
    check_server(participation, weighting, 1.0)
    own = personal_phase(personal_lr, personal_epochs, personal_steps, usual=10)
    t = Training().given(options)

    def bind(p: Problem) -> Program[Server]:
        phases = two_phases(p, personal, own, t)
        return federated(p, phases, t, p.names - p.personal(personal), participation, weighting)

    server = {"personal": personal, "participation": participation, "weighting": weighting}
    return Algorithm("fedrep", {**server, **own._asdict(), **t._asdict()}, bind)


def joint_phase(p: Problem, personal: Patterns, t: Training, personal_lr: float) -> Phase:
    """One phase over both parts, both gradients at the same point, with a step size for each part."""
    return Phase(p.parameters, t.amount, t.lr, group=Group(p.parameters & p.personal(personal), personal_lr))


def noisy_phase(p: Problem, personal: Patterns, t: Training, personal_lr: float, exact: bool) -> Phase:
    """The same; where it is ``exact``, v follows the gradient over all samples of the client, u that of a batch."""
    phase = joint_phase(p, personal, t, personal_lr)
    if not exact:
        return phase
    v = p.parameters & p.personal(personal)
    if not v or v == p.parameters:
        raise RequestError(
            f"exact_personal is for a personal part beside a shared one, and personal={personal!r} leaves one of them "
            "empty: choose other patterns, or leave exact_personal out"
        )
    assert t.batch_size is not None
    return phase._replace(whole=True, direction=drawn(p.parameters - v, t.batch_size))


def check_exact(exact: bool, t: Training) -> None:
    """Refuses exact personal gradients where there is no noise to take away, or epochs that would be single steps."""
    if exact and t.batch_size is None:
        raise RequestError("exact_personal changes nothing without batches: give batch_size, or leave it out")
    if exact and t.epochs is not None:
        raise RequestError("exact_personal sees all samples in every step, so it counts steps: give steps, not epochs")


def fedavg_p(
    *,
    personal: Patterns = "head",
    participation: float | int = 0.9,
    personal_lr: float = P_PERSONAL_LR,
    outer_lr: float = P_OUTER,
    personal_outer_lr: float = P_PERSONAL_OUTER,
    exact_personal: bool = False,
    **options: Unpack[Options],
) -> Algorithm:
    """FedAvg-P: joint steps on both parts, with outer step sizes for the shared and the personal one.

    u_k+1 = u_k - lr grad_u F_i(u_k, v_k),  v_k+1 = v_k - personal_lr grad_v F_i(u_k, v_k)   for i in S
    u <- (1 - outer_lr) u + outer_lr mean_S u_i;   v_i <- (1 - personal_outer_lr) v_i + personal_outer_lr v_iK

    exact_personal: grad_v over all samples of the client while grad_u is that of a batch: sigma_v = 0. The paper's
    analysis has lr outer_lr = personal_lr personal_outer_lr; other products run, but no theorem of it speaks of them.

    >>> fedavg_p().settings["steps"]
    25

    Reference: FedAvg-P/Scaffold-P, Algorithm 3.1.
    Differs from the paper in: the outer step sizes, for which it prints no values: 3 and 1.0541 are the least that
    its Theorem 3.7 allows for 9 of 10 clients, with inner ones such that both products are its 0.001.
    """
    check_server(participation, "uniform", outer_lr)
    check_range("personal_lr", personal_lr, 0, float("inf"))
    check_range("personal_outer_lr", personal_outer_lr, 0, float("inf"))
    t = P_PAPER.given(options)
    check_exact(exact_personal, t)

    def bind(p: Problem) -> Program[Server]:
        phase = noisy_phase(p, personal, t, personal_lr, exact_personal)
        shared = p.names - p.personal(personal)
        return federated(p, [phase], t, shared, participation, "uniform", outer_lr, personal_outer_lr)

    settings = {
        "personal": personal,
        "participation": participation,
        "personal_lr": personal_lr,
        "outer_lr": outer_lr,
        "personal_outer_lr": personal_outer_lr,
        "exact_personal": exact_personal,
        **t._asdict(),
    }
    return Algorithm("fedavg-p", settings, bind)


def dfedavgm_p(
    *,
    personal: Patterns = "head",
    topology: str | Topology = "random:10",
    schedule: str = "joint",
    personal_lr: float | None = None,
    personal_epochs: int | None = None,
    personal_steps: int | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """DFedAvgM-P: DFedAvgM with a personal head, trained together with the body or before it.

    schedule "joint": (z_i, v_i) <- local(u_i, v_i) in one phase;   u_i <- sum_j W[i, j] z_j
    schedule "alternate": DFedAlt, with personal_epochs (5 where nothing is said) or personal_steps for its first phase

    personal_lr: of v_i; None: the same lr.

    >>> dfedavgm_p(topology="ring").settings["schedule"]
    'joint'

    Reference: DFedPGP, Table 4.
    Differs from the paper in: nothing it says: it does not tell which schedule it ran. "joint" is what the name
    says; its words "undirected version of DFedPGP" would be "alternate".
    """
    check_choice("schedule", schedule, ("joint", "alternate"))
    t = Training().given(options)
    rate = t.lr if personal_lr is None else personal_lr
    if schedule == "joint":
        length = {"personal_epochs": personal_epochs, "personal_steps": personal_steps}
        refuse_given("schedule=joint has one phase for both parts", length, "schedule=alternate")
        own = Own(rate, None, None)
    else:
        own = personal_phase(rate, personal_epochs, personal_steps, usual=5)
    check_range("personal_lr", rate, 0, float("inf"))
    base = alternating("dfedavgm-p", personal, topology, own, t, lambda *phases: list(phases))

    def bind(p: Problem) -> Program[Peers]:
        phase = joint_phase(p, personal, t, rate)
        return decentralised(p, [phase], t, topology, shared=p.names - p.personal(personal))

    settings = {"schedule": schedule, **base.settings, "personal_lr": personal_lr}
    return Algorithm(base.name, settings, bind if schedule == "joint" else base.bind)
