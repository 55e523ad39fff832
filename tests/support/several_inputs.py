"""Models and samples with two inputs: tokens and the mask that hides some of them."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import coterie as ct
from coterie.data import Federation
from modules import Output

LENGTH, WORDS = 6, 12
SIZES = (7, 4, 5)  # of clients: some batches are padded


class Attention(nn.Module):
    """Tokens that look at each other, unless the mask hides them."""

    def __init__(self, rate: float = 0.2) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(WORDS, 8), nn.Dropout(rate)
        self.attend, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def scores(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Scores of the mean of what is not hidden."""
        h = self.embed(tokens)
        seen = mask[..., None].to(h)
        h = self.norm(h + self.attend(h, h, h, key_padding_mask=mask == 0, need_weights=False)[0])
        return self.head((self.drop(h) * seen).sum(1) / seen.sum(1))


class ByName(Attention):
    """The inputs are arguments, as those of Hugging Face models are, in another order than the data have them."""

    def forward(self, attention_mask: Tensor, input_ids: Tensor) -> Output:
        return Output(self.scores(input_ids, attention_mask))


class InOrder(Attention):
    """The inputs come in order."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.scores(tokens, mask)


class Packed(Attention):
    """Both inputs come in one tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(*x.unbind(1))


FORMS: dict[type[Attention], Callable[[Tensor, Tensor], Any]] = {
    ByName: lambda tokens, mask: {"input_ids": tokens, "attention_mask": mask},
    InOrder: lambda tokens, mask: (tokens, mask),
    Packed: lambda tokens, mask: torch.stack([tokens, mask], 1),
}


@cache
def drawn() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Tokens, mask and label of every client's samples; sentences are of any length, padded to one."""
    g = torch.Generator().manual_seed(0)
    found = []
    for size in SIZES:
        label, length = torch.randint(0, 3, (size,), generator=g), torch.randint(1, LENGTH + 1, (size, 1), generator=g)
        mask = (torch.arange(LENGTH) < length).long()
        found.append((torch.randint(1, 5, (size, LENGTH), generator=g) * mask + label[:, None] * mask, mask, label))
    return found


@cache
def federation(form: type[Attention]) -> Federation:
    """The same samples in any form."""
    parts = [(FORMS[form](tokens, mask), label) for tokens, mask, label in drawn()]
    return ct.data.from_tensors(train=parts, test=parts, classes=3)


def module(form: type[Attention], rate: float = 0.2) -> nn.Module:
    """A model in double precision with fixed values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return form(rate).double()
