"""What the clients of an experiment would deploy after a round."""

from typing import TYPE_CHECKING, Any

from ..core.tensors import rows, split
from ..models.model import products
from .client import Client

if TYPE_CHECKING:
    from .experiment import Experiment


def client_models(e: "Experiment", state: Any, t: int) -> list[Client]:
    """Return the local clients' models after round ``t``, in memory of their own; a fine-tuned one is all personal.

    They are those that the row of that round tells of.
    """
    finetune = e.program.finetune
    tuned = None if finetune is None else finetune(state, e.everybody(t))
    personal = e.model.start.keys() - e.program.shared
    out: dict[int, Client] = {}
    with products(e.model.precision):  # as it was measured
        for group in e.groups(state, t) if tuned is None else tuned:
            apart = group.models.keys() if tuned is not None else personal | group.private
            for row, place in enumerate(group.places.tolist()):
                own, common = split({k: v.cpu().clone() for k, v in rows(group.models, row).items()}, apart)
                out[place] = Client(common, own, group.model)
    return [out[place] for place in range(len(e.local_clients))]
