"""What the clients of an experiment would deploy after a round."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..algorithms.base import ModelGroup
from ..core.clients import OnDemand
from ..core.tensors import rows, split, tree_map
from ..models.model import products
from .client import Client

if TYPE_CHECKING:
    from .experiment import Experiment


def client_models(e: "Experiment", state: Any, t: int) -> Sequence[Client]:
    """Return the local clients' models after round ``t``, each made when it is asked for.

    They are those that the row of that round tells of. Their tensors are views of the stacked models, so that what all
    clients have is in memory once. A fine-tuned model is all personal.
    """
    finetune = e.program.finetune
    with products(e.model.precision):  # as it was measured
        groups = e.groups(state, t) if finetune is None else finetune(state, e.everybody(t))
        stacked = [group._replace(models=tree_map(on_cpu, group.models)) for group in groups]
    personal = None if finetune is not None else e.model.start.keys() - e.program.shared
    return viewed(stacked, personal, t)


def viewed(groups: Iterable[ModelGroup], personal: Collection[str] | None, t: int) -> Sequence[Client]:
    """Return the clients of stacked models after round ``t``; ``personal``: None where all is personal."""
    place: dict[int, tuple[ModelGroup, int, int]] = {}
    for number, group in enumerate(groups):
        place |= {client: (group, number, row) for row, client in enumerate(group.places.tolist())}

    def client(i: int) -> Client:
        group, number, row = place[i]
        apart = group.models.keys() if personal is None else {*personal, *group.private}
        own, common = split(rows(group.models, row), apart)
        alike = common and len(group.places) > 1 and all(group.models[k].stride(0) == 0 for k in common)
        return Client(common, own, group.model, same=(t, number) if alike else None)

    return OnDemand(len(place), client)


def on_cpu(v: Tensor) -> Tensor:
    """Return stacked values on the CPU; what is one value shown n times stays one."""
    return v[:1].cpu().expand_as(v) if v.stride(0) == 0 and len(v) else v.cpu()
