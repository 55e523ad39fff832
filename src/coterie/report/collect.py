"""Runs and folders as plain data. Models are not loaded."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..core.custom import folder_name, is_own
from ..core.errors import UserError
from ..core.schema import Row, Summary
from ..measure import summarize
from ..measure.compare import TARGET, RunData
from ..store import RunFolder, read_json
from ..store.folder import CONFIG, METRICS, SUMMARY
from ..training.run import Run, load

COMPARISON, RECIPE, COMMAND = "compare.json", "recipe.json", "command.txt"
PLAN = "plan.json"  # the run folders that will be made

Source = Run | str | Path

_NAME = re.compile(r"(?:case(?P<case>\d+)-)?(?P<method>.+)-seed(?P<seed>\d+)$")
_NEEDED = ("method", "settings", "data", "model", "rounds", "seed")


@dataclass(frozen=True, eq=False)
class Record(RunData):
    """One run, as its files or a Run in memory tell it."""

    folder: Path | None = None
    name: str | None = None  # of the method, where a recipe gives it one of its own
    case: str | None = None  # of the recipe
    loaded: Run | None = None  # where there is one in memory
    data_dir: str | Path | None = None  # where its data are; None: where `coterie data dir` says

    def run(self) -> Run:
        """Return the run with every client's own model, loaded now."""
        if self.loaded is not None:
            return self.loaded
        assert self.folder is not None
        return load(self.folder)


class Collected(NamedTuple):
    """Everything that a page is made of."""

    records: list[Record]
    recipes: list[dict[str, Any]]  # what ``coterie recipe run`` saved beside the runs
    commands: list[str]  # as somebody typed them
    target: float | None = None  # the accuracy that rounds are counted to, where the comparisons agree on one


@dataclass
class _Collection:
    """What is gathered folder by folder; a run that is named twice counts once."""

    records: dict[Path | int, Record] = field(default_factory=dict)
    recipes: dict[Path, dict[str, Any]] = field(default_factory=dict)
    commands: dict[str, None] = field(default_factory=dict)
    targets: set[float] = field(default_factory=set)


def collect(sources: Sequence[Source], data_dir: str | Path | None = None) -> Collected:
    """Return the runs behind folders and Runs, in the order in which they are named; ``data_dir``: of their data."""
    if not sources:
        raise UserError("a report needs at least one run: name its folder")
    collection = _Collection()
    for run in sources:
        if isinstance(run, Run):
            collection.records[id(run)] = Record(run.config, run.history, run.summary, run.client_summary, loaded=run)
        else:
            _add_folder(Path(run), collection)
    target = collection.targets.pop() if len(collection.targets) == 1 else None
    records = [replace(record, data_dir=data_dir) for record in collection.records.values()]
    return Collected(records, list(collection.recipes.values()), list(collection.commands), target)


def _add_folder(path: Path, into: _Collection) -> None:
    """Add a run folder, or one that holds the runs of a comparison or a recipe."""
    if path.name == CONFIG:
        path = path.parent
    if RunFolder(path).exists:
        folders, home = [path], path.absolute().parent
    else:
        folders, home = ([] if _trains_nothing(path) else _run_folders(path)), path
    recipe = read_json(home / RECIPE) if (home / RECIPE).exists() else None
    if recipe is not None:
        into.recipes[home.resolve()] = recipe
    if (path / COMMAND).exists():
        into.commands[(path / COMMAND).read_text(encoding="utf-8").strip()] = None
    if (home / PLAN).exists():
        into.targets.add(float(read_json(home / PLAN).get("target", TARGET)))
    for folder in folders:
        if len(folders) == 1 or history_so_far(folder / METRICS):  # the next of several runs may just have begun
            into.records[folder.resolve()] = _record(folder, from_recipe=recipe is not None)
    if folders and not any(folder.resolve() in into.records for folder in folders):
        raise UserError(f"{path} holds no run with a finished round yet: wait for one")


def _trains_nothing(path: Path) -> bool:
    """Return whether the folder is that of a recipe that trains nothing."""
    return (path / RECIPE).exists() and (path / PLAN).exists() and not planned_runs(path)


def _run_folders(path: Path) -> list[Path]:
    """Return the run folders in a folder: by case, then as the methods were named, then by seed."""
    folders = [p.parent for p in path.glob(f"*/{CONFIG}")] if path.is_dir() else []
    if not folders:
        raise UserError(f"{path} holds no run: give a run folder, or that of a comparison or a recipe's runs")
    names = list(dict.fromkeys(map(folder_name, _method_names(path))))

    def order(folder: Path) -> tuple[int, int, str, int]:
        match = _NAME.match(folder.name)
        if match is None:
            return 0, len(names), folder.name, 0
        method = match["method"]  # as folders spell it
        rank = names.index(method) if method in names else len(names)
        return int(match["case"] or 0), rank, method, int(match["seed"])

    return sorted(folders, key=order)


def _method_names(path: Path) -> list[str]:
    if (path / RECIPE).exists():
        return [str(result["method"]) for result in read_json(path / RECIPE)["results"]]
    if (path / COMPARISON).exists():
        return [str(result["method"]) for result in json.loads((path / COMPARISON).read_text())]
    return [match["method"] for name in planned_runs(path) if (match := _NAME.match(name))]


def planned_runs(path: Path) -> list[str]:
    """Return the names of the run folders that a comparison or a recipe makes in this one."""
    return [str(name) for name in read_json(path / PLAN)["runs"]] if (path / PLAN).exists() else []


def _record(folder: Path, from_recipe: bool) -> Record:
    config = RunFolder(folder).config()
    lacking = [key for key in _NEEDED if key not in config]
    if lacking:
        raise UserError(f"{folder / CONFIG} is not complete ({lacking[0]!r}): give the folder of a run")
    history = history_so_far(folder / METRICS)
    if not history:
        raise UserError(f"{folder} has no finished round yet: wait for one, or continue it with --resume")
    match = _NAME.match(folder.name)
    method = config["method"] if is_own(config["method"]) else match and match["method"]
    finished = (folder / SUMMARY).exists()
    return Record(
        config,
        history,
        cast(Summary, read_json(folder / SUMMARY)) if finished else summarize(config, history),
        RunFolder(folder).client_summary(),
        finished,
        folder,
        method if from_recipe and match else None,
        match["case"] if from_recipe and match else None,
    )


def history_so_far(path: Path) -> list[Row]:
    """Return the finished rows; a run that is under way may just be writing its last one."""
    rows: list[Row] = []
    try:
        whole, end, _ = path.read_text(errors="replace").rpartition("\n")  # what has no end yet does not count
        for line in (whole + end).splitlines():
            rows.append(json.loads(line))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        if not rows:
            raise UserError(f"cannot read {path} ({error}): repeat the run from its config.json") from error
    return rows
