"""The transformer of FedLMT's WikiText-2 experiment: every position predicts its token."""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.annotations import PositiveInt, Range
from ..core.errors import UserError
from .parts import WidthRate, scaled_width


class Attention(nn.Module):
    """Causal attention: position t looks at positions 0..t.

    It is written out in matrix products, because fused kernels can neither be lifted over clients nor counted.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * heads * head_dim)
        self.out = nn.Linear(heads * head_dim, dim)
        self.dropout = nn.Dropout(dropout)

    @property
    def pieces(self) -> dict[str, dict[int, tuple[int, int]]]:
        """The dimensions that are (projections, heads) pieces side by side; a narrower model has less of each piece."""
        joined = {0: (3, self.heads)}
        return {"qkv.weight": joined, "qkv.bias": joined, "out.weight": {1: (1, self.heads)}}

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] -> [B, T, dim]."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, heads, T, head_dim]
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(2, 3)) * q.shape[3] ** -0.5
        seen = self.dropout(scores.masked_fill(later, float("-inf")).softmax(3))
        return self.out((seen @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class TransformerLayer(nn.Module):
    """Attention and a feed-forward part, each added to its input and normalized afterwards."""

    def __init__(self, dim: int, heads: int, head_dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, head_dim, dropout)
        self.norm1 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, hidden)
        self.linear2 = nn.Linear(hidden, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] -> [B, T, dim]."""
        x = self.norm1(x + self.dropout(self.attention(x)))
        h = self.linear2(self.dropout(F.gelu(self.linear1(x))))
        return self.norm2(x + self.dropout(h))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Tokens and learned positions, layers, and a decoder of two linear layers."""

    def __init__(
        self,
        vocabulary: int,
        positions: int,
        dim: int,
        heads: int,
        head_dim: int,
        hidden: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary + 1, dim)  # the last row is the mask
        self.positions = nn.Embedding(positions, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(*(TransformerLayer(dim, heads, head_dim, hidden, dropout) for _ in range(layers)))
        self.decoder = nn.Linear(dim, dim)
        self.decoder_norm = nn.LayerNorm(dim)
        self.linear = nn.Linear(dim, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [B, T] -> scores [B, vocabulary, T]: the classes along dimension 1, as the loss has them."""
        places = torch.arange(x.shape[1], device=x.device)
        h = self.dropout(self.norm(self.tokens(x) + self.positions(places)))
        h = self.decoder_norm(F.gelu(self.decoder(self.layers(h))))
        return self.linear(h).transpose(1, 2)  # type: ignore[no-any-return]


def transformer_mlm(
    shape: Sequence[int],
    classes: int,
    *,
    dim: PositiveInt = 128,
    heads: PositiveInt = 8,
    hidden: PositiveInt = 2048,
    layers: PositiveInt = 3,
    dropout: Annotated[float, Range(0, 1, below=True)] = 0.1,
    rate: WidthRate = 1.0,
) -> nn.Module:
    """Build a masked language model over ``classes`` tokens; token number ``classes`` is the mask.

    Samples are ``shape[0]`` tokens long. ``dim``: of a token; ``heads``: of the attention; ``hidden``: of the
    feed-forward parts; ``rate``: the share of every width that is kept, also in each head, while the number of heads
    stays (as in the code released with HeteroFL). Linear weights are U(-0.1, 0.1) and embeddings N(0, 0.1), as in the
    code released with FedLMT.
    """
    if len(shape) != 1:
        raise UserError(f"transformer-mlm takes rows of tokens [length], not samples of shape {list(shape)}")
    if dim % heads:
        raise UserError(f"heads={heads} does not divide dim={dim}: choose a number of heads that does")
    widths = (scaled_width(dim, rate), heads, scaled_width(dim // heads, rate), scaled_width(hidden, rate))
    module = Transformer(classes, shape[0], *widths, layers, dropout)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.uniform_(layer.weight, -0.1, 0.1)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight, std=0.1)
    return module
