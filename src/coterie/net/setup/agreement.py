"""What must be the same at all members, as data: each sends its digest along, and tells the rest when asked."""

import hashlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from ... import __version__, algorithms, models, topology
from ...algorithms.base import Algorithm
from ...algorithms.method import facts
from ...algorithms.settings import parameters_of
from ...algorithms.used import check_used
from ...core import files
from ...core.annotations import shown
from ...core.custom import CODE, display_name, import_function, is_own
from ...core.errors import UserError, in_one_line
from ...core.spec import Spec, bind
from ...core.tensors import as_bytes
from ...data import Federation, Transform
from ...data.inputs import name_of, shape_as_json, type_names
from ...models.losses import loss_named, name_of_loss
from ...models.model import Model, cross_entropy
from ...models.parts import origin_of
from ...training.config import fingerprint
from .config import PeerConfig
from .own_data import own_data
from .shared_columns import read_columns

FORMAT = 1  # of messages and of what is agreed on; members of different ones do not understand each other
LONGEST = 60  # characters of a key that a sentence repeats
SERVER = "peers have none"


def algorithm(config: PeerConfig) -> Algorithm:
    """Return the method with its settings; refuse one that needs a server, and what only a simulation has."""
    method, settings = config.federation.method, dict(config.settings)
    builder = algorithms.builder(config.code(method))
    takes, where = parameters_of(builder), f"{config.path}, [federation.settings]"
    if facts(builder).in_one_place:
        raise UserError(
            f"{config.path}, [federation]: {display_name(method)} needs the samples of all members in one place, and "
            "they stay with their members: choose a method that mixes models (`coterie list` has them)"
        )
    if "topology" not in takes and not is_own(method):  # the program of one's own method says itself what it needs
        raise UserError(f"{config.path}, [federation]: {_needs_server(display_name(method))}")
    _check_simulated(where, settings)
    settings |= {k: config.code(v) for k in CODE if isinstance(v := settings.get(k), str)}
    try:
        made = builder(**bind("method", Spec(method, (), settings), takes))
        check_used(made)
        _check_graph(made, len(config.members), config.federation.seed)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return made


def _check_simulated(where: str, settings: dict[str, Any]) -> None:
    """Refuse settings that mean nothing between real peers."""
    instead = {
        "quantize": "rounds messages in a simulation, and peers send numbers as they are",
        "participation": "draws who is active in a simulated round, and members take part whenever they are there",
    }
    for key, why in instead.items():
        if settings.get(key, "none") != "none":
            raise UserError(f"{where}: {key} {why}: leave it out")


def _check_graph(made: Algorithm, members: int, seed: int) -> None:
    """Refuse a method that needs a server as it is set, or a graph that so many members cannot have."""
    graph = made.settings.get("topology")
    if graph is not None:
        uses = topology.build(graph, members, seed).uses
        if uses:
            raise UserError(
                f"topology uses all members' {' and '.join(sorted(uses))}, which no member has: take a topology of the "
                "round alone"
            )
    elif "topology" in made.settings:
        raise UserError(f'{made.name} needs a server unless it has a topology, and {SERVER}: write topology = "ring"')


def _needs_server(method: str) -> str:
    near = next((f", such as {name}" for name in (f"d{method}", f"d{method}m") if name in algorithms.BUILDERS), "")
    return f"{method} does not run between peers: choose a method that does{near} (`coterie list` has them)"


def module(config: PeerConfig, own: Federation) -> nn.Module:
    """Return the model that all members begin with; ``own``: this member's data."""
    return models.build(config.code(config.federation.model), own, seed=config.federation.seed)


def agreed(config: PeerConfig, own: Federation | None = None) -> dict[str, Any]:
    """Return what must be the same at all members, as JSON has it; ``own``: the member's data, if they are there."""
    shared = config.federation
    own = own_data(config) if own is None else own
    loss, method, built = loss_named(shared.loss), algorithm(config), module(config, own)
    origin: dict[str, Any] = origin_of(built)
    named = {"module": shared.model.partition(",")[0]} if "module" in origin else {}
    columns = read_columns(config.located(shared.columns)) if own.columns is not None else None
    found = {
        "format": FORMAT,
        "federation": shared.id,
        "members": list(config.members),
        "method": shared.method if is_own(shared.method) else method.name,
        "settings": {**method.settings, "topology": config.settings.get("topology", method.settings.get("topology"))},
        "rounds": shared.rounds,
        "seed": shared.seed,
        "model": {**origin, **named, "first_values": fingerprint(Model(built, loss)), **_constants(built)},
        "loss": name_of_loss(loss),
        "metric": list(config.metric),
        "classes": shared.classes if isinstance(shared.classes, tuple) else own.classes,
        "inputs": {"shape": shape_as_json(own.input_shape), "type": type_names(own.sample(1))},
        "targets": {"shape": list(own.y.shape[1:]), "type": name_of(own.y)},
        "images": _images(own),
        "columns": columns,
        "code": {name: _code(config, name) for name in config.shared_code},
    }
    plain: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return plain


def _constants(module: nn.Module) -> dict[str, Any]:
    """Return the digests of what is frozen, by the part of the module that it is in; no message ever holds it."""
    content: dict[str, Any] = {}
    for name, value in Model(module, cross_entropy).constants.items():
        part = content.setdefault(name.partition(".")[0], hashlib.blake2b(digest_size=8))
        part.update(name.encode())
        part.update(as_bytes(value))
    return {"constants": {part: digest.hexdigest() for part, digest in content.items()}} if content else {}


def _images(own: Federation) -> dict[str, Any] | None:
    """Return how images are normalized; whether they are cropped and flipped is each member's own matter."""
    made = own.transform
    return {k: asdict(made)[k] for k in ("mean", "std")} if isinstance(made, Transform) else None


def _code(config: PeerConfig, name: str) -> str:
    """Return the digest of the file that code of somebody's own is in."""
    home = sys.modules[import_function(config.code(name), "code").__module__]
    file = getattr(home, "__file__", None)
    return files.digest(Path(file)) if file else "built into Python"


def hello(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a peer says of itself to whoever asks; ``found``: what it has agreed on."""
    return {"clock": time.time(), "version": __version__, "agreed": found}


def digest(found: dict[str, Any]) -> str:
    """Return the SHA-256 of what is agreed on, in hexadecimal digits.

    >>> digest({"rounds": 3, "seed": 0}) == digest({"seed": 0, "rounds": 3})
    True
    """
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(ours: Any, theirs: Any, at: str = "") -> list[str]:
    """Return where two members disagree, as ``key: value there, value here``; ``theirs`` may be anything.

    >>> differences({"settings": {"lr": 0.02}, "seed": 0}, {"settings": {"lr": 0.1}, "seed": 0})
    ['settings.lr: 0.1 there, 0.02 here']
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [*ours, *(key for key in theirs if key not in ours)]
        each = ((key, f"{at}.{key}"[:LONGEST].lstrip(".")) for key in keys)
        return [line for key, place in each for line in differences(ours.get(key), theirs.get(key), place)]
    return [] if ours == theirs else [in_one_line(f"{at}: {shown(theirs)} there, {shown(ours)} here")]
