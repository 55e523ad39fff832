"""FLANC: networks of several widths that share a basis of filters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from ..local import Phase
from ..problem import Model
from ..views.basis import bank_names, beside, composed, orthogonality
from .base import Algorithm, Problem, Program
from .capacities import FRACTIONS, levels, shares
from .families import Server, federated
from .forms import assigned, named_view
from .options import LMT_PAPER, Options, check_range, refuse_lasting
from .server import check_server


def flanc(
    *,
    capacities: str = "b4-b3-b2",
    n_basis: float = 0.25,
    basis_fraction: float = 0.125,
    orthogonal: float = 10.0,
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """FLANC: filters are mixtures of a basis; the basis is everybody's, the mixtures belong to a width.

    (B_i, A_i) <- local(B, A_w) along grad F_i + orthogonal sum_l mean((B_l B_l^T - I)^2)   for i in S of width w
    B <- mean over S;   A_w <- mean over those of S with width w, unchanged where there is none

    capacities: shares of the full widths, "b4-b3-b2" (1.75, 1.25, 0.75), "1-0.5" or "b4x15-b2x5", or for everybody
    one after the other, "b1@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds); n_basis and basis_fraction:
    filters of a bank and channels of a filter, as shares of a block's. A client deploys the network of its width; the
    global model is the widest one.

    >>> flanc().settings["orthogonal"]
    10.0

    Reference: Mei et al., "Resource-Adaptive Federated Learning with All-In-One Neural Composition", 2022.
    Differs from the paper in: a client's width, which stays the same (the released code draws widths anew every
    round), and epochs, batches and rates, which are those of FedLMT's experiments. Where channels do not divide
    into the filters' they are filled with zeros.
    """
    check_server(participation, weighting, 1.0)
    check_range("orthogonal", orthogonal, 0, float("inf"))
    t = LMT_PAPER._replace(weight_decay=1e-4).given(options)
    refuse_lasting("flanc", t)

    def at(source: Model, fraction: float) -> Model:
        module = composed(source.module, fraction, n_basis, basis_fraction)
        apart = orthogonality(bank_names(module))
        added = (lambda x: orthogonal * apart(x)) if orthogonal else None
        return replace(source.like(module), penalty=added, source=source)

    def nets(source: Model) -> dict[float, Model]:
        """One network a width, the widest first."""
        return {w: at(source, w) for w in sorted(set(levels(capacities, FRACTIONS)), reverse=True)}

    def adapt(model: Model) -> Model:
        widest, *others = nets(model).items()
        whole = beside(widest[1].module, {key(w): net.module for w, net in others}) if others else widest[1].module
        return replace(widest[1], module=whole)

    def bind(p: Problem) -> Program[Server]:
        assert p.model.source is not None
        forms = nets(p.model.source)
        views = {w: named_view(form, p.model.start, place(p, w, max(forms))) for w, form in forms.items()}
        groups = [(s, views[s.capacity]) for s in shares(capacities, FRACTIONS, p.clients, p.rounds)]
        phase = Phase(p.parameters, t.amount, t.lr)
        viewed = replace(p, views=lambda r: assigned(groups, r))
        return federated(viewed, [phase], t, p.names, participation, weighting)

    own = {"capacities": capacities, "n_basis": n_basis, "basis_fraction": basis_fraction, "orthogonal": orthogonal}
    server = {"participation": participation, "weighting": weighting}
    return Algorithm("flanc", {**own, **server, **t._asdict()}, bind, adapt)


def key(width: float) -> str:
    """A width as a part of a name.

    >>> key(0.75)
    '0_75'
    """
    return f"{width:g}".replace(".", "_")


def place(p: Problem, width: float, widest: float) -> Callable[[str], str]:
    """Where the server holds what a network of that width calls so: the banks once, everything else once a width."""
    banks = frozenset(bank_names(p.module))
    return lambda name: name if width == widest or name in banks else f"others.{key(width)}.{name}"
