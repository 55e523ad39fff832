"""How much of a model trains, is shared, is personal and is constant."""

from typing import TYPE_CHECKING

from ..core.tensors import entries, split

if TYPE_CHECKING:
    from .experiment import Experiment


def model_parts(e: "Experiment") -> str:
    """Say how many of the model's numbers train, and whose they are."""
    start, constants = e.model.start, e.model.constants
    shared, personal = (entries(part.values()) for part in split(start, e.program.shared))
    trained = entries(split(start, e.model.parameters)[0].values())
    constant = entries(constants.values())
    numbers = shared + personal + constant
    whose = f"{shared:,} shared, {personal:,} personal, {constant:,} constant"
    return f"model: {numbers:,} numbers, {trained:,} train; {whose}"
