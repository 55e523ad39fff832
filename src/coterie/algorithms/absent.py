"""Clients between peers that are offline for whole rounds."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..core.tensors import Tree, put, rows, tree_map
from .base import Program, Round, Trained


def attended(program: Program[Any]) -> Program[Any]:
    """The same method where only a cohort of the peers is online: the others' state stays as it is, to the last bit.

    Whoever is offline neither trains nor sends nor receives. W of the round has no edge to or from them, so what
    stands in their rows during the exchange reaches nobody, and afterwards they have their own again. Every slot of a
    state between peers is stacked over the clients, so this needs to know nothing else of a method.
    """

    def train(s: Any, r: Round) -> Trained:
        return program.train(rows(s, r.members), replace(r, local_clients=r.cohort))

    def exchange(s: Any, trained: Trained, r: Round) -> Any:
        everybody = trained._replace(
            models=_filled(trained.models, r),
            sent=_filled(trained.sent, r),
            private=_filled(trained.private, r),
            mass=trained.mass and _filled(trained.mass, r),
        )
        after = program.exchange(s, everybody, replace(r, cohort=r.local_clients))
        return put(s, r.members, rows(after, r.members))

    return program._replace(train=train, exchange=exchange)


def _filled(cohort: Tree, r: Round) -> Tree:
    """Stacked over all who lie here, zero for those who are offline."""
    members = r.members

    def fill(v: Tensor) -> Tensor:
        return v.new_zeros(len(r.local_clients), *v.shape[1:]).index_copy(0, members, v)

    return tree_map(fill, cohort)
