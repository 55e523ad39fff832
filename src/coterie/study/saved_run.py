"""A saved run: once more, with a change, on from where it stopped, or for more rounds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from .. import algorithms
from ..algorithms import Algorithm
from ..algorithms.method import facts
from ..core.checked_json import read_json
from ..core.custom import check_trusted
from ..core.errors import DivergedError, FolderError, UserError
from ..core.schema import Config
from ..data import Federation
from ..measure.selection import LAST
from ..models.losses import loss_named
from ..store.folder import CHECKPOINT, RunFolder
from ..training.prepare import Prepared, prepare
from ..training.settings import RunSettings
from .methods import displaced


def read_saved(path: Path) -> Config:
    """Return a configuration; refuse that of a peer, which only a peer can go on with."""
    config = read_json(path, Config)
    if "peer" in config:
        raise UserError(
            f"{path.parent} is the part of {config['peer']['name']} in the federation "
            f"{config['peer']['federation']}: go on with it by coterie peer --config peer.toml"
        )
    return config


def prepared_again(
    config: Config, module: Any, federation: Federation, algorithm: Algorithm, **chosen: Any
) -> Prepared:
    """Return the run of a configuration and of what it describes, ready; ``chosen``: options that are not saved."""
    metric = [m["name"] for m in config.get("metrics", [])]
    settings = RunSettings.of(config, loss=loss_named(config["loss"]), metric=metric, **chosen)
    return prepare(module, federation, algorithm, settings)


def changed(config: Config, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Config:
    """Return a configuration with other options and settings of its method; a seed draws everything anew."""
    new: dict[str, Any] = {**config, **options}
    if "seed" in options:
        new |= {part: {**new[part], "seed": options["seed"]} for part in ("data", "model")}
    kept = {k: v for k, v in config["settings"].items() if not displaced(k, settings)}
    return cast(Config, {**new, "settings": kept | dict(settings)})


def with_more_rounds(folder: RunFolder, rounds: int, trusted: Sequence[str]) -> Config:
    """Return a run with more rounds, as if they had been asked for at once; refuse where that would be another run."""
    config, done = folder.config(), folder.rows()
    check_trusted(config, trusted)
    if rounds <= config["rounds"]:
        raise UserError(f"{folder.path} has {config['rounds']} rounds: ask for more than those, or leave --rounds out")
    why = _depends_on_rounds(config)
    if why is not None:
        raise UserError(
            f"{why}, so {folder.path} is another run than the first {config['rounds']} of {rounds} rounds: start one "
            f"with --rounds {rounds}, and another --out"
        )
    if done and done[-1]["round"] % config["evaluate_every"]:
        raise UserError(
            f"round {done[-1]['round']} of {folder.path} was evaluated as its last, which it would not be of {rounds}: "
            f"start a run with --rounds {rounds}, and another --out"
        )
    if not any((folder.path / CHECKPOINT).glob("round-*.json")):
        raise UserError(f"{folder.path} has no checkpoint to go on from: start a run with --rounds {rounds}")
    return cast(Config, {**config, "rounds": rounds})


def _depends_on_rounds(config: Config) -> str | None:
    """Say what in a run depends on how many rounds it has, if anything does."""
    settings, rule = config["settings"], config.get("select", LAST)
    for name in ("lr_min", "lr_milestones"):
        if settings.get(name) is not None:
            return f"{name} is spread over all rounds"
    if "@" in str(settings.get("capacities") or ""):
        return "capacities change over the rounds"
    if facts(algorithms.builder(config["method"])).paced:
        return f"{config['method']} is paced by the number of rounds"
    return None if rule == LAST else f"select={rule} chooses among all rounds"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in what is wrong with a configuration; what is wrong with a folder or a round names that."""
    try:
        yield
    except (DivergedError, FolderError):
        raise
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
