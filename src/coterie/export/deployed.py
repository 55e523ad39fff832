"""A client's model as a device would run it, from a sample of the data set to its scores, and the run it is from.

Clients are read one by one: a hundred models need not be in memory to write one.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from ..core.clients import client_number
from ..core.custom import check_trusted, is_own
from ..core.errors import UserError, unknown
from ..core.schema import FINETUNED, ClientSummary, Config, SavedColumns
from ..core.units import metrics_of, of_clients
from ..data import Transform
from ..data.encoding import Columns
from ..data.inputs import Shape, names_of
from ..models.model import answer
from ..store.folder import CONFIG
from ..submodels import factor_pairs, recover
from ..training.client import Client, PredictionFormat
from ..training.run import Modules, Run, SavedModels, common_model, finished, model_of, one_client


class Scored(nn.Module):
    """A module that takes its inputs in order, whatever they are called, and returns its scores and nothing else."""

    def __init__(self, module: nn.Module, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the scores of a batch."""
        named = dict(zip(self.names, inputs, strict=True)) if self.names else inputs
        return cast(Tensor, answer(self.module, named))


class PreparedImages(nn.Module):
    """A module for images as they are stored (uint8): it normalizes them first."""

    def __init__(self, module: nn.Module, transform: Transform) -> None:
        super().__init__()
        self.module, self.transform = module, transform

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of uint8 [B, C, H, W]."""
        return cast(Tensor, answer(self.module, self.transform.plain(x)))


class Standardized(nn.Module):
    """A module for numbers as a table holds them: it fills and standardizes them, and answers in their units."""

    fill: Tensor
    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, module: nn.Module, columns: SavedColumns) -> None:
        super().__init__()
        self.module, self.answers_numbers = module, columns["classes"] is None
        values = {"mean": columns["mean"], "std": columns["std"]}
        values |= {"target_mean": columns["target_mean"], "target_std": columns["target_std"]}
        values["fill"] = columns.get("fill", [math.nan] * len(columns["mean"]))  # NaN stays where training had none
        for name, numbers in values.items():
            self.register_buffer(name, torch.tensor(numbers))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes, or the numbers that are predicted, of [B, inputs]."""
        known = torch.where(x.isnan(), self.fill, x)
        found: Tensor = answer(self.module, (known - self.mean) / self.std)
        return found * self.target_std + self.target_mean if self.answers_numbers else found


Form = Literal["recovered", "factorized"]
"""Of a model of low rank: ordinary layers, or factors in the rank that the client can carry."""


def _alternating(count: int, shape: Shape, kind: torch.dtype) -> Tensor:
    """Return numbers for which nobody says what they mean: 0 and 1 in turn, so that a mask hides a part of a sample."""
    places = torch.arange(count)[:, None] + torch.arange(torch.Size(shape).numel())
    return (places % 2).view(count, *shape).to(kind)


