"""DFedAlt: alternating partial personalization without a server."""

from collections.abc import Callable
from typing import NamedTuple, Unpack

from ..batches import Amount
from ..errors import RequestError
from ..local import Phase
from ..split import Patterns
from ..topology import Topology
from .base import Algorithm, Problem, Program
from .families import Peers, decentralised
from .options import Options, Training, check_range


class Own(NamedTuple):
    """The settings of a personal phase."""

    personal_lr: float
    personal_epochs: int | None
    personal_steps: int | None


def dfedalt(
    *,
    personal: Patterns = "head",
    topology: str | Topology = "random-pull:10",
    personal_lr: float = 0.001,
    personal_epochs: int | None = None,
    personal_steps: int | None = None,
    **options: Unpack[Options],
) -> Algorithm:
    """DFedAlt: first the personal part, then the shared part, then gossip on the shared part.

    v_i <- local(v; u_i held);   z_i <- local(u; v_i held);   u_i <- sum_j W[i, j] z_j

    personal: "head" or name patterns; personal_lr, personal_epochs (1 where nothing is said) or personal_steps: the
    personal phase;
    topology: a text such as "ring" or "random:10", or a Topology; the rest (the shared phase): see Options.

    >>> dfedalt(topology="ring", personal_lr=0.01).settings["personal"]
    'head'

    Reference: DFedAlt/DFedSalt, Algorithm 1, option I.
    Differs from the paper in: weight decay 5e-4 (its text prints a decay rate of 0.005), clipping at 10 and rates
    that decay by 0.99 a round, which its text leaves open; all three are those of its group's released code. So is
    the default graph, ten others drawn by every receiver; its theory assumes a symmetric one, such as random:10.
    Line 13 of its listing sums the client's own z_i; the neighbours' are meant. Its line 1 draws a model on every
    device, as ``fit(init="per-client")`` does; without it all begin with one, as in the released code.
    """
    own = personal_phase(personal_lr, personal_epochs, personal_steps, usual=1)
    return alternating("dfedalt", personal, topology, own, Training().given(options), lambda *phases: list(phases))


def alternating(
    name: str,
    personal: Patterns,
    topology: str | Topology,
    own: Own,
    t: Training,
    arrange: Callable[[Phase, Phase], list[Phase]],
) -> Algorithm:
    """A personal phase, a shared phase, gossip on the shared part; ``own``: the settings of the personal phase."""

    def bind(p: Problem) -> Program[Peers]:
        return decentralised(p, arrange(*two_phases(p, personal, own, t)), t, topology, p.names - p.personal(personal))

    settings = {"personal": personal, "topology": topology, **own._asdict(), **t._asdict()}
    return Algorithm(name, settings, bind)


def personal_phase(lr: float, epochs: int | None, steps: int | None, usual: int) -> Own:
    """The personal phase: so many epochs or steps, ``usual`` epochs where nothing is said."""
    if epochs is not None and steps is not None:
        raise RequestError("personal_epochs and personal_steps both say how long the personal phase is: give one")
    own = Own(lr, usual if epochs is None and steps is None else epochs, steps)
    for key, value in own._asdict().items():
        check_range(key, value, 0, float("inf"))
    return own


def two_phases(p: Problem, personal: Patterns, own: Own, t: Training) -> tuple[Phase, Phase]:
    """First the personal part with the shared one held, then the other way round."""
    v = p.personal(personal)
    return (
        Phase(p.parameters & v, Amount(own.personal_epochs, own.personal_steps), own.personal_lr, stream=1),
        Phase(p.parameters - v, t.amount, t.lr, stream=0),
    )
