"""What the clients of an experiment would deploy after a round."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from torch import Tensor

from ..algorithms.base import ModelGroup
from ..core.tensors import rows, split, tree_map
from ..models.model import products
from .client import Client

if TYPE_CHECKING:
    from .experiment import Experiment


class ClientModels(Sequence[Client]):
    """The local clients' models after a round, each of which is made of the stacked ones when it is asked for.

    Its tensors are views of those, so that what all clients have is in memory once. The stacked models themselves are
    made when the first client is asked for. A fine-tuned model is all personal.
    """

    def __init__(self, e: "Experiment", state: Any, t: int) -> None:
        self._e, self._state, self._t = e, state, t
        self._personal = e.model.start.keys() - e.program.shared

    def __len__(self) -> int:
        return len(self._e.local_clients)

    @overload
    def __getitem__(self, which: SupportsIndex) -> Client: ...
    @overload
    def __getitem__(self, which: slice) -> list[Client]: ...
    def __getitem__(self, which: SupportsIndex | slice) -> Client | list[Client]:
        """Return one client, or several."""
        places = range(len(self))[which]
        return [self._client(i) for i in places] if isinstance(places, range) else self._client(places)

    def _client(self, i: int) -> Client:
        number, row = self._places[i]
        group = self._groups[number]
        tuned = self._e.program.finetune is not None
        apart = group.models.keys() if tuned else self._personal | group.private
        own, common = split(rows(group.models, row), apart)
        alike = common and all(group.models[k].stride(0) == 0 for k in common) and len(group.places) > 1
        return Client(common, own, group.model, same=(self._t, number) if alike else None)

    @cached_property
    def _groups(self) -> list[ModelGroup]:
        """The stacked models, on the CPU; they are those that the row of the round tells of."""
        e, finetune = self._e, self._e.program.finetune
        with products(e.model.precision):  # as it was measured
            groups = e.groups(self._state, self._t) if finetune is None else finetune(self._state, e.everybody(self._t))
            return [group._replace(models=tree_map(on_cpu, group.models)) for group in groups]

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """The group of every client, and its row there."""
        numbered = enumerate(group.places.tolist() for group in self._groups)
        return {place: (number, row) for number, places in numbered for row, place in enumerate(places)}


def on_cpu(v: Tensor) -> Tensor:
    """Return stacked values on the CPU; what is one value shown n times stays one."""
    return v[:1].cpu().expand_as(v) if v.stride(0) == 0 and len(v) else v.cpu()
