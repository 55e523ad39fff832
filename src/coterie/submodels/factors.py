"""Low-rank layers: W = U V^T, with the factors in the shapes in which they are applied.

A k x k convolution is a 1 x k convolution V followed by a k x 1 convolution U, with nothing between them:

    W[o, i, a, b] = sum_q U[o, q, a, 0] V[q, i, 0, b]

so U is a matrix of k c_out rows, V one of k c_in rows, and both have as many columns as the rank. Weight decay becomes

    frobenius   ||U V^T||_F^2  =  trace((U^T U)(V^T V))
    l2          ||U||^2 + ||V||^2
    kronecker   ||U||^2 ||V||^2

frobenius <= kronecker <= (l2 / 2)^2, with equality throughout where U and V have one column of equal length.
There is no factor 1/2: the gradient of ``frobenius`` in U is 2 U V^T V.

Reference: Khodak et al. 2021, "Initialization and Regularization of Factorized Neural Layers"; Liu et al. 2024.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def matrices(U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of a layer as matrices of r columns; those of linear layers and embeddings are matrices.

    >>> [tuple(m.shape) for m in matrices(torch.zeros(8, 2, 3, 1), torch.zeros(2, 4, 1, 3))]
    [(24, 2), (12, 2)]
    """
    if U.dim() == 2:
        return U, V
    return U.permute(0, 2, 3, 1).flatten(0, 2), V.permute(1, 2, 3, 0).flatten(0, 2)


def product(U: Tensor, V: Tensor) -> Tensor:
    """Return the weight of the ordinary layer that computes the same."""
    left, right = matrices(U, V)
    W = left @ right.T
    if U.dim() == 2:
        return W
    return W.view(U.shape[0], U.shape[2], V.shape[1], V.shape[3]).transpose(1, 2).contiguous()


def unrolled(weight: Tensor) -> Tensor:
    """Return the weight of an ordinary layer as the matrix U V^T: (o, i, a, b) is in row (o, a) and column (i, b)."""
    return weight if weight.dim() == 2 else weight.transpose(1, 2).flatten(2).flatten(0, 1)


