"""DFedAvgM-P: DFedAvgM with a personal head."""

from typing import Any, Literal, Unpack

from ..data.batches import Amount
from ..local.steps import Phase
from .fedavg_p import joint_phase
from .method import (
    Count,
    Epochs,
    OptimizerLike,
    Options,
    Participation,
    Patterns,
    Problem,
    Program,
    Rate,
    TopologyLike,
    Training,
    method,
)
from .options import refuse_unused
from .peers import Peers, decentralized


def _length(schedule: str, personal_epochs: int | tuple[int, ...] | None, personal_steps: int | None) -> dict[str, Any]:
    """Return five epochs for the personal phase, where there is one and its length is not given."""
    if schedule == "joint":
        length = {"personal_epochs": personal_epochs, "personal_steps": personal_steps}
        refuse_unused("schedule=joint has one phase for both parts", length, "schedule=alternate")
        return {}
    return {"personal_epochs": 5} if personal_epochs is None and personal_steps is None else {}


# One phase for both parts: a length of the personal one would be refused.
@method(complete=_length, presets={"small": {"personal_epochs": None}, "papers": {"topology": "random:10"}})
def dfedavgm_p(
    p: Problem,
    t: Training,
    *,
    personal: Patterns = "head",
    topology: TopologyLike = "random:10",
    participation: Participation = 1.0,
    schedule: Literal["joint", "alternate"] = "joint",
    personal_lr: Rate | None = None,
    personal_epochs: Epochs | None = None,
    personal_steps: Count | None = None,
    personal_optimizer: OptimizerLike | None = None,
    **options: Unpack[Options],
) -> Program[Peers]:
    """DFedAvgM-P: DFedAvgM with a personal head, trained together with the body or before it.

    schedule "joint": (z_i, v_i) <- local(u_i, v_i) in one phase;   u_i <- sum_j W[i, j] z_j
    schedule "alternate": DFedAlt, with personal_epochs (5 where nothing is said) or personal_steps for its first phase

    Args:
        schedule: "joint" or "alternate".
        personal_lr: The learning rate of v_i; none: lr.
        personal_epochs: Passes through the data in the personal phase, where there is one.

    >>> dfedavgm_p(topology="ring").settings["schedule"]
    'joint'

    Reference: DFedPGP, Table 4.
    Differs from the paper in: nothing it says: it does not tell which schedule it ran. "joint" is what the name
    says; its words "undirected version of DFedPGP" would be "alternate".
    """
    v, rate = p.personal(personal), t.lr if personal_lr is None else personal_lr
    joint = [joint_phase(p, t, personal, rate)]
    alternate = [
        Phase(p.parameters & v, Amount(personal_epochs, personal_steps), rate, stream=1, optimizer=personal_optimizer),
        Phase(p.parameters - v, t.amount, t.lr),
    ]
    return decentralized(
        p, joint if schedule == "joint" else alternate, t, topology, shared=p.names - v, participation=participation
    )
