"""Tokens that are hidden anew in every pass, drawn where a batch is used."""

from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN, _FIRST, _SECOND = (  # splitmix64's constants as signed numbers, which wrap around as unsigned ones do
    number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass(frozen=True)
class Masking:
    """What is done to stored tokens [B, T]: some are replaced by the mask, whose number is ``tokens``.

    A token that is hidden when a model is evaluated is stored as its own number plus ``tokens`` + 1, so both are known:
    which one stands there, and whether it is hidden then. In training each pass hides others, by chance that comes in
    as one whole number a sample.

    >>> stored = torch.tensor([[3, 1, 2 + 10]])
    >>> Masking(tokens=9, probability=0.15).plain(stored).tolist()
    [[3, 1, 9]]
    >>> Masking(tokens=9, probability=0.0).augmented(stored, torch.tensor([5])).tolist()
    [[3, 1, 2]]
    """

    tokens: int  # how many there are
    probability: float  # how likely each of them is hidden

    @property
    def random(self) -> bool:
        """Training samples differ from one pass to the next."""
        return True

    def stored(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """How tokens are kept of which some are ``hidden`` in evaluation."""
        return tokens + hidden * (self.tokens + 1)

    def plain(self, raw: Tensor) -> Tensor:
        """With the tokens hidden that are hidden in evaluation."""
        return raw.clamp(max=self.tokens)

    def augmented(self, raw: Tensor, draw: Tensor) -> Tensor:
        """With those hidden that ``draw`` [B] says: whether a token is depends on its draw and its place alone."""
        place = torch.arange(1, raw.shape[1] + 1, device=raw.device)
        drawn = _shifted(_scrambled(draw[:, None] + place * _GOLDEN), 11)  # 53 bits
        hidden = drawn < round(self.probability * 2**53)
        return torch.where(hidden, self.tokens, raw % (self.tokens + 1))


def _scrambled(z: Tensor) -> Tensor:
    """The output function of splitmix64, as in ``chance``, where the batches are."""
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shifted to the right as if there were no sign."""
    shifted: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return shifted
