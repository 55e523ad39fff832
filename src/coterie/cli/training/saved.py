"""``coterie run`` of a saved configuration: what may be typed beside it, and what is said of it."""

import sys
from pathlib import Path

from ... import algorithms
from ...algorithms.settings import parse_settings
from ...core.custom import check_trusted, folder_name, is_own
from ...core.errors import UserError
from ...core.files import path_problem
from ...core.schema import Config
from ...store.folder import CONFIG, ExtendedFolder, RunFolder
from ...study.folders import fresh_folder
from ...study.saved_run import changed, naming, prepared_again, read_saved, with_more_rounds
from ...training.config import rebuild
from ...training.run import Run
from ...training.settings import options as run_options
from ..common.fields import flag
from ..common.interrupted import interruptible
from ..common.options import Output, RunOptions
from ..common.typed_plan import FLAGS, cluster
from .chosen_engine import ChosenEngine

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


def run_again(path: Path, options: RunOptions, output: Output) -> tuple[Run, Path]:
    """Run a saved configuration, or go on with its run."""
    config = _asked_for(path, options)
    parts = rebuild(config, options.trust, options.data_dir, str(path))
    again = path.parent if options.resume else fresh_folder(f"{folder_name(config['method'])}-again")
    folder = options.out or again
    longer = options.resume and options.rounds is not None
    trackers = [*output.trackers(), ChosenEngine()]
    output.say(_remark(config, options))
    with interruptible(folder, options, output), naming(path):
        run = prepared_again(
            config,
            *parts,
            engine=options.engine or config["engine"],
            out=ExtendedFolder(folder, config["rounds"]) if longer else folder,
            resume=options.resume,
            cluster=cluster(options),
            progress=not output.quiet,
            trackers=trackers,
            time_limit=options.for_,
        ).run()
    if config.get("fingerprints") != run.config["fingerprints"] and options.seed is None:
        print("coterie: the data or the first model is not what this configuration was made with", file=sys.stderr)
    return run, folder


def _asked_for(path: Path, options: RunOptions) -> Config:
    """Return what is to be run: as it was saved, with changes, or with more rounds."""
    config = read_saved(path)
    _check_beside(options, config)
    if options.resume:
        if options.rounds is None:
            return config
        return with_more_rounds(RunFolder(options.out or path.parent), options.rounds, options.trust)
    typed = {k: v for k in CHANGES - {"set", *FLAGS} if (v := getattr(options, k)) is not None}
    items = [*options.set, *(f"{k}={v}" for k in FLAGS if (v := getattr(options, k)) is not None)]
    if not items:
        return changed(config, typed, {})
    check_trusted(config, options.trust)
    method = config["method"]
    return changed(config, typed, parse_settings(items, {method: algorithms.builder(method)})[method])


def _check_beside(options: RunOptions, config: Config) -> None:
    """Refuse options that a saved configuration has decided: a run that goes on may only get more rounds."""
    apart = APART | ({"rounds"} if options.resume else CHANGES)
    other = [flag(k) for k, v in vars(options).items() if v not in (None, []) and k not in apart]
    if other:
        raise UserError(
            f"{' '.join(other)} cannot be combined with a saved configuration of {config['method']}: "
            "leave it out, or name the method instead of the folder"
        )


def _remark(config: Config, options: RunOptions) -> str:
    """Say what is run, and what is different, as it was typed."""
    typed = [f"{flag(k)} {v}" for k in sorted(CHANGES - {"set"}) if (v := getattr(options, k)) is not None]
    changes = f" but for {', '.join([*options.set, *typed])}" if typed or options.set else ""
    said = f"{config['rounds']} rounds, seed {config['seed']}, engine {options.engine or config['engine']}"
    return f"{config['method']} as saved{changes}: {said}"
