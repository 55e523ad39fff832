"""The clients' models as files and messages hold them: what several clients have the same is there once."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import torch

from ..core.clients import OnDemand
from ..core.tensors import Tensors
from ..models.model import Model
from .client import Client

CONSTANT, SHARED, PERSONAL = "constant/", "shared/", "personal/"  # before the names of tensors
PART = "part"  # stands beside a client's own tensors: the number of the common part that it has, 0 unless it is there


class Folded(NamedTuple):
    """Clients without what they have the same."""

    common: Tensors  # ``shared/name`` of the first common part, ``1/shared/name`` of the next one
    own: Sequence[Tensors]  # of each client: ``personal/name``, and ``shared/name`` where no other has the same


def folded(clients: Sequence[Client]) -> Folded:
    """Take out what at least two clients have the same; ``unfolded`` puts a client together again."""
    parts = [client.same for client in clients]
    several = [part for part, times in Counter(parts).items() if part is not None and times > 1]
    number: dict[Hashable, int] = {part: k for k, part in enumerate(several)}
    first = {part: clients[parts.index(part)].shared for part in several}
    common = {_at(k) + name: v for part, k in number.items() for name, v in first[part].items()}

    def own(i: int) -> Tensors:
        client, part = clients[i], number.get(parts[i])
        tensors = {PERSONAL + k: v for k, v in client.personal.items()}
        if part is None:
            return tensors | {SHARED + k: v for k, v in client.shared.items()}
        return tensors | ({PART: torch.tensor(part)} if part else {})

    return Folded(common, OnDemand(len(clients), own))


def unfolded(own: Tensors, parts: Mapping[int, Tensors], model: Model | None) -> Client:
    """Return the client that ``folded`` took apart; ``parts``: what ``common_parts`` returns."""
    shared, personal = _under(SHARED, own), _under(PERSONAL, own)
    number = int(own.get(PART, 0))
    if shared or number not in parts:
        return Client(shared, personal, model)
    return Client(parts[number], personal, model, same=number)


def common_parts(common: Tensors) -> dict[int, Tensors]:
    """Return the common parts by their numbers."""
    parts: dict[int, Tensors] = {}
    for name in common:
        number, _, rest = name.partition("/") if name[:1].isdigit() else ("0", "", name)
        if rest.startswith(SHARED):
            parts.setdefault(int(number), {})[rest.removeprefix(SHARED)] = common[name]
    return parts


def with_constants(common: Tensors, constants: Tensors) -> Tensors:
    """Return what the common file of a run holds."""
    return common | {CONSTANT + k: v for k, v in constants.items()}


def constants_of(common: Tensors) -> Tensors:
    """Return the constants in the common file of a run."""
    return _under(CONSTANT, common)


def _at(number: int) -> str:
    return f"{number}/{SHARED}" if number else SHARED


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
