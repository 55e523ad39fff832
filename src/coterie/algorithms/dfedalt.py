"""DFedAlt: alternating partial personalization without a server."""

from typing import Unpack

from ..batches import Amount
from ..local import Phase
from ..split import Patterns
from ..topology import Topology
from .base import Algorithm, Problem, Program
from .families import Peers, decentralised
from .options import Options, Training, check_range


def dfedalt(
    *,
    personal: Patterns = "head",
    topology: str | Topology = "random-pull:10",
    personal_lr: float = 0.001,
    personal_epochs: int | None = 1,
    personal_steps: int | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """DFedAlt: first the personal part, then the shared part, then gossip on the shared part.

    v_i <- local(v; u_i held);   z_i <- local(u; v_i held);   u_i <- sum_j W[i, j] z_j

    personal: "head" or name patterns; personal_lr, personal_epochs or personal_steps: the personal phase;
    topology: a text such as "ring" or "random:10", or a Topology; the rest (the shared phase): see Options.

    >>> dfedalt(topology="ring", personal_lr=0.01).settings["personal"]
    'head'

    Reference: DFedAlt/DFedSalt, Algorithm 1, option I.
    Differs from the paper in: weight decay 5e-4, clipping at 10 and learning rates decaying by 0.99 a round, which
    its text leaves open and the released code of its authors uses.
    """
    check_range("personal_lr", personal_lr, 0, float("inf"))
    check_range("personal_epochs", personal_epochs, 0, float("inf"))
    check_range("personal_steps", personal_steps, 0, float("inf"))
    t = Training().given(options)
    first = Amount(None if personal_steps is not None else personal_epochs, personal_steps)

    def bind(p: Problem) -> Program[Peers]:
        v = p.personal(personal)
        phases = [
            Phase(p.parameters & v, first, personal_lr, stream=1),
            Phase(p.parameters - v, t.amount, t.lr, stream=0),
        ]
        return decentralised(p, phases, t, topology, shared=p.names - v)

    settings = {
        "personal": personal,
        "topology": topology,
        "personal_lr": personal_lr,
        "personal_epochs": first.epochs,
        "personal_steps": personal_steps,
        **t._asdict(),
    }
    return Algorithm("dfedalt", settings, bind)
