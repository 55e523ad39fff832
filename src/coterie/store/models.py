"""The clients' models of a finished run: a file for what all of them have the same, and a file for each client."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..core.clients import in_file_name
from ..core.tensors import Tensors
from .digests import Digests
from .safetensors import save_tensors

MODELS = "clients"  # a folder of a run
SUFFIX = ".safetensors"
COMMON = f"{MODELS}/common{SUFFIX}"


def write_models(run: Path, names: Sequence[str], clients: Iterable[Tensors], common: Tensors) -> dict[str, str]:
    """Write what all clients have and what each has of its own; return the SHA-256 of every file by its path.

    There is no common file where clients have nothing the same.
    """
    sha256 = {COMMON: save_tensors(run / COMMON, common)} if common else {}
    for i, tensors in enumerate(clients):
        file = f"{MODELS}/{in_file_name(names, i)}{SUFFIX}"
        sha256[file] = save_tensors(run / file, tensors)
    return sha256


def read_common(files: Digests) -> Tensors:
    """Return what all clients have the same."""
    return files.tensors(files.folder / COMMON) if COMMON in files.sha256 else {}


def client_file(run: Path, client: int) -> Path:
    """Return the file of a client's model, which has the client's name behind the number if it has one."""
    stem = in_file_name((), client)
    return next((run / MODELS).glob(f"{stem}-*{SUFFIX}"), run / MODELS / f"{stem}{SUFFIX}")
