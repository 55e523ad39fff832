"""The clients of a finished run, read from its folder one by one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ..core.clients import OnDemand
from ..core.errors import UserError
from ..core.tensors import Tensors
from ..models.model import Model
from ..store import RunFolder
from ..store.digests import Digests
from ..store.models import COMMON, ModelFiles
from .client import Client
from .folded import common_parts, constants_of, unfolded

Forms = Callable[[int, Tensors], Model | None]
"""(client, its tensors) -> the model that they are of."""


class SavedModels(NamedTuple):
    """The models in the folder of a finished run."""

    files: ModelFiles
    constants: Tensors  # what training never changed
    parts: Mapping[int, Tensors]  # what several clients have the same, which is in memory once

    @classmethod
    def of(cls, folder: RunFolder) -> "SavedModels | None":
        """Open the models of a folder; None where a pack has left them out."""
        if not folder.has_models:
            return None
        files = ModelFiles(Digests.of(folder.path))
        common = files.common()
        return cls(files, constants_of(common), common_parts(common))

    def client(self, i: int, model: Forms) -> Client:
        """Read one client."""
        client = unfolded(self.files.own(i), self.parts, None)
        own = client.shared | client.personal
        form = model(i, own)
        if form is not None:
            check_alike(shapes(form.start), shapes(own), self.files.path(i))
        return Client(client.shared, client.personal, form, same=client.same)

    def clients(self, count: int, model: Forms) -> OnDemand[Client]:
        """Return the clients, each of which is read whenever it is asked for."""
        return OnDemand(count, lambda i: self.client(i, model))


def one_client(folder: RunFolder, saved: SavedModels | None, i: int, model: Forms) -> Client:
    """Read one client of a folder; refuse one without models."""
    if saved is None:
        raise UserError(
            f"{folder.path} has no models: coterie pack leaves them out, so go to the folder that was packed"
        )
    return saved.client(i, model)


def common_model(model: Model | None, saved: SavedModels | None) -> Model | None:
    """Return the model of a finished run with the constants of its folder."""
    if model is None or saved is None:
        return model
    there = {k: v.shape for k, v in (*model.module.named_parameters(), *model.module.named_buffers())}
    here = {k: there[k] for k in saved.constants if k in there}
    check_alike(here, shapes(saved.constants), saved.files.digests.folder / COMMON)
    return model.with_constants(saved.constants)


def shapes(tensors: Tensors) -> dict[str, torch.Size]:
    """Return the shapes of named tensors."""
    return {k: v.shape for k, v in tensors.items()}


def check_alike(here: dict[str, torch.Size], there: dict[str, torch.Size], file: Path) -> None:
    """Refuse tensors of other shapes than the module's: copying would stretch a single number over a whole layer."""
    for name in (*here, *there):
        if here.get(name) != there.get(name):
            held, takes = (list(s[name]) if name in s else "none" for s in (there, here))
            raise UserError(
                f"{file} does not fit the model: {name} is {held} and should be {takes}; repeat the run from its "
                "config.json, or pass the module that was trained, as in coterie.load(path, model=...)"
            )