def spectral(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the nearest factors of that rank, of equal size: U = A S^1/2 and V = B S^1/2 for W = A S B^T.

    Columns beyond the rank of W are zero. Libraries differ in the signs: here the largest entry of each column of U is
    positive.
    """
    W = unrolled(weight.detach())
    # A GPU takes five times as long for singular values as for eigenvalues.
    squares = W.is_cuda and W.dtype == torch.float32
    A, S, Bt = squared_svd(W) if squares else torch.linalg.svd(W, full_matrices=False)
    A, Bt = A[:, :rank], Bt[:rank]
    root = S[:rank].sqrt() * A.gather(0, A.abs().argmax(0, keepdim=True))[0].sign()
    beyond = (0, rank - len(root))
    return _rolled(F.pad(A * root, beyond), F.pad(Bt.T * root, beyond), weight)


def squared_svd(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, S and B^T of W = A S B^T, largest values first, from the eigenvectors B of W^T W.

    Squares have half of the digits for small values. In double precision that is more than single precision has.
    """
    if W.shape[0] < W.shape[1]:
        B, S, At = squared_svd(W.T)
        return At.T, S, B.T
    exact = W.double()
    B = torch.linalg.eigh(exact.T @ exact)[1].flip(1)
    scaled = exact @ B
    S = scaled.norm(dim=0)
    A = scaled / torch.where(S > 0, S, 1.0)
    return A.to(W), S.to(W), B.T.to(W)


def kaiming(weight: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw factors, N(0, 2 / fan-out) each, as if the two steps x -> V^T x -> U (V^T x) were layers of their own.

    They are drawn on the CPU, so that they do not depend on the device.
    """
    rows, columns = unrolled(weight).shape
    width = weight.shape[3] if weight.dim() == 4 else 1

    def draw(size: int, fan_out: int) -> Tensor:
        numbers = torch.randn(size, rank, generator=generator, dtype=weight.dtype, device="cpu")
        return (numbers * math.sqrt(2 / fan_out)).to(weight.device)

    return _rolled(draw(rows, rows), draw(columns, rank * width), weight)


def _rolled(U: Tensor, V: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrices in the shapes of the factors of a layer with this weight: the inverse of ``matrices``."""
    if weight.dim() == 2:
        return U.contiguous(), V.contiguous()
    o, i, a, b = weight.shape
    down, across = U.reshape(o, a, 1, -1), V.reshape(i, 1, b, -1)
    return down.permute(0, 3, 1, 2).contiguous(), across.permute(3, 0, 1, 2).contiguous()


def frobenius(U: Tensor, V: Tensor) -> Tensor:
    """Return the decay of the product, at the cost of r x r matrices: U V^T itself is never computed."""
    return ((U.T @ U) * (V.T @ V)).sum()


def l2(U: Tensor, V: Tensor) -> Tensor:
    """Return the decay of both factors."""
    return U.square().sum() + V.square().sum()


def kronecker(U: Tensor, V: Tensor) -> Tensor:
    """Return the decay of the Kronecker product of the factors."""
    return U.square().sum() * V.square().sum()


TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"frobenius": frobenius, "l2": l2, "kronecker": kronecker}


class LowRank(nn.Module, ABC):
    """A layer that holds factors instead of a weight, made of an ordinary layer and its new factors."""

    U: nn.Parameter
    V: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: nn.Module, U: Tensor, V: Tensor) -> None:
        super().__init__()
        trained = layer.get_parameter("weight").requires_grad
        self.U, self.V = nn.Parameter(U, trained), nn.Parameter(V, trained)
        bias = getattr(layer, "bias", None)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)
        self.train(layer.training)

    @property
    def weight(self) -> Tensor:
        """The weight of the ordinary layer, for code that reads it."""
        return product(self.U, self.V)

    @classmethod
    def drawn(cls, weight: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw factors for a layer of this kind."""
        return kaiming(weight, rank, generator)

    def ordinary(self) -> nn.Module:
        """Return the ordinary layer that computes the same."""
        layer = self._blank()
        layer.weight = nn.Parameter(self.weight.detach(), self.U.requires_grad)
        if self.bias is not None:
            layer.bias = nn.Parameter(self.bias.detach().clone(), self.bias.requires_grad)
        return layer.train(self.training)

    @abstractmethod
    def _blank(self) -> nn.Module:
        """Return an ordinary layer of this form, without values: on the meta device nothing is drawn."""


class LowRankConv2d(LowRank):
    """A 1 x k convolution and a k x 1 convolution; the bias is added at the end."""

    def __init__(self, layer: nn.Conv2d, U: Tensor, V: Tensor) -> None:
        super().__init__(layer, U, V)
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation

    def forward(self, x: Tensor) -> Tensor:
        """[B, c_in, h, w] -> [B, c_out, h', w']."""
        s, p, d = self.stride, self.padding, self.dilation
        across, down = (p, p) if isinstance(p, str) else ((0, p[1]), (p[0], 0))
        h = F.conv2d(x, self.V, None, (1, s[1]), across, (1, d[1]))
        # In half precision ``vmap`` compares their types before they are rounded.
        bias = None if self.bias is None else self.bias.to(h.dtype)
        return F.conv2d(h, self.U.to(h.dtype), bias, (s[0], 1), down, (d[0], 1))

    def _blank(self) -> nn.Module:
        (out, _, a, _), (_, into, _, b) = self.U.shape, self.V.shape
        form: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return nn.Conv2d(into, out, (a, b), **form, bias=self.bias is not None, device="meta")

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return f"{self.V.shape[1]}, {self.U.shape[0]}, rank={self.U.shape[1]}"


class LowRankLinear(LowRank):
    """x -> U (V^T x) + bias."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., n] -> [..., m]."""
        return F.linear(x @ self.V, self.U, self.bias)

    def _blank(self) -> nn.Module:
        return nn.Linear(len(self.V), len(self.U), bias=self.bias is not None, device="meta")

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return f"{len(self.V)}, {len(self.U)}, rank={self.U.shape[1]}"


class LowRankEmbedding(LowRank):
    """x -> row x of U, times V^T."""

    def __init__(self, layer: nn.Embedding, U: Tensor, V: Tensor) -> None:
        super().__init__(layer, U, V)
        self.padding_idx = layer.padding_idx

    def forward(self, x: Tensor) -> Tensor:
        """Rows [...] -> [..., m]."""
        return F.embedding(x, self.U, self.padding_idx) @ self.V.T

    @classmethod
    def drawn(cls, weight: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw factors the other way round: a row of U is the first step, V the second."""
        V, U = kaiming(weight.T, rank, generator)
        return U, V

    def _blank(self) -> nn.Module:
        return nn.Embedding(len(self.U), len(self.V), self.padding_idx, device="meta")

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return f"{len(self.U)}, {len(self.V)}, rank={self.U.shape[1]}"
