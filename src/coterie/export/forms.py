"""The two forms of a model of low rank: ordinary layers, or their factors in the rank the client can carry."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..core.errors import UserError, unknown
from ..submodels import factor_pairs, recover

FORMS = ("recovered", "factorized")


@dataclass(frozen=True)
class Formed:
    """A module, and what must be known to build it again."""

    module: nn.Module
    about: dict[str, Any] = field(default_factory=dict)


def formed(module: nn.Module, method: str, form: str) -> Formed:
    """A client's module in one of the FORMS; a module without factors has one form only."""
    if form not in FORMS:
        raise unknown("form", form, FORMS)
    if not factor_pairs(module):
        if form == "factorized":
            raise UserError(f"the models of {method} have no layers of low rank: leave --form out")
        return Formed(module)
    return Formed(recover(module) if form == "recovered" else module, {"form": form})