@dataclass(frozen=True)
class Deployed:
    """A module in evaluation mode, the transform of its inputs, and what is known of it as texts."""

    module: nn.Module
    transform: Transform | None
    input_shape: Shape | None  # of one sample; not known in folders of old with a module of one's own
    known: dict[str, str]
    columns: SavedColumns | None = None  # of a table whose rows are the samples
    types: Any = None  # of several inputs: their names, in the form of the inputs

    @property
    def about(self) -> dict[str, str]:
        """The metadata of a file that holds the weights alone; they say how to make its inputs."""
        if self.columns is not None:
            return self.known | {"columns": json.dumps(self.columns), "normalized": "(x - mean) / std"}
        if self.transform is None:
            return self.known
        normalized = {"mean": str(list(self.transform.mean)), "std": str(list(self.transform.std))}
        return self.known | normalized | {"normalized": "(x / 255 - mean) / std"}

    @property
    def with_preprocessing(self) -> nn.Module:
        """The module with its normalization, where the data need one."""
        if self.columns is not None:
            return Standardized(self.module, self.columns).eval()
        if self.transform is not None:
            return PreparedImages(self.module, self.transform).eval()
        return Scored(self.module, list(self._shape) if isinstance(self.input_shape, dict) else ()).eval()

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs in an ONNX file."""
        if isinstance(self._shape, dict):
            return list(self._shape)
        return [f"input_{number}" for number in names_of(self._shape)] or ["input"]

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of a sample: bytes of images, token numbers, else that of the weights; found by trying."""
        if self.transform is not None:
            return torch.uint8
        own = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        try:
            with torch.no_grad():
                self.module(torch.zeros(1, *self._shape, dtype=own))
        except RuntimeError:
            return torch.int64
        return own

    def samples(self, count: int) -> tuple[Tensor, ...]:
        """Return the inputs of some samples of the right shapes and types in their order, always the same."""
        if names_of(self._shape):
            return tuple(_alternating(count, shape, kind) for _, shape, kind in self._several())
        return (self._drawn(count),)

    def _several(self) -> Iterator[tuple[str, Shape, torch.dtype]]:
        """Yield the name, shape and type of each of several inputs."""
        keys = self._shape if isinstance(self._shape, dict) else range(len(self._shape))
        for name, key in zip(self.input_names, keys, strict=True):
            yield name, self._shape[key], getattr(torch, self.types[key])

    def _drawn(self, count: int) -> Tensor:
        drawn = torch.Generator().manual_seed(count)
        if self.dtype.is_floating_point:
            plain = torch.randn(count, *self._shape, generator=drawn, dtype=self.dtype)
            if (of := self.columns) is None:
                return plain
            rows = plain * torch.tensor(of["std"]) + torch.tensor(of["mean"])
            rows[0] = rows[0] if "fill" not in of else math.nan  # a row of missing values is tried, too
            return rows
        # Tokens of a module of one's own are the first two, because nobody says how many it knows.
        most = 256 if self.transform is not None else int(self.known.get("classes", 2))
        return torch.randint(0, most, (count, *self._shape), generator=drawn, dtype=self.dtype)

    @property
    def inputs(self) -> str:
        """The inputs of the whole model, in words."""
        if names_of(self._shape):
            each = (f"{name} {str(kind)[6:]} {['batch', *shape]}" for name, shape, kind in self._several())
            return f"{', '.join(each).replace(chr(39), '')}, in this order: samples as the data set gives them"
        kind = str(self.dtype).removeprefix("torch.")
        shape = ", ".join(map(str, ("batch", *self._shape)))
        if self.transform is not None:
            return f"{kind} [{shape}]: images as they are stored, 0 to 255; the normalization is inside"
        if self.columns is not None:
            return f"{kind} [{shape}]: {', '.join(Columns.of(self.columns).inputs)}; {of_table(self.columns)}"
        return f"{kind} [{shape}]: samples as the data set gives them"

    @property
    def described(self) -> dict[str, str]:
        """The metadata of a file that holds the whole model."""
        found = self.about | {"input": self.inputs}
        if self.columns is None:
            return found
        classes, targets = self.columns["classes"], ", ".join(self.columns["target"])
        if classes is not None:
            return found | {"output": f"scores of the classes {', '.join(classes)}; softmax makes them probabilities"}
        labels = self.known.get("targets") == "labels"
        said = "scores, above 0 where the label is there" if labels else "numbers in the table's own units"
        return found | {"output": f"{targets}: {said}"}

    @property
    def _shape(self) -> Shape:
        if self.input_shape is None:
            raise UserError(
                "this run of old does not say which shape its samples have: use safetensors, or repeat the run"
            )
        return self.input_shape


def of_table(columns: SavedColumns) -> str:
    """Say how a whole model takes the columns of a table."""
    missing = "NaN is a missing value and is filled as in training" if "fill" in columns else "no value may be missing"
    return f"numbers as the table holds them, texts as 0 and 1; {missing}; the standardization is inside"


