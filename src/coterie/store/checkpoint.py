"""The state of a run after a round. The previous checkpoint stays until the new one is whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..core.errors import UserError
from ..core.files import digest, write_json
from ..core.tensors import Tensors
from .parts import load_parts
from .saving import save_tensors

KEPT = 2  # while a run goes on: should the newest turn out to be damaged


class Checkpoint(NamedTuple):
    """What was saved after ``round`` rounds."""

    round: int
    tensors: Tensors


class Elsewhere(Protocol):
    """A state that lies on other machines, which write it themselves."""

    def write(self, stem: Path) -> dict[str, str]:
        """Files whose names begin like that, each with its SHA-256."""

    def gathered(self) -> Tensors:
        """All of it, here."""


Saved = Tensors | Elsewhere
"""What is to be saved of a run."""


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


def save(folder: Path, round: int, state: Saved) -> None:
    """Writes a checkpoint; its small JSON file comes last and makes it count, all of its parts at once."""
    stem = f"round-{round:06d}"
    written: dict[str, Any] = {"round": round}
    if isinstance(state, dict):
        written["sha256"] = save_tensors(folder / f"{stem}.safetensors", state)
    else:
        written["parts"] = state.write(folder / stem)
    write_json(folder / f"{stem}.json", written)
    prune(folder, KEPT)


def prune(folder: Path, kept: int) -> None:
    """Removes all but the ``kept`` newest checkpoints, and what a kill left of others."""
    stems = {path.stem for path in sorted(folder.glob("round-*.json"))[-kept:]}
    for path in sorted(folder.glob("round-*")):  # the JSON file first: without it the others do not count
        if path.name.partition(".")[0] not in stems:
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
        raise UserError(f"every checkpoint in {folder} is damaged: start again with another --out")
    return None


def _read(path: Path) -> Checkpoint | None:
    data = path.with_suffix(".safetensors")
    try:
        round = int(path.stem.removeprefix("round-"))
        said = json.loads(path.read_text())
        parts = said.get("parts")
        if parts is not None:
            whole = said["round"] == round and all(digest(path.parent / name) == sha for name, sha in parts.items())
            return Checkpoint(round, _settled(load_parts([path.parent / name for name in parts]))) if whole else None
        if said != {"round": round, "sha256": digest(data)}:
            return None
        return Checkpoint(round, _settled(load_file(data)))
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError):
        return None


def _settled(tensors: Tensors) -> Tensors:
    """In memory of torch's own: kernels sum in an order that depends on where numbers begin, which a file decides."""
    return {k: v.clone() for k, v in tensors.items()}
