"""Files that the safetensors library reads as its own."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as library_bytes
from torch import Tensor

from coterie.errors import RequestError
from coterie.store import serialised
from coterie.store.checkpoint import save_tensors
from coterie.tensors import Tensors
from helpers_cli import contents

# The format


def noise(dtype: torch.dtype, *shape: int) -> Tensor:
    """Random bits, so that every type has its odd values; booleans must be 0 or 1."""
    g = torch.Generator().manual_seed(len(shape))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    width = torch.zeros((), dtype=dtype).element_size()
    return torch.randint(0, 256, (*shape, width), generator=g, dtype=torch.uint8).view(dtype).squeeze(-1)


def laid_out(dtype: torch.dtype) -> Tensors:
    """Tensors in every way they can lie in memory."""
    x, image = noise(dtype, 6, 10), noise(dtype, 2, 3, 4, 5)
    return {
        "plain": x,
        "same memory": x,
        "number": noise(dtype),
        "empty": noise(dtype, 0, 3),
        "hollow": noise(dtype, 3, 0),
        "turned": x.t(),
        "every second": x[::2, 1::3],
        "later": x[3:],
        "channels last": image.to(memory_format=torch.channels_last),
        "permuted": image.permute(3, 0, 2, 1),
        "replicated": x[0].expand(7, 10),
        "one number replicated": noise(dtype).expand(4, 3),
        "long": noise(dtype, 1, 1, 50),
    }


def bits(x: Tensor) -> bytes:
    return bytes(x.contiguous().reshape(-1).view(torch.uint8).tolist()) if x.numel() else b""


def in_memory_of_its_own(tensors: Tensors) -> Tensors:
    """As the library wants them."""
    return {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


@pytest.mark.parametrize("piece", [16, 24, 100, 2**20])
@pytest.mark.parametrize("dtype", serialised.NAMES, ids=str)
def test_files_are_the_library_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, piece: int
) -> None:
    monkeypatch.setattr(serialised, "PIECE", piece)
    tensors = laid_out(dtype)
    sha256 = save_tensors(tmp_path / "a", tensors)
    content = (tmp_path / "a").read_bytes()
    assert sha256 == hashlib.sha256(content).hexdigest()
    assert content == library_bytes(in_memory_of_its_own(tensors))
    loaded = load_file(tmp_path / "a")
    assert loaded.keys() == tensors.keys()
    for k, v in tensors.items():
        assert (loaded[k].dtype, loaded[k].shape, bits(loaded[k])) == (v.dtype, v.shape, bits(v)), k


def test_many_types_and_what_they_are_about(tmp_path: Path) -> None:
    """Wide types come first, so that every tensor lies at a multiple of its width."""
    mixed = {f'{i}: "{dtype}" für 🐑\n': noise(dtype, 3) for i, dtype in enumerate(reversed(serialised.NAMES))}
    about = {"what": 'a "test" für 🐑'}
    save_tensors(tmp_path / "a", mixed, about)
    assert (tmp_path / "a").read_bytes() == library_bytes(in_memory_of_its_own(mixed), metadata=about)
    with safe_open(tmp_path / "a", "pt") as f:
        assert f.metadata() == about
    save_tensors(tmp_path / "none", {})
    assert load_file(tmp_path / "none") == {}


def test_parameters_need_no_detaching(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    save_tensors(tmp_path / "a", dict(layer.named_parameters()))
    assert torch.equal(load_file(tmp_path / "a")["weight"], layer.weight)


def test_nothing_is_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what lies in order, no byte is copied; of the rest, a piece at a time."""
    monkeypatch.setattr(serialised, "PIECE", 64)
    plain, turned = torch.zeros(30, 20), torch.zeros(30, 20).t()
    for tensor, copied in ((plain, False), (plain[0].expand(9, 20), False), (turned, True)):
        memory = tensor.untyped_storage()
        held = range(memory.data_ptr(), memory.data_ptr() + memory.nbytes())
        _, *parts = serialised.serialised({"x": tensor})
        assert max(len(part) for part in parts) <= 64
        places = [np.frombuffer(part, np.uint8).ctypes.data for part in parts]
        assert [place in held for place in places] == [not copied] * len(places)


def test_a_type_that_files_do_not_know(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"wave cannot be saved as torch\.complex128"):
        save_tensors(tmp_path / "a", {"wave": torch.zeros(1, dtype=torch.complex128)})
    assert contents(tmp_path) == {}
