"""A checkpoint in parts: every shard of a run writes the rows of its clients, and they count together or not at all."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from ..core.tensors import Tensors
from .saving import save_tensors

ROWS, COMMON, CLIENTS = "rows/", "common/", "clients"


def save_part(path: Path, tensors: Tensors, clients: NDArray[np.int64], stacked: frozenset[str]) -> str:
    """One shard's part; who has the first client writes what is nobody's own too. Returns its SHA-256."""
    rows = {ROWS + k: v for k, v in tensors.items() if k in stacked}
    common = {COMMON + k: v for k, v in tensors.items() if k not in stacked and clients[0] == 0}
    return save_tensors(path, rows | common | {CLIENTS: torch.from_numpy(clients)})


def merged(parts: Sequence[Tensors]) -> Tensors:
    """The whole state, as one place would have written it."""
    order = torch.cat([part[CLIENTS] for part in parts]).argsort()
    common = {k.removeprefix(COMMON): v for part in parts for k, v in part.items() if k.startswith(COMMON)}
    names = [k for k in parts[0] if k.startswith(ROWS)]
    return common | {k.removeprefix(ROWS): torch.cat([part[k] for part in parts])[order] for k in names}


def load_parts(paths: Sequence[Path]) -> Tensors:
    """The whole state from its parts."""
    return merged([load_file(path) for path in paths])
