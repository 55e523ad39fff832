"""A run as data: everything that is needed to do it again."""

import hashlib
import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import torch

from .. import __version__, algorithms, data, models
from ..algorithms.base import Algorithm
from ..core.custom import check_trusted, is_own
from ..core.errors import UserError
from ..core.schema import Config, Repeatable
from ..data import Federation
from ..models.model import Model, cross_entropy
from ..topology import Topology
from .experiment import Experiment
from .first import COMMON, PER_CLIENT


def describe(experiment: Experiment, model: Model, engine: str, reason: str, device: str) -> Config:
    """Return the configuration of a run; ``model``: as it was given, before the method adapted it."""
    algorithm, federation = experiment.algorithm, experiment.federation
    made = federation.transform
    prepared = made if isinstance(made, data.Transform) else None  # that of a text follows from its source
    origin = getattr(model.module, "origin", {"module": type(model.module).__qualname__})
    return {
        "method": algorithm.name,
        "settings": {k: _as_json(v) for k, v in algorithm.settings.items()},
        "data": {**federation.origin, "clients": federation.clients},
        "transform": None if prepared is None else {k: _as_json(v) for k, v in asdict(prepared).items()},
        "model": dict(origin),
        "loss": "cross_entropy" if model.loss is cross_entropy else _name(model.loss),
        "rounds": experiment.rounds,
        "seed": experiment.seed,
        "init": COMMON if experiment.first is None else PER_CLIENT,
        "drop_messages": experiment.drop_messages,
        "offline": experiment.offline,
        "evaluate_every": experiment.evaluate_every,
        "record": list(experiment.record),
        "precision": model.precision,
        "device": device,
        "engine": engine,
        "engine_reason": reason,
        "machine": machine(device),
        "fingerprints": {"data": federation.fingerprint(), "model": fingerprint(model)},
        "versions": {
            "coterie": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def rebuild(
    config: Mapping[str, Any], trusted: Collection[str] = (), data_dir: str | Path | None = None
) -> tuple[Any, Federation, Algorithm]:
    """Return the (module, federation, algorithm) that a configuration describes.

    ``trusted``: the code it may run; ``data_dir``: where its data are, as in ``federate``.
    """
    for key, hint in get_type_hints(Repeatable).items():
        if not isinstance(config.get(key), _kind(hint)):
            raise UserError(f"the configuration is not complete ({key!r}): give the config.json of a run")
    try:
        if not repeatable(config):
            raise UserError(
                "this run was made in Python with data, a module, a method or a loss of its own: repeat it from there"
            )
        check_trusted(config, trusted)
        federation = data.federate(**config["data"], data_dir=data_dir)
        if config.get("transform"):
            federation = replace(federation, transform=data.Transform(**config["transform"]))
        module = models.rebuild_trusted(config["model"])
        algorithm = algorithms.rebuild(config["method"], trusted, **config["settings"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the configuration is not complete ({error}): give the config.json of a run") from error
    if list(federation.input_shape) != config["model"]["input_shape"]:
        raise UserError(
            f"the model takes samples of shape {config['model']['input_shape']}, the data have "
            f"{list(federation.input_shape)}: make data and model of the configuration fit"
        )
    return module, federation, algorithm


def repeatable(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration names its method, model (or the functions that make them), data and loss."""
    modeled = "name" in config["model"] or is_own(config["model"].get("module", ""))
    method = algorithms.is_method(config["method"]) or is_own(config["method"])
    return modeled and method and "source" in config["data"] and config["loss"] == "cross_entropy"


def fingerprint(model: Model) -> str:
    """Return a short hash of the values that a model starts with."""
    content = hashlib.blake2b(digest_size=8)
    for name, value in model.start.items():
        content.update(name.encode())
        content.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
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


def _as_json(value: Any) -> Any:
    """Return a setting as JSON: a topology by its text, patterns as a list."""
    if isinstance(value, Topology):
        return value.name
    return list(value) if isinstance(value, tuple) else value if not callable(value) else _name(value)


def _kind(hint: Any) -> Any:
    """Return what a value of a configuration is checked against: JSON writes a float without a point as an int."""
    return str if get_origin(hint) is Literal else int | float if hint is float else get_origin(hint) or hint


def _name(f: Any) -> str:
    return f"{getattr(f, '__module__', '?')}.{getattr(f, '__qualname__', type(f).__qualname__)}"