@dataclass(frozen=True)
class LoadedRun:
    """A finished run, whose clients are read when they are asked for."""

    config: Config
    client_summary: ClientSummary
    client: Callable[[int], Client]

    @classmethod
    def of(cls, run: Run | str | Path, trusted: Collection[str] = ()) -> "LoadedRun":
        """Open a run in memory, or in its folder; ``trusted``: the code that the folder names and that may run."""
        if isinstance(run, Run):
            if trusted:
                raise UserError("a run in memory names no code that would have to be trusted: leave trust out")
            return cls(run.config, run.client_summary, run.clients.__getitem__)
        folder = finished(run)
        config = folder.config()
        if trusted or is_own(config["model"].get("module", "")):
            check_trusted(config, trusted)
        elif "name" not in config["model"]:
            raise UserError(
                f"{run} was made with a module of its own: give coterie.export.save the run that "
                "coterie.load(path, model=...) returns"
            )
        where = str(folder.path / CONFIG)
        known = folder.client_summary()
        saved = SavedModels.of(folder)
        common = common_model(model_of(config, where=where, trusted=trusted), saved)
        modules = Modules(config, common, where, known, trusted)
        return cls(config, known, lambda i: one_client(folder, saved, i, modules.of))

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.config["data"]["clients"])

    @property
    def names(self) -> list[str]:
        """What the clients are called, where the data name them."""
        return self.client_summary.get("names", [])

    def number(self, client: int | str, or_else: str = "") -> int:
        """Return the number of a client, which is given by its name or by that number."""
        return client_number(self.names, self.clients, client, or_else)

    def deployed(self, client: int, form: Form) -> Deployed:
        """Return one client's model in the form that is asked for; a model without factors has one form only."""
        peer = self.config.get("peer")  # whose one client is one of many
        who = {"client": client if peer is None else peer["number"], "name": self.names[client] if self.names else None}
        return self.of_site(self.client(client), form, {**who, **self._chosen(client), **self._metrics(client)})

    def of_site(self, client: Client, form: Form, known: dict[str, Any]) -> Deployed:
        """Return the model of a client of the run, or of a site that came later; ``known``: what is known of it."""
        if form not in get_args(Form):
            raise unknown("form", form, get_args(Form))
        module = client.module()
        low_rank = bool(factor_pairs(module))
        if form == "factorized" and not low_rank:
            raise UserError(f"the models of {self.config['method']} have no layers of low rank: leave --form out")
        prepared = self.config["transform"]
        transform = None if prepared is None else Transform(prepared["mean"], prepared["std"])
        about = {"form": form} if low_rank else {}
        peer = self.config.get("peer")
        clients = self.clients if peer is None else len(peer["members"])
        told = {"clients": clients, **self._origin(), **about, **known}
        # Metadata are texts in every format: a text stays, the rest is JSON; what is not known is left out.
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in told.items() if v is not None}
        module = recover(module) if low_rank and form == "recovered" else module
        columns = self.config.get("columns")
        table = None  # the images of a table are none
        if columns is not None and Columns.of(columns).features:
            table = columns
        return Deployed(
            module.cpu(),
            transform,
            PredictionFormat.of(self.config).input_shape,
            texts,
            table,
            self.config.get("sample_type"),
        )

    def _origin(self) -> dict[str, Any]:
        """Return what was trained, how and on what; all that is needed to build the module again."""
        model, data = dict(self.config["model"]), self.config["data"]
        name = model.pop("name", model.get("module"))
        described = {"classes": model.pop("classes", None), "input_shape": model.pop("input_shape", None)}
        last = self.client_summary.get("round", self.config["rounds"])
        about = {"method": self.config["method"], "settings": self.config["settings"]}
        ended = {"round": last, "rounds": self.config["rounds"], "seed": self.config["seed"]}
        source = {"data": data.get("source"), "partition": data.get("partition")}
        answers = {"targets": self.config.get("targets", "classes")}
        return {"model": name, **described, "model_options": model, **about, **ended, **source, **answers}

    def _chosen(self, client: int) -> dict[str, Any]:
        """Return after which round the model was taken, and by which rule, where that is not the last one."""
        taken = self.client_summary.get("rounds")
        return {} if taken is None else {"round": taken[client], "select": self.config.get("select")}

    def _metrics(self, client: int) -> dict[str, Any]:
        """Return what the run measured of this very model: on the client's own test samples, after its round."""
        known = {m["column"]: of_clients(self.client_summary, m) for m in metrics_of(self.config)}
        protocol = FINETUNED if any(FINETUNED in each for each in known.values()) else "after_mix"
        values = {name: each[protocol][client] for name, each in known.items() if protocol in each}
        if not values:
            return {}
        return {**values, "protocol": protocol, "test_samples": self.client_summary["test_samples"][client]}
