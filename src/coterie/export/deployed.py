"""A client's model as a device would run it: from a sample of the data set to its scores."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..data import Transform

Shape = tuple[int, ...]


class Prepared(nn.Module):
    """Images as they are stored (uint8), normalized, then answered."""

    def __init__(self, module: nn.Module, transform: Transform) -> None:
        super().__init__()
        self.module, self.transform = module, transform

    def forward(self, x: Tensor) -> Tensor:
        """uint8 [B, C, H, W] -> scores."""
        return self.module(self.transform.plain(x))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Deployed:
    """A module in evaluation mode, what makes its inputs, and what is known of it as texts."""

    module: nn.Module
    transform: Transform | None
    input_shape: Shape | None  # of one sample; not known of modules that Coterie did not build
    known: dict[str, str]

    @property
    def about(self) -> dict[str, str]:
        """All metadata of a file that holds the weights alone: how to make its inputs is among them."""
        if self.transform is None:
            return self.known
        normalized = {"mean": str(list(self.transform.mean)), "std": str(list(self.transform.std))}
        return self.known | normalized | {"normalized": "(x / 255 - mean) / std"}

    @property
    def whole(self) -> nn.Module:
        """With its normalization, where the data need one."""
        if self.transform is None:
            return self.module
        return Prepared(self.module, self.transform).eval()

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of a sample: bytes of images, token numbers, else that of the weights; found by trying."""
        if self.transform is not None:
            return torch.uint8
        own = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        try:
            with torch.no_grad():
                self.module(torch.zeros(1, *self._shape, dtype=own))
        except RuntimeError:
            return torch.int64
        return own

    def samples(self, count: int) -> Tensor:
        """Random samples of the right shape and type, always the same."""
        drawn = torch.Generator().manual_seed(count)
        if self.dtype.is_floating_point:
            return torch.randn(count, *self._shape, generator=drawn, dtype=self.dtype)
        most = 256 if self.transform is not None else int(self.known["classes"])
        return torch.randint(0, most, (count, *self._shape), generator=drawn, dtype=self.dtype)

    @property
    def inputs(self) -> str:
        """What the whole model takes, in words."""
        kind = str(self.dtype).removeprefix("torch.")
        shape = ", ".join(map(str, ("batch", *self._shape)))
        if self.transform is not None:
            return f"{kind} [{shape}]: images as they are stored, 0 to 255; the normalization is inside"
        return f"{kind} [{shape}]: samples as the data set gives them"

    @property
    def _shape(self) -> Shape:
        if self.input_shape is None:
            raise UserError("the shape of a sample is not known of a module of your own: use safetensors for it")
        return self.input_shape
