"""Around a server: FedAvg and FedPer."""

from typing import Unpack

from ..local import Phase
from ..split import Patterns
from .base import Algorithm, Problem, Program
from .families import Server, federated
from .options import Options, Training, check_choice, check_range


def check_server(participation: float | int, weighting: str, outer_lr: float) -> None:
    """Refuses what no server can do."""
    check_range("participation", participation, 0, float("inf"))
    check_range("outer_lr", outer_lr, 0, float("inf"))
    check_choice("weighting", weighting, ("size", "uniform"))


def fedavg(
    *,
    participation: float | int = 0.1,
    weighting: str = "size",
    outer_lr: float = 1.0,
    **options: Unpack[Options],
) -> Algorithm:
    """FedAvg: one model for everybody, averaged on a server.

    x_i <- local(x) for i in S;   x <- x + outer_lr (sum_S q_i x_i - x)

    participation: a fraction of the clients or a count; weighting: "size" or "uniform"; the rest: see Options.

    >>> fedavg(lr=0.05).settings["lr"]
    0.05

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017,
    Algorithm 1.
    Differs from the paper in: the local steps, which have momentum 0.9, weight decay 5e-4, clipping at 10 and a
    decaying rate unless told otherwise (DFedAlt's experiments; plain SGD in the paper), and the server's step size,
    which is 1 there.
    """
    check_server(participation, weighting, outer_lr)
    t = Training().given(options)

    def bind(p: Problem) -> Program[Server]:
        phases = [Phase(p.parameters, t.amount, t.lr)]
        return federated(p, phases, t, p.names, participation, weighting, outer_lr)

    settings = {"participation": participation, "weighting": weighting, "outer_lr": outer_lr, **t._asdict()}
    return Algorithm("fedavg", settings, bind)


def fedper(
    *,
    personal: Patterns = "head",
    participation: float | int = 0.1,
    weighting: str = "size",
    **options: Unpack[Options],
) -> Algorithm:
    """FedPer (FedSim): a shared body and personal heads, trained together in one phase.

    (u_i, v_i) <- local(u, v_i) for i in S;   u <- sum_S q_i u_i

    >>> fedper(personal="head").name
    'fedper'

    Reference: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
    Differs from the paper in: clients are sampled as in FedAvg (participation=1.0 for everybody), the personal part
    is the last linear layer unless ``personal`` names another, and the local steps are those of DFedAlt's
    experiments.
    """
    check_server(participation, weighting, 1.0)
    t = Training().given(options)

    def bind(p: Problem) -> Program[Server]:
        phases = [Phase(p.parameters, t.amount, t.lr)]
        return federated(p, phases, t, p.names - p.personal(personal), participation, weighting)

    settings = {
        "personal": personal,
        "participation": participation,
        "weighting": weighting,
        **t._asdict(),
    }
    return Algorithm("fedper", settings, bind)
