"""A run as data: everything that is needed to do it again."""

import hashlib
import platform
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch

from .. import __version__, algorithms, data, models
from ..algorithms.base import Algorithm
from ..algorithms.method import facts
from ..algorithms.used import check_used
from ..core.checked_json import made_of
from ..core.custom import check_trusted, is_own, own_code
from ..core.errors import UserError
from ..core.schema import ACCURACY, Config
from ..core.tensors import as_bytes
from ..core.units import metrics_of
from ..data import Federation
from ..data.inputs import names_of, shape_as_json, type_names
from ..local.paces import PACES
from ..local.parse import OPTIMIZERS, named
from ..measure.metric import BUILT_IN
from ..models.losses import LOSSES, name_of_loss
from ..models.model import Model, frozen_parameters
from ..models.parts import origin_of
from ..topology import Topology
from .experiment import Experiment


def describe(experiment: Experiment, model: Model, engine: str, reason: str, device: str) -> Config:
    """Return the configuration of a run; ``model``: as it was given, before the method adapted it."""
    algorithm, federation = experiment.algorithm, experiment.federation
    origin = origin_of(model.module) or {"module": type(model.module).__qualname__}
    config: Any = {
        "method": algorithm.name,
        "settings": {k: _as_json(v) for k, v in algorithm.settings.items()},
        "data": {**federation.origin, "clients": federation.clients},
        "transform": _prepared(federation),
        "model": dict(origin),
        "loss": name_of_loss(model.loss) or _name(model.loss),
        **experiment.settings.saved,
        "device": "cuda" if device == "cuda" else "cpu",
        "engine": engine,
        "engine_reason": reason,
        "machine": machine(device),
        "fingerprints": {"data": federation.fingerprint(), "model": fingerprint(model)},
        "versions": {"coterie": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    return _with_parts(cast(Config, config), experiment)


def _with_parts(config: Config, experiment: Experiment) -> Config:
    """Add what only some runs have."""
    if facts(algorithms.BUILDERS.get(config["method"], object)).in_one_place:
        config["in_one_place"] = True
    if experiment.newcomers is not None:
        config["holdout_clients"] = experiment.newcomers.clients
    if experiment.federation.columns is not None:
        config["columns"] = experiment.federation.columns.saved()
    if "input_shape" not in config["model"]:
        config["sample_shape"] = shape_as_json(experiment.federation.input_shape)
    if names_of(experiment.federation.x):
        config["sample_type"] = type_names(experiment.federation.x)
    if experiment.metrics.task.kind != "classes":
        config["targets"] = experiment.metrics.task.kind
    if (measured := list(experiment.metrics.infos)) != [ACCURACY]:
        config["metrics"] = measured
    return config


def _prepared(federation: Federation) -> dict[str, Any] | None:
    """Return how images are prepared; that of a text follows from its source."""
    made = federation.transform
    return {k: _as_json(v) for k, v in asdict(made).items()} if isinstance(made, data.Transform) else None


def rebuild(
    config: Config,
    trusted: Collection[str] = (),
    data_dir: str | Path | None = None,
    where: str = "the configuration",
) -> tuple[Any, Federation, Algorithm]:
    """Return the (module, federation, algorithm) that a configuration describes.

    ``trusted``: the code it may run; ``data_dir``: where its data are, as in ``federate``; ``where``: its file.
    """
    if own := _own_fields(config):
        raise UserError(
            "this run was made in Python with data, a module, a method, a loss or a metric of its own "
            f"({where} has {own[0]} that Coterie does not know): repeat it from there"
        )
    check_trusted(config, trusted)

    def made(field: str) -> AbstractContextManager[None]:
        return nullcontext() if own_code(config) else made_of(where, field)  # one's own code says itself what is wrong

    with made_of(where, "data"):
        everybody = config["data"]["clients"] + config.get("holdout_clients", 0)
        federation = data.federate(**{**config["data"], "clients": everybody}, data_dir=data_dir)
    if config["transform"]:
        with made_of(where, "transform"):
            federation = replace(federation, transform=data.Transform(**config["transform"]))
    with made("model"):
        module = models.rebuild_trusted(config["model"])
    with made("settings"):
        algorithm = algorithms.rebuild(config["method"], trusted, **config["settings"])
        check_used(algorithm)
    with made_of(where, "model.input_shape"):
        _check_shape(federation, config["model"].get("input_shape"))
    return module, federation, algorithm


def _check_shape(federation: Federation, shape: Any) -> None:
    """Refuse a model for other samples than the data have."""
    have = shape_as_json(federation.input_shape)
    if have != shape:
        raise UserError(
            f"the model takes samples of shape {shape}, the data have {have}: make data and "
            "model of the configuration fit"
        )


def repeatable(config: Config) -> bool:
    """Return whether a configuration names all that it is made of, or the functions that make it."""
    return not _own_fields(config)


def _own_fields(config: Config) -> list[str]:
    """Return the fields that name nothing that could be made again."""
    known = {
        "a model": "name" in config["model"] or is_own(config["model"].get("module", "")),
        "a method": algorithms.is_method(config["method"]) or is_own(config["method"]),
        "data": "source" in config["data"],
        "a loss": config["loss"].replace("_", "-") in LOSSES,
        "a metric": all(m["name"] in BUILT_IN or is_own(m["name"]) for m in metrics_of(config)),
        "an optimizer": all(named(config["settings"].get(k), OPTIMIZERS) for k in ("optimizer", "personal_optimizer")),
        "a schedule": named(config["settings"].get("lr_schedule"), PACES),
    }
    return [field for field, holds in known.items() if not holds]


def fingerprint(model: Model) -> str:
    """Return a short hash of the values that a model starts with, and of what of it is frozen."""
    content, frozen = hashlib.blake2b(digest_size=8), frozen_parameters(model.module)
    for name, value in (*model.module.named_parameters(), *model.module.named_buffers()):
        content.update(f"{name} is frozen".encode() if name in frozen else name.encode())
        content.update(as_bytes(value))
    return content.hexdigest()


def machine(device: str) -> str:
    """Return the name of what a run runs on, because its times say nothing without it."""
    if device == "cuda":
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "GPUs of a cluster"
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8", errors="replace").splitlines() if facts.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    threads = torch.get_num_threads()
    return f"{next(named, platform.machine())}, {threads} thread{'s' if threads > 1 else ''}"


def moved(begun: Config, now: Config) -> str | None:
    """Say that a run goes on elsewhere than it was begun: sums are added in the order of processor, threads and torch.

    >>> begun = {"machine": "A, 1 thread", "versions": {"torch": "2.13"}}
    >>> moved(begun, {"machine": "A, 2 threads", "versions": {"torch": "2.13"}})
    'begun on A, 1 thread and resumed on A, 2 threads: from here on numbers agree to rounding, not to the last bit'
    """
    ours, theirs = (config["versions"].get("torch", "of another version") for config in (now, begun))
    here, there = (now["machine"], begun["machine"])
    if ours != theirs:
        here, there = f"{here} with torch {ours}", f"{there} with torch {theirs}"
    told = f"begun on {there} and resumed on {here}: from here on numbers agree to rounding, not to the last bit"
    return told if here != there else None


def _as_json(value: Any) -> Any:
    """Return a setting as JSON: a topology by its text, patterns as a list."""
    if isinstance(value, Topology):
        return value.name
    if not isinstance(value, str) and callable(getattr(value, "step", None)):
        return _name(value)  # an optimizer, which may be a tuple
    return list(value) if isinstance(value, tuple) else value if not callable(value) else _name(value)


def _name(f: Any) -> str:
    return f"{getattr(f, '__module__', '?')}.{getattr(f, '__qualname__', type(f).__qualname__)}"
