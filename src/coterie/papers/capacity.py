"""The smaller forms of a model that clients of unequal capacity hold, counted.

The forms are those of FedLMT's comparison of methods for unequally capable clients: low rank (FedLMT, also with the
rank of its Definition 3.1; FedHM, pFedLMT), width (HeteroFL, FedRolex, FedDropout), a shared basis (FLANC), depth
(DepthFL) and stages (ProgFed).

Reference: Liu et al. 2024, "FedLMT: Tackling System Heterogeneity of Federated Learning via Low-Rank Model Training
with Theoretical Guarantees", Tables 1, 2 and 7.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import models, submodels
from ..algorithms.capacities import COMMON_RANKS, FRACTIONS, RANKS, WIDTHS
from ..core.errors import UserError
from ..core.tensors import entries
from ..submodels.basis import composed
from ..submodels.depth import with_depth
from ..submodels.staged import at_stage, check_stages

LAST = 9  # layers that stay whole where every client has a rank of its own
COMMON = tuple(COMMON_RANKS.values())
LOW_RANK: tuple[tuple[str, tuple[tuple[int, float], ...], submodels.RankMode], ...] = (
    ("low rank", COMMON, "channels"),
    ("by definition", COMMON, "definition"),
    ("rank by client", tuple((LAST, ratio) for ratio in RANKS.values()), "channels"),
)


class CapacityRow(NamedTuple):
    """One form of a model; counts are None where the model has no such form, and ``why`` is the reason."""

    family: str
    setting: str
    parameters: int | None = None
    flops: int | None = None  # of one sample's forward pass
    why: str = ""


Form = tuple[str, str, Callable[[], nn.Module]]
"""Family, setting, and a function that makes the model."""


def capacity_table(name: str, classes: int, input_shape: Sequence[int]) -> list[CapacityRow]:
    """Return every smaller form of the model of that name, with its parameters and FLOPs.

    ``input_shape``: of one sample. Nothing is computed and no memory is taken: the models have shapes only.

    >>> [row.parameters for row in capacity_table("resnet8-bn", 10, (3, 32, 32)) if row.family == "stages"]
    [5306, 19994, 78042]
    >>> capacity_table("mlp", 10, (64,))[-1]
    CapacityRow(family='stages', setting='any', parameters=None, flops=None, why='the model is not built in stages')
    """
    with torch.device("meta"):
        module = models.build(name, classes=classes, input_shape=input_shape)
        tokens = any(isinstance(layer, nn.Embedding) for layer in module.modules())
        # Two samples, because batch normalization refuses a single number.
        samples = torch.zeros(2, *input_shape, dtype=torch.int64 if tokens else None)
        full, *others = _forms(module)
        try:
            first = _row(full, samples)
        except (RuntimeError, IndexError) as error:
            said = (str(error).splitlines() or [""])[0]
            raise UserError(f"{name} takes no samples of shape {list(input_shape)} ({said}): give its own") from error
        return [first, *(_row(form, samples) for form in others)]


def _forms(module: nn.Module) -> Iterator[Form]:
    yield "full", "", lambda: module
    for family, settings, mode in LOW_RANK:
        for keep, ratio in settings:
            yield family, f"keep {keep}, rank {ratio:g}", partial(_low_rank, module, ratio, keep, mode)
    for rate in [rate for rate in WIDTHS.values() if rate < 1]:
        yield "width", str(Fraction(rate)), partial(submodels.narrow, module, rate)
    for fraction in FRACTIONS.values():
        yield "basis", f"{fraction:g}", partial(composed, module, fraction)
    yield from _staged("depth", with_depth, module)
    yield from _staged("stages", at_stage, module)


def _staged(family: str, cut: Callable[[nn.Module, int], nn.Module], module: nn.Module) -> Iterator[Form]:
    """Yield one form per stage; for a model without stages a single one, which will be refused."""
    try:
        stages = check_stages(module)
    except UserError:
        yield family, "any", partial(cut, module, 1)
    else:
        for stage in range(1, stages + 1):
            yield family, f"{stage} of {stages}", partial(cut, module, stage)


def _low_rank(module: nn.Module, ratio: float, keep: int, mode: submodels.RankMode) -> nn.Module:
    low = submodels.factorize(module, ratio, keep, rank_mode=mode)
    if not submodels.factor_pairs(low):
        raise UserError(f"no layer is left to factorize: the model has no more than {keep} besides its head")
    return low


def _row(form: Form, samples: Tensor) -> CapacityRow:
    family, setting, make = form
    try:
        module = make()
    except UserError as refused:
        return CapacityRow(family, setting, why=str(refused).partition(":")[0])  # what is wrong, without the fix
    return CapacityRow(family, setting, entries(module.parameters()), models.cost(module, samples).flops)
