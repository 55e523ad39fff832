"""Regularizers of low-rank layers: what weight decay becomes when a weight is a product.

    frobenius   ||U V^T||_F^2  =  trace((U^T U)(V^T V))
    l2          ||U||^2 + ||V||^2
    kronecker   ||U||^2 ||V||^2

frobenius <= kronecker <= (l2 / 2)^2, with equality throughout where U and V have one column of equal length.
There is no factor 1/2: the gradient of ``frobenius`` in U is 2 U V^T V.

Reference: Khodak et al. 2021, "Initialization and Regularization of Factorized Neural Layers"; Liu et al. 2024.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ..core.errors import UserError, unknown
from ..core.tensors import Tensors
from .lowrank import Pair


def frobenius(U: Tensor, V: Tensor) -> Tensor:
    """The decay of the product, at the cost of r x r matrices: U V^T itself is never formed."""
    return ((U.T @ U) * (V.T @ V)).sum()


def l2(U: Tensor, V: Tensor) -> Tensor:
    """The decay of both factors."""
    return U.square().sum() + V.square().sum()


def kronecker(U: Tensor, V: Tensor) -> Tensor:
    """The decay of the Kronecker product of the factors."""
    return U.square().sum() * V.square().sum()


TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"frobenius": frobenius, "l2": l2, "kronecker": kronecker}


def penalty(pairs: Sequence[Pair], coefficients: Mapping[str, float]) -> Callable[[Tensors], Tensor]:
    """What is added to the loss: the chosen terms with their coefficients, summed over all layers.

    ``pairs``: as ``factor_pairs`` gives them; ``coefficients``: as ``{"frobenius": 1e-4, "l2": 1e-5}``.

    >>> import torch
    >>> x = {"0.U": torch.ones(3, 1), "0.V": torch.ones(2, 1)}
    >>> float(penalty([Pair("0.U", "0.V", "0.weight")], {"frobenius": 0.5, "l2": 1.0})(x))  # 6 / 2 + 3 + 2
    8.0
    """
    for name, coefficient in coefficients.items():
        if name not in TERMS:
            raise unknown("regularizer", name, TERMS)
        if not coefficient >= 0:
            raise UserError(f"the coefficient {coefficient} of {name} must be at least 0")
    terms = [(TERMS[name], c) for name, c in coefficients.items() if c]

    def value(tensors: Tensors) -> Tensor:
        total = next(iter(tensors.values())).new_zeros(())
        for pair in pairs:
            U, V = pair.matrices(tensors)
            for term, c in terms:
                total = total + c * term(U, V)
        return total

    return value
