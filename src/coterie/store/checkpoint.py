"""The state of a run after a round. The previous checkpoint stays until the new one is whole.

A run on a cluster writes one part per shard, with the rows of the shard's clients. The parts count together or not at
all, and reading puts them together, so that a run goes on with other shards or without any.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.checked_json import read_json
from ..core.errors import DamagedFileError, FolderError, UserError
from ..core.files import write_json
from ..core.schema import CheckpointFile
from ..core.tensors import Tensors
from .digests import check_digest, read_tensors
from .safetensors import save_tensors

KEPT = 2  # while a run goes on: should the newest turn out to be damaged
LEFT_OUT = "left-out"  # stands in a pack in place of a checkpoint
ROWS, COMMON, CLIENTS = "rows/", "common/", "clients"  # of a part: per client, nobody's own, which clients


class Checkpoint(NamedTuple):
    """What was saved after ``round`` rounds."""

    round: int
    tensors: Tensors


class StateElsewhere(Protocol):
    """A state in the memory of other processes, which write it themselves."""

    def write(self, stem: Path) -> dict[str, str]:
        """Write files whose names begin with ``stem``, and return the SHA-256 of each."""

    def gathered(self) -> Tensors:
        """Return all of it in this process."""


Saved = Tensors | StateElsewhere
"""What is to be saved of a run."""


def flatten(state: Any) -> Tensors:
    """Return a NamedTuple of tensors, named tensors and further such tuples as ``slot/name``."""
    if isinstance(state, Tensor):
        return {"": state}
    slots = state if isinstance(state, dict) else state._asdict()
    return {f"{slot}/{k}".rstrip("/"): v for slot, value in slots.items() for k, v in flatten(value).items()}


def unflatten(template: Any, flat: Tensors, at: str = "") -> Any:
    """Return the state of the shape of ``template`` that ``flatten`` took apart."""
    if isinstance(template, Tensor):
        name = at.rstrip("/")
        found = list(flat[name].shape) if name in flat else "missing"
        if found != list(template.shape):
            raise UserError(f"{name} of the checkpoint is {found} and should be {list(template.shape)}")
        return flat[name].to(template.device)
    slots = template if isinstance(template, dict) else template._asdict()
    values = {slot: unflatten(value, flat, f"{at}{slot}/") for slot, value in slots.items()}
    return values if isinstance(template, dict) else type(template)(**values)


def save(folder: Path, round: int, state: Saved) -> None:
    """Write a checkpoint; its small JSON file comes last and makes it count, all of its parts at once."""
    stem = _stem(round)
    about: CheckpointFile = {"round": round}
    if isinstance(state, dict):
        about["sha256"] = save_tensors(folder / f"{stem}.safetensors", state)
    else:
        about["parts"] = state.write(folder / stem)
    write_json(folder / f"{stem}.json", about)
    prune(folder, KEPT)


def save_part(path: Path, tensors: Tensors, clients: NDArray[np.int64], stacked: frozenset[str]) -> str:
    """Write one shard's part and return its SHA-256; the shard of the first client adds what is nobody's own."""
    rows = {ROWS + k: v for k, v in tensors.items() if k in stacked}
    common = {COMMON + k: v for k, v in tensors.items() if k not in stacked and clients[0] == 0}
    return save_tensors(path, rows | common | {CLIENTS: torch.from_numpy(clients)})


def prune(folder: Path, kept: int) -> None:
    """Remove all but the ``kept`` newest checkpoints, and what a kill left of others."""
    stems = {path.stem for path in _found(folder)[:kept]}
    for path in sorted(folder.glob("round-*")):  # the JSON file first: without it the others do not count
        if path.name.partition(".")[0] not in stems:
            path.unlink()
    for path in sorted(folder.glob(".round-*")):
        path.unlink()


def newest(folder: Path, say: Callable[[str], object]) -> Checkpoint | None:
    """Return the newest whole checkpoint; ``say`` is told of every damaged one that was passed over."""
    if (folder / LEFT_OUT).exists():
        raise FolderError(
            f"the checkpoint of {folder.parent} was left out of its pack: go on where it was packed, or start again "
            "with another --out"
        )
    damages: list[str] = []
    for path in _found(folder):
        try:
            checkpoint = _read(path)
        except DamagedFileError as error:
            damages.append(error.found)
            continue
        for found in damages:
            say(f"{found}: going back to the checkpoint before it")
        return checkpoint
    for found in damages:
        raise FolderError(f"every checkpoint in {folder} is damaged ({found}): start again with another --out")
    return None


def oldest(folder: Path) -> int:
    """Return the round of the oldest checkpoint that may be gone back to, 0 without any."""
    found = _found(folder)
    return int(found[-1].stem.removeprefix("round-")) if found else 0


def newest_files(folder: Path) -> list[Path]:
    """Return the files of the newest whole checkpoint, none where there is no such."""
    for path in _found(folder):
        with suppress(DamagedFileError):
            named = _named(path)
            for file, sha in named.items():
                check_digest(file, sha, path)
            return [path, *named]
    return []


def _found(folder: Path) -> list[Path]:
    """Return the JSON files of the checkpoints, the newest first; from round 1,000,000 on names grow longer."""
    return sorted(folder.glob("round-*.json"), key=lambda path: (len(path.name), path.name), reverse=True)


def _named(path: Path) -> dict[Path, str]:
    """Return the files that the JSON file of a checkpoint names, with the hash of each."""
    about = read_json(path, CheckpointFile)
    if path.name != f"{_stem(about['round'])}.json":
        raise DamagedFileError(path, f"round is {about['round']}")
    hashes = about.get("parts") or {path.with_suffix(".safetensors").name: about.get("sha256", "")}
    found = {}
    for name, sha in hashes.items():
        file = path.parent / name
        if not name.startswith(path.stem):
            raise DamagedFileError(path, f"parts names {name!r}")
        found[file] = sha
    return found


def _read(path: Path) -> Checkpoint:
    """Return the checkpoint of a JSON file; refuse it if anything of it is damaged."""
    named = _named(path)
    parts = [read_tensors(file, sha, path) for file, sha in named.items()]
    try:
        tensors = parts[0] if [*named] == [path.with_suffix(".safetensors")] else _merge(parts)
    except (KeyError, RuntimeError) as error:
        raise DamagedFileError(path, f"its parts do not fit together ({error})") from error
    # In memory of torch's own: kernels sum in an order that depends on where numbers begin, which a file decides.
    return Checkpoint(int(path.stem.removeprefix("round-")), {k: v.clone() for k, v in tensors.items()})


def _stem(round: int) -> str:
    return f"round-{round:06d}"


def _merge(parts: Sequence[Tensors]) -> Tensors:
    """Return the whole state, as one process would have written it."""
    order = torch.cat([part[CLIENTS] for part in parts]).argsort()
    common = {k.removeprefix(COMMON): v for part in parts for k, v in part.items() if k.startswith(COMMON)}
    names = [k for k in parts[0] if k.startswith(ROWS)]
    return common | {k.removeprefix(ROWS): torch.cat([part[k] for part in parts])[order] for k in names}
