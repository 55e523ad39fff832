"""FLANC: networks of several widths that share a basis of filters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from ..local.steps import Phase
from ..models.model import Model
from ..submodels.basis import bank_names, composed, join_networks, orthogonality
from .capacities import FRACTIONS, levels, shares
from .method import Options, Participation, Problem, Program, Rate, Training, Weighting, method
from .options import LMT_PAPER, refuse_for_parts
from .server import Server, federated
from .update import assigned, named_submodel
from .widths import refuse_frozen


def _all_widths(model: Model, capacities: str, n_basis: float, basis_fraction: float, orthogonal: float) -> Model:
    """Return the widest network, with the others beside it, all on the banks of the widest."""
    refuse_frozen(model, "composes every layer anew")
    (_, widest), *others = networks(model, capacities, n_basis, basis_fraction, orthogonal).items()
    if not others:
        return widest
    return replace(widest, module=join_networks(widest.module, {width_key(w): net.module for w, net in others}))


@method(
    LMT_PAPER._replace(weight_decay=1e-4),
    check=refuse_for_parts,
    adapt=_all_widths,
    staged=True,
    submodel="basis",
    presets={"small": {"capacities": "1-0.75-0.5"}},
)
def flanc(
    p: Problem,
    t: Training,
    *,
    capacities: str = "b4-b3-b2",
    n_basis: float = 0.25,
    basis_fraction: float = 0.125,
    orthogonal: Rate = 10.0,
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    **options: Unpack[Options],
) -> Program[Server]:
    """FLANC: filters are mixtures of a basis; the basis is everybody's, the mixtures belong to a width.

    (B_i, A_i) <- local(B, A_w) along grad F_i + orthogonal sum_l mean((B_l B_l^T - I)^2)   for i in S of width w
    B <- mean over S;   A_w <- mean over those of S with width w, unchanged where there is none

    A client deploys the network of its width; the global model is the widest one.

    Args:
        capacities: Shares of the full widths, "b4-b3-b2" (1.75, 1.25, 0.75), "1-0.5" or "b4x15-b2x5", or for everybody
            one after the other, "b1@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds).
        n_basis: Filters of a bank, as a share of a block's.
        basis_fraction: Channels of a filter, as a share of a block's.
        orthogonal: How strongly the filters of a bank are kept apart.

    >>> flanc().settings["orthogonal"]
    10.0

    Reference: Mei et al., "Resource-Adaptive Federated Learning with All-In-One Neural Composition", 2022.
    Differs from the paper in: a client's width, which stays the same (the released code draws widths anew every
    round), and epochs, batches and rates, which are those of FedLMT's experiments. Where channels do not divide
    into the filters' they are filled with zeros.
    """
    assert p.model.source is not None
    forms = networks(p.model.source, capacities, n_basis, basis_fraction, orthogonal)
    submodels = {w: named_submodel(form, p.model.start, place(p, w, max(forms))) for w, form in forms.items()}
    groups = [(s, submodels[s.capacity]) for s in shares(capacities, FRACTIONS, p.clients, p.rounds)]
    unequal = replace(p, submodels=lambda r: assigned(groups, r))
    return federated(unequal, [Phase(p.parameters, t.amount, t.lr)], t, p.names, participation, weighting)


def networks(
    source: Model, capacities: str, n_basis: float, basis_fraction: float, orthogonal: float
) -> dict[float, Model]:
    """Return one network per width, the widest first."""

    def at(fraction: float) -> Model:
        module = composed(source.module, fraction, n_basis, basis_fraction)
        apart = orthogonality(bank_names(module))
        added = (lambda x: orthogonal * apart(x)) if orthogonal else None
        return replace(source.like(module), penalty=added, source=source)

    return {w: at(w) for w in sorted(set(levels(capacities, FRACTIONS)), reverse=True)}


def width_key(width: float) -> str:
    """Return a width as a part of a name.

    >>> width_key(0.75)
    '0_75'
    """
    return f"{width:g}".replace(".", "_")


def place(p: Problem, width: float, widest: float) -> Callable[[str], str]:
    """Return the map from names of that width to the server's: banks exist once, all other tensors once per width."""
    banks = frozenset(bank_names(p.module))
    return lambda name: name if width == widest or name in banks else f"others.{width_key(width)}.{name}"
