"""Local: every client on its own."""

from typing import Unpack

from ..local.steps import Phase
from .method import Options, Problem, Program, Training, method
from .peers import Peers, decentralized


@method()
def local(p: Problem, t: Training, **options: Unpack[Options]) -> Program[Peers]:
    """Local: every client on its own, every round.

    x_i <- local(x_i)

    >>> local(epochs=1).settings["epochs"]
    1

    Reference: none: the baseline every paper compares with.
    Differs from the paper in: nothing. All clients train in every round, also beside methods that sample a tenth of
    them.
    """
    return decentralized(p, [Phase(p.parameters, t.amount, t.lr)], t, "none", shared=frozenset())
