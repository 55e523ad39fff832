"""From a safetensors file back to a module, by what its metadata say."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from .. import algorithms, models
from ..algorithms.update import final_models
from ..core.arguments import checked
from ..core.checked_json import made_of
from ..core.custom import check_trusted, is_own
from ..core.errors import UserError
from ..core.tensors import Tensors
from ..models.model import Model, cross_entropy
from ..training.run import shapes


@checked("function")
def load(path: str | Path, trust: Sequence[str] = ()) -> nn.Module:
    """Return the module of a safetensors file that ``save`` has written, in evaluation mode.

    ``trust``: the code that the file names and that may run here, such as ["mine:net"].
    """
    try:
        with safe_open(path, framework="pt") as file:
            about, tensors = file.metadata() or {}, {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path} ({error}): give a file of `coterie export`") from error
    if "model" not in about or "classes" not in about:
        raise UserError(f"{path} does not say which model it holds: load its tensors into a module of your own")
    with made_of(str(path), "what it says of its model"):
        module = _module(about, tensors, trust)
        module.load_state_dict(tensors)
    return module.eval()


def _module(about: dict[str, str], tensors: Tensors, trusted: Collection[str]) -> nn.Module:
    """Return the module as the method trained it, in the client's own form, with other values."""
    known: dict[str, Any] = {k: json.loads(about[k]) for k in ("classes", "input_shape", "model_options")}
    sizes = {k: known[k] for k in ("classes", "input_shape")}
    if is_own(about["model"]):
        check_trusted({"model": {"module": about["model"]}}, trusted)
        module = models.rebuild_trusted({**known["model_options"], **sizes, "module": about["model"]})
    else:
        module = models.rebuild({"name": about["model"], **sizes, **known["model_options"]})
    if about.get("form") == "recovered":
        return module
    if not algorithms.is_method(about["method"]):
        if shapes(tensors) != shapes(module.state_dict()):
            raise UserError(
                f"the method {about['method']} trained another module than {about['model']}, and a file does not "
                "decide what code runs here: load its tensors into that module yourself"
            )
        return module
    algorithm = algorithms.rebuild(about["method"], **json.loads(about["settings"]))
    common = algorithm.adapt(Model(module, cross_entropy))
    if shapes(tensors) == shapes(common.start | common.constants):
        return common.module
    client, clients, taken, seed = (int(about[k]) for k in ("client", "clients", "round", "seed"))
    rounds = int(about.get("rounds", taken))  # of the whole run, which files of old do not tell
    return final_models(algorithm, common, clients, rounds, seed, taken - 1)[client].module
