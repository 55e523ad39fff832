"""The clients' models of a finished run: a file of what they have the same, and a file of what each has of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..core.clients import in_file_name, number_in_file_name
from ..core.tensors import Tensors
from .digests import Digests
from .safetensors import save_tensors

MODELS = "clients"  # a folder of a run
SUFFIX = ".safetensors"
COMMON = f"{MODELS}/common{SUFFIX}"


def write_models(run: Path, names: Sequence[str], clients: Iterable[Tensors], common: Tensors) -> dict[str, str]:
    """Write what clients have the same and what each has of its own; return the SHA-256 of every file by its path.

    A client that has nothing of its own has no file, and there is no common file where nothing is the same.
    """
    (run / MODELS).mkdir(parents=True, exist_ok=True)
    sha256 = {COMMON: save_tensors(run / COMMON, common)} if common else {}
    for i, tensors in enumerate(clients):
        if tensors:
            file = f"{MODELS}/{in_file_name(names, i)}{SUFFIX}"
            sha256[file] = save_tensors(run / file, tensors)
    return sha256


@dataclass(frozen=True)
class ModelFiles:
    """The files of the clients' models, each of which is read when it is asked for."""

    digests: Digests

    def common(self) -> Tensors:
        """Return what clients have the same."""
        return self.digests.tensors(self.digests.folder / COMMON) if COMMON in self.digests.sha256 else {}

    def own(self, client: int) -> Tensors:
        """Return what a client has of its own."""
        return self.digests.tensors(self.path(client)) if client in self._paths else {}

    def path(self, client: int) -> Path:
        """Return the file of a client, or the common one where it has none."""
        return self.digests.folder / self._paths.get(client, COMMON)

    @cached_property
    def _paths(self) -> dict[int, str]:
        named = {path: number_in_file_name(Path(path).name) for path in self.digests.sha256 if path.startswith(MODELS)}
        return {number: path for path, number in named.items() if number is not None}
