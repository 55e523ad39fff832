"""Which round's model a member keeps, by validation samples of its own, and when it stops to train."""

from ..core.errors import UserError
from ..core.schema import Select, SelectionConfig
from ..measure.selection import BEST_TEST, LAST
from ..training.chosen import chosen_by


def kept_by(where: str, validation: float, select: Select, patience: int | None) -> SelectionConfig:
    """Return what a member's model is chosen by; refuse a choice without samples for it, or by test samples.

    >>> kept_by("peer.toml", 0.2, "best-validation", None)
    {'validation': 0.2, 'select': 'best-validation'}
    """
    if select == BEST_TEST:
        raise UserError(
            f"{where}: select={select} chooses the model by the samples that measure it, and it would be deployed: "
            'write validation = 0.2 and select = "best-validation"'
        )
    by_validation = {f"select={select}": select != LAST, f"patience={patience}": patience is not None}
    for key, wanted in by_validation.items():
        if wanted and not validation:
            raise UserError(f"{where}: {key} looks at validation samples, and there are none: write validation = 0.2")
    return chosen_by(validation, select, patience)
