"""A trained model that is asked: that of a client of a run, or one in an exported file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..core.arguments import checked
from ..core.checked_json import made_of, parse_json
from ..core.clients import client_list
from ..core.errors import UserError
from ..core.schema import SavedColumns
from ..core.tensors import Tensors
from ..data import Transform
from ..data.inputs import shape_of_json
from ..store.folder import CONFIG
from ..training.client import Client, PredictionFormat, Predictor
from .deployed import LoadedRun
from .restore import load

SUFFIX = ".safetensors"


@checked("function")
def predictor(run: str | Path, client: int | str | None = None, *, trust: Sequence[str] = ()) -> Predictor:
    """Return a trained model with all that it takes to answer new samples.

    Args:
        run: The folder of a finished run, a .safetensors file that ``save`` has written, or a folder of such files.
        client: Its name, where the data name the clients, or its number, counted from 0. It may be left out where all
            clients have one model.
        trust: The code that the run or the file names and that may run here, such as ["mine:net"].
    """
    return opened(Path(run), client, trust)[0]


def opened(path: Path, client: int | str | None, trust: Sequence[str]) -> tuple[Predictor, dict[str, Any]]:
    """Return a trained model, and what the data that it was trained on were read with, as far as that is known."""
    if path.is_file():
        if client is not None:
            raise UserError(f"{path} holds one model: leave client out")
        return _of_file(path, trust), {}
    if path.is_dir() and not (path / CONFIG).exists() and (files := sorted(path.glob(f"*{SUFFIX}"))):
        return _of_file(_chosen_file(path, files, client), trust), {}
    found = LoadedRun.of(path, trust)
    model = _common(found, path) if client is None else found.client(found.number(client))
    return Predictor(model.module().cpu(), PredictionFormat.of(found.config)), found.config["data"]


def _common(run: LoadedRun, path: Path) -> Client:
    """Return the model that all clients of a run have."""
    first = run.client(0)
    tensors = first.shared | first.personal
    for i in range(1, run.clients):
        other = run.client(i)
        if not _equal(tensors, other.shared | other.personal):
            every = client_list(run.names, range(run.clients))
            raise UserError(f"the clients of {path} have models of their own: choose one with --client, of {every}")
    return first


def _equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(value.equal(other[name]) for name, value in one.items())


def _chosen_file(folder: Path, files: Sequence[Path], client: int | str | None) -> Path:
    """Return the file of a client among exported ones; ``client``: its name or its number."""
    if client is None and len(files) == 1:
        return files[0]
    known = {file: _about(file) for file in files}
    for wanted in ("name", "client"):
        alike = [f for f, about in known.items() if about.get(wanted, "").casefold() == str(client).casefold()]
        if len(alike) == 1:
            return alike[0]
    names = ", ".join(about.get("name", about.get("client", file.name)) for file, about in known.items())
    asked = "name a client" if client is None else f"there is no client {client}"
    raise UserError(f"{folder} has models of several clients, and {asked}: choose one of {names}")


def _about(file: Path) -> dict[str, str]:
    """Return what a file says of its model."""
    if file.suffix != SUFFIX:
        raise UserError(
            f"{file} is for other programs: give the folder of the run, or a file that ends with {SUFFIX}, "
            "as coterie export writes it"
        )
    try:
        with safe_open(file, framework="pt") as found:
            return dict(found.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {file} ({error}): give a file of `coterie export`") from error


def _of_file(file: Path, trust: Sequence[str]) -> Predictor:
    """Return the model of an exported file, and what its metadata say of samples and answers."""
    about = _about(file)
    module = load(file, trust)
    with made_of(str(file), "what it says of its samples"):
        columns = parse_json(about["columns"], SavedColumns, str(file)) if "columns" in about else None
        images = "mean" in about
        transform = Transform(json.loads(about["mean"]), json.loads(about["std"])) if images else None
        shape = json.loads(about.get("input_shape", "null"))
        known = None if shape is None else shape_of_json(shape)
        targets: Any = about.get("targets")
        return Predictor(module, PredictionFormat(transform, known, known is not None, targets, columns))
