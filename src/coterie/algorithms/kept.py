"""The state of optimizers that outlives a round, and optimizers of one's own on trial."""

from collections.abc import Sequence

from ..core.errors import UserError
from ..core.tensors import Tensors
from ..local.optimizers import Slots, put_together
from ..local.parse import check_optimizer
from ..local.steps import Phase
from .options import Training


def kept_state(training: Training, phases: Sequence[Phase], model: Tensors) -> Slots:
    """Return the state of the optimizers that a client starts with, where it outlives the rounds."""
    state: Slots = {}
    for phase in phases if training.keep_optimizer_state else ():
        trained = {k: v for k, v in model.items() if k in phase.trains}
        state = put_together(state, training.optimizer_of(phase).init(trained))
    return state


def check_optimizers(training: Training, phases: Sequence[Phase], model: Tensors) -> None:
    """Refuse an optimizer of one's own that cannot be a part of a step, and kept state where there is none."""
    trying = [phase for phase in phases if phase.trains]
    for phase in trying:
        optimizer = training.optimizer_of(phase)
        if not type(optimizer).__module__.startswith("coterie."):
            check_optimizer(optimizer, {k: v for k, v in model.items() if k in phase.trains})
    if not training.keep_optimizer_state:
        return
    if not kept_state(training, trying, model):
        raise UserError(
            "keep_optimizer_state keeps what an optimizer carries, and this one carries nothing: leave it out"
        )
    for place, phase in enumerate(trying):
        for other in trying[:place]:
            if phase.trains & other.trains and training.optimizer_of(phase) != training.optimizer_of(other):
                raise UserError(
                    "keep_optimizer_state keeps one state of a parameter, and two phases train the same ones with "
                    "optimizers of their own: leave it out, or let both have one optimizer"
                )
