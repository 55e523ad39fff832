"""A finished run, of which single clients are read: a hundred models need not be in memory to write one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.schema import ClientSummary, Config
from ..data import Transform
from ..measure.rows import FINETUNED
from ..training.run import Client, Modules, Run, client_of, finished, model_of
from .deployed import Deployed
from .forms import formed


@dataclass(frozen=True)
class Opened:
    """What is known of a run, and a way to its clients."""

    config: Config
    client_summary: ClientSummary
    client: Callable[[int], Client]

    @classmethod
    def of(cls, run: Run | str | Path) -> "Opened":
        """A run in memory, or in its folder."""
        if isinstance(run, Run):
            return cls(run.config, run.client_summary, run.clients.__getitem__)
        folder = finished(run)
        config = folder.config()
        if "name" not in config["model"]:
            raise UserError(
                f"{run} was made with a module of its own: give coterie.export.save the run that "
                "coterie.load(path, model=...) returns"
            )
        modules = Modules(config, model_of(config))
        return cls(config, folder.client_summary(), lambda i: client_of(folder.path, i, modules))

    @property
    def clients(self) -> int:
        """How many there are."""
        return int(self.config["data"]["clients"])

    def deployed(self, client: int, form: str) -> Deployed:
        """One client's model in the form that is asked for."""
        if not 0 <= client < self.clients:
            raise UserError(f"there is no client {client}: choose one from 0 to {self.clients - 1}, or all")
        made = formed(self.client(client).module(), self.config["method"], form)
        prepared = self.config["transform"]
        transform = None if prepared is None else Transform(prepared["mean"], prepared["std"])
        known = {"client": client, "clients": self.clients, **self._origin(), **made.about, **self._accuracy(client)}
        shape = self.config["model"].get("input_shape")
        return Deployed(made.module.cpu(), transform, None if shape is None else tuple(shape), _texts(known))

    def _origin(self) -> dict[str, Any]:
        """What was trained, how and on what; all that is needed to build the module again."""
        model, data = dict(self.config["model"]), self.config["data"]
        name = model.pop("name", model.get("module"))
        described = {"classes": model.pop("classes", None), "input_shape": model.pop("input_shape", None)}
        about = {"method": self.config["method"], "settings": self.config["settings"], "round": self.config["rounds"]}
        source = {"data": data.get("source"), "partition": data.get("partition")}
        return {"model": name, **described, "model_options": model, **about, "seed": self.config["seed"], **source}

    def _accuracy(self, client: int) -> dict[str, Any]:
        """What the run measured of this very model: on the client's own test samples, after the last round."""
        known = self.client_summary.get("accuracy") or {}
        protocol = FINETUNED if FINETUNED in known else "after_mix"
        if protocol not in known:
            return {}
        samples = self.client_summary["test_samples"][client]
        return {"accuracy": known[protocol][client], "protocol": protocol, "test_samples": samples}


def _texts(known: Mapping[str, Any]) -> dict[str, str]:
    """Metadata are texts in every format: a text stays, the rest is JSON; what is not known is left out."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in known.items() if v is not None}
