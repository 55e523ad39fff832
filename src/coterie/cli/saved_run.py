"""``coterie run`` of a saved configuration: once more, with a change, on from where it stopped, or for more rounds."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from .. import algorithms
from ..algorithms.method import facts
from ..algorithms.settings import parse_settings
from ..core.checked_json import read_json
from ..core.custom import check_trusted, folder_name, is_own
from ..core.errors import DivergedError, FolderError, UserError
from ..core.files import path_problem
from ..core.schema import Config
from ..measure.selection import LAST
from ..models.losses import loss_named
from ..store.extended import ExtendedFolder
from ..store.folder import CHECKPOINT, CONFIG, RunFolder
from ..training.config import rebuild
from ..training.prepare import prepare
from ..training.run import Run
from ..training.settings import RunSettings
from ..training.settings import options as run_options
from .common.fields import flag
from .common.interrupted import interruptible
from .common.options import Output, RunOptions
from .request import FLAGS, cluster, displaced
from .several import fresh_folder
from .training.chosen_engine import ChosenEngine

# What may be typed beside it: where things are, for how long, and what is to be different.
APART = {"data_dir", "out", "resume", "trust", "for_", "ray_address", "workers", "gpus_per_worker", "engine"}
CHANGES = {"set", *(f.name for f in run_options("changes")), *FLAGS}


def saved_config(text: str) -> Path | None:
    """Return the configuration that a text points to, None where it is the name of a method."""
    path = Path(text)
    if algorithms.is_method(text) or is_own(text) or path_problem(text):
        return None
    if path.is_dir():
        return path / CONFIG
    if path.suffix == ".json" or path.is_file():
        return path
    if len(path.parts) > 1:  # no method has such a name
        raise UserError(f"there is no run {text}: name the folder of one, its config.json, or a method")
    return None


def run_again(config_path: Path, options: RunOptions, output: Output) -> tuple[Run, Path]:
    """Run a saved configuration, or go on with its run."""
    config = _asked_for(config_path, options)
    module, federation, algorithm = rebuild(config, options.trust, options.data_dir, str(config_path))
    again = config_path.parent if options.resume else fresh_folder(f"{folder_name(algorithm.name)}-again")
    folder, trackers = options.out or again, [*output.trackers(), ChosenEngine()]
    longer = options.resume and options.rounds is not None
    output.say(_remark(config, options))
    settings = RunSettings.of(
        config,
        loss=loss_named(config["loss"]),
        metric=[m["name"] for m in config.get("metrics", [])],
        engine=options.engine or config["engine"],
        out=ExtendedFolder(folder, config["rounds"]) if longer else folder,
        resume=options.resume,
        cluster=cluster(options),
        progress=not output.quiet,
        trackers=trackers,
        time_limit=options.for_,
    )
    with interruptible(folder, options, output), _named(config_path):
        run = prepare(module, federation, algorithm, settings).run()
    if config.get("fingerprints") != run.config["fingerprints"] and options.seed is None:
        print("coterie: the data or the first model is not what this configuration was made with", file=sys.stderr)
    return run, folder


def _asked_for(config_path: Path, options: RunOptions) -> Config:
    """Return what is to be run: as it was saved, with changes, or with more rounds."""
    config = read_json(config_path, Config)
    if "peer" in config:
        raise UserError(
            f"{config_path.parent} is the part of {config['peer']['name']} in the federation "
            f"{config['peer']['federation']}: go on with it by coterie peer --config peer.toml"
        )
    _check_beside(options, config)
    if not options.resume:
        return _changed(config, options)
    if options.rounds is None:
        return config
    return _with_more_rounds(RunFolder(options.out or config_path.parent), options.rounds, options.trust)


def _check_beside(options: RunOptions, config: Config) -> None:
    """Refuse options that a saved configuration has decided: a run that goes on may only get more rounds."""
    apart = APART | ({"rounds"} if options.resume else CHANGES)
    other = [flag(k) for k, v in vars(options).items() if v not in (None, []) and k not in apart]
    if other:
        raise UserError(
            f"{' '.join(other)} cannot be combined with a saved configuration of {config['method']}: "
            "leave it out, or name the method instead of the folder"
        )


def _changed(config: Config, options: RunOptions) -> Config:
    """Return a configuration with what is typed in the place of what it says; the seed draws everything anew."""
    typed = {k: v for k in CHANGES - {"set", *FLAGS} if (v := getattr(options, k)) is not None}
    changed: dict[str, Any] = {**config, **typed}
    if options.seed is not None:
        changed |= {part: {**changed[part], "seed": options.seed} for part in ("data", "model")}
    asked = [*options.set, *(f"{k}={v}" for k in FLAGS if (v := getattr(options, k)) is not None)]
    if asked:
        check_trusted(config, options.trust)
        method = config["method"]
        settings = parse_settings(asked, {method: algorithms.builder(method)})[method]
        kept = {k: v for k, v in config["settings"].items() if not displaced(k, settings)}
        changed["settings"] = kept | settings
    return cast(Config, changed)


def _remark(config: Config, options: RunOptions) -> str:
    """Say what is run, and what is different, as it was typed."""
    typed = [f"{flag(k)} {v}" for k in sorted(CHANGES - {"set"}) if (v := getattr(options, k)) is not None]
    changes = f" but for {', '.join([*options.set, *typed])}" if typed or options.set else ""
    said = f"{config['rounds']} rounds, seed {config['seed']}, engine {options.engine or config['engine']}"
    return f"{config['method']} as saved{changes}: {said}"


def _with_more_rounds(folder: RunFolder, rounds: int, trusted: Sequence[str]) -> Config:
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
def _named(config_path: Path) -> Iterator[None]:
    """Name the file in what is wrong with a configuration; what is wrong with a folder or a round names that."""
    try:
        yield
    except (DivergedError, FolderError):
        raise
    except UserError as error:
        raise UserError(f"{config_path}: {error}") from error
