"""The SHA-256 of what a run is read back from, and the one check of it.

A file that was edited, swapped with another one or damaged by a disk may still be well-formed, with numbers of the
right types. So every such file has its digest in a JSON file beside it, which is written with it, and which the digest
is read from before the file is used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file

from ..core.checked_json import read_json
from ..core.errors import DamagedFileError
from ..core.files import digest
from ..core.schema import DigestFile
from ..core.tensors import Tensors

DIGESTS = "digests.json"  # of a finished run


class Digests(NamedTuple):
    """What the files of a finished run held when it wrote them."""

    folder: Path
    sha256: Mapping[str, str]  # by the path in the folder, as clients/client-0000.safetensors

    @classmethod
    def of(cls, folder: Path) -> "Digests":
        """Read the file of a folder."""
        record = folder / DIGESTS
        if not record.exists():
            raise DamagedFileError(record, "it is missing, and the other files cannot be checked without it")
        return cls(folder, read_json(record, DigestFile)["sha256"])

    def check(self, file: Path) -> None:
        """Refuse a file that is not as the run wrote it."""
        check_digest(file, self._of(file), self.folder / DIGESTS)

    def tensors(self, file: Path) -> Tensors:
        """Return the tensors of a file; refuse one that is not as the run wrote it."""
        return read_tensors(file, self._of(file), self.folder / DIGESTS)

    def _of(self, file: Path) -> str:
        return self.sha256.get(file.relative_to(self.folder).as_posix(), "")


def check_digest(file: Path, sha256: str, record: Path) -> None:
    """Refuse a file that is not as it was written; ``record``: the file that has its digest."""
    if not file.is_file():
        raise DamagedFileError(file, f"it is missing, and {record.name} names it")
    try:
        current = digest(file)
    except OSError as error:
        raise DamagedFileError(file, f"it cannot be read ({error.strerror})") from error
    if current != sha256:
        raise DamagedFileError(file, f"its hash is another than the sha256 of {record.name}")


def read_tensors(file: Path, sha256: str, record: Path) -> Tensors:
    """Return the tensors of a file; refuse one that is not as it was written; ``record``: see ``check_digest``."""
    check_digest(file, sha256, record)
    try:
        return load_file(file)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise DamagedFileError(file, f"it cannot be read ({error})") from error
