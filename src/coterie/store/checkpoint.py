"""The state of a run after a round. The previous checkpoint stays until the new one is whole."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import RequestError
from ..tensors import Tensors
from .files import digest, replace, write_json
from .serialised import serialised

KEPT = 2  # while a run goes on: should the newest turn out to be damaged


class Checkpoint(NamedTuple):
    """What was saved after ``round`` rounds."""

    round: int
    tensors: Tensors


def flatten(state: Any) -> Tensors:
    """A NamedTuple of tensors, named tensors and further such tuples as ``slot/name``."""
    if isinstance(state, Tensor):
        return {"": state}
    slots = state if isinstance(state, dict) else state._asdict()
    return {f"{slot}/{k}".rstrip("/"): v for slot, value in slots.items() for k, v in flatten(value).items()}


def unflatten(template: Any, flat: Tensors, at: str = "") -> Any:
    """The state of the shape of ``template`` that ``flatten`` took apart."""
    if isinstance(template, Tensor):
        return flat[at.rstrip("/")].to(template.device)
    slots = template if isinstance(template, dict) else template._asdict()
    values = {slot: unflatten(value, flat, f"{at}{slot}/") for slot, value in slots.items()}
    return values if isinstance(template, dict) else type(template)(**values)


def save_tensors(path: Path, tensors: Tensors, about: dict[str, str] | None = None) -> str:
    """A safetensors file, whole or not at all; returns the SHA-256 of its content."""
    # Not the library's save_file: it writes through a temporary file of its own, under a random name that a kill leaves
    # behind, readable to nobody else, and its errors are no OSErrors. Nor its save: that takes the state twice more.
    seen = hashlib.sha256()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as f:
            for part in serialised(tensors, about):
                seen.update(part)
                f.write(part)

    replace(path, write)
    return seen.hexdigest()


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint; its small JSON file comes last and makes it count."""
    stem = f"round-{checkpoint.round:06d}"
    sha256 = save_tensors(folder / f"{stem}.safetensors", checkpoint.tensors)
    write_json(folder / f"{stem}.json", {"round": checkpoint.round, "sha256": sha256})
    prune(folder, KEPT)


def prune(folder: Path, kept: int) -> None:
    """Removes all but the ``kept`` newest checkpoints, and what a kill left of others."""
    stems = {path.stem for path in sorted(folder.glob("round-*.json"))[-kept:]}
    for path in sorted(folder.glob("round-*")):  # the JSON file first: without it the other does not count
        if path.stem not in stems:
            path.unlink()
    for path in sorted(folder.glob(".round-*")):
        path.unlink()


def newest(folder: Path, say: Callable[[str], object]) -> Checkpoint | None:
    """The newest whole checkpoint; ``say`` is told of every damaged one that was passed over."""
    found = sorted(folder.glob("round-*.json"), reverse=True)
    for path in found:
        checkpoint = _read(path)
        if checkpoint is not None:
            return checkpoint
        say(f"checkpoint {path.with_suffix('.safetensors')} is damaged: going back to the one before it")
    if found:
        raise RequestError(f"every checkpoint in {folder} is damaged: start again with another --out")
    return None


def _read(path: Path) -> Checkpoint | None:
    data = path.with_suffix(".safetensors")
    try:
        round = int(path.stem.removeprefix("round-"))
        if json.loads(path.read_text()) != {"round": round, "sha256": digest(data)}:
            return None
        return Checkpoint(round, load_file(data))
    except (OSError, ValueError, SafetensorError):
        return None
