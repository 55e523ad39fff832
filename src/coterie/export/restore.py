"""From a safetensors file back to a module, by what its metadata say."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from .. import algorithms, models
from ..errors import RequestError
from ..problem import Model, cross_entropy
from ..views import factorise


def load(path: str | Path) -> nn.Module:
    """The module of a safetensors file that ``save`` has written, in evaluation mode."""
    try:
        with safe_open(path, framework="pt") as file:
            about, tensors = file.metadata() or {}, {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise RequestError(f"cannot read {path} ({error}): give a file of `coterie export`") from error
    if "model" not in about or "classes" not in about:
        raise RequestError(f"{path} does not say which model it holds: load its tensors into a module of your own")
    module = _module(about)
    module.load_state_dict(tensors)
    return module.eval()


def _module(about: dict[str, str]) -> nn.Module:
    """As the method trained it, with other values."""
    known: dict[str, Any] = {k: json.loads(about[k]) for k in ("classes", "input_shape", "model_options")}
    module = models.again(
        {"name": about["model"], **{k: known[k] for k in ("classes", "input_shape")}, **known["model_options"]}
    )
    if about.get("form") == "recovered" or not algorithms.known(about["method"]):
        return module
    if about.get("form") == "factorised":
        keep = about["keep_layers"]
        ratio, mode = json.loads(about["rank_ratio"]), about["rank_mode"]
        return factorise(module, ratio, int(keep) if keep.isdigit() else keep, "kaiming", rank_mode=mode)
    algorithm = algorithms.build(about["method"], **json.loads(about["settings"]))
    return algorithm.adapt(Model(module, cross_entropy)).module
