"""The family with a server whose clients have a model of their own beside the one that travels."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..core.arguments import checked
from ..core.tensors import Tensors, Tree, put
from ..local.steps import Phase
from .base import Program, Round, Trained, around
from .server import Server

OWN = "own/"  # before the names of the second model, where both are trained together


class Beside(NamedTuple):
    """State of clients with two models."""

    server: Server  # the model that travels
    own: Tree  # stacked: what each client keeps beside it


@checked("function", own=("average",))
def beside(
    average: Program[Server],
    phases: Sequence[Phase],
    init: Callable[[Tensors, Tensors], Beside],
    train: Callable[[Beside, Round], Trained],
    models: Callable[[Beside], Tensors],
) -> Program[Beside]:
    """Return the program whose server averages as ``average`` does, beside what each client keeps.

    ``train`` returns (own, private of ``average``) as its private part.
    """

    def exchange(s: Beside, trained: Trained, r: Round) -> Beside:
        own, private = trained.private
        server = average.exchange(s.server, trained._replace(private=private), r)
        return Beside(server, put(s.own, r.members, own))

    return around(
        average._replace(shared=frozenset(), phases=phases),  # nothing of what is deployed is everybody's
        lambda s: s.server,
        init=init,
        train=train,
        exchange=exchange,
        models=models,
        consensus=lambda s: s.server.u,
    )


def second_names(names: Iterable[str]) -> frozenset[str]:
    """Return the names of the same tensors in the second model."""
    return frozenset(OWN + name for name in names)


def second(x: Tensors) -> Tensors:
    """Return a model under the names of the second one.

    >>> second({"weight": 1})
    {'own/weight': 1}
    """
    return {OWN + k: v for k, v in x.items()}


def apart(x: Tensors) -> tuple[Tensors, Tensors]:
    """Return (the first model, the second one), both under plain names.

    >>> apart({"weight": 1, "own/weight": 2})
    ({'weight': 1}, {'weight': 2})
    """
    first = {k: v for k, v in x.items() if not k.startswith(OWN)}
    return first, {k.removeprefix(OWN): v for k, v in x.items() if k.startswith(OWN)}
