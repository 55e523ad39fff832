"""From runs and folders to plain data. Models are not loaded."""

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
PLAN = "plan.json"  # the run folders there will be, before they are

Source = Run | str | Path

_NAME = re.compile(r"(?:case(?P<case>\d+)-)?(?P<method>.+)-seed(?P<seed>\d+)$")
_NEEDED = ("method", "settings", "data", "model", "rounds", "seed")


@dataclass(frozen=True, eq=False)
class Record(RunData):
    """One run, as its files or a Run in memory tell it; folders that were made before it was kept have no census."""

    folder: Path | None = None
    name: str | None = None  # of the method, where a recipe gives it one of its own
    case: str | None = None  # of the recipe
    held: Run | None = None
    data_dir: str | Path | None = None  # where its data are; None: where `coterie data dir` says

    def run(self) -> Run:
        """With every client's own model, loaded now."""
        if self.held is not None:
            return self.held
        assert self.folder is not None
        return load(self.folder)


class Collected(NamedTuple):
    """All a page is made of."""

    records: list[Record]
    recipes: list[dict[str, Any]]  # what ``coterie recipe run`` saved beside the runs
    commands: list[str]  # as they were typed
    target: float | None = None  # that rounds are counted to, where the comparisons agree on one


@dataclass
class _Found:
    """What is gathered folder by folder; a run that is named twice counts once."""

    records: dict[Path | int, Record] = field(default_factory=dict)
    recipes: dict[Path, dict[str, Any]] = field(default_factory=dict)
    commands: dict[str, None] = field(default_factory=dict)
    targets: set[float] = field(default_factory=set)


def collect(sources: Sequence[Source], data_dir: str | Path | None = None) -> Collected:
    """Return the runs behind folders and Runs, in the order in which they are named; ``data_dir``: of their data."""
    if not sources:
        raise UserError("a report needs at least one run: name its folder")
    found = _Found()
    for source in sources:
        if isinstance(source, Run):
            found.records[id(source)] = Record(
                source.config, source.history, source.summary, source.client_summary, held=source
            )
        else:
            _look_into(Path(source), found)
    target = found.targets.pop() if len(found.targets) == 1 else None
    records = [replace(record, data_dir=data_dir) for record in found.records.values()]
    return Collected(records, list(found.recipes.values()), list(found.commands), target)


def _look_into(path: Path, found: _Found) -> None:
    """A run folder, or one that holds the runs of a comparison or a recipe."""
    if path.name == CONFIG:
        path = path.parent
    if RunFolder(path).exists:
        folders, home = [path], path.absolute().parent
    else:
        folders, home = ([] if _still(path) else _inside(path)), path
    recipe = read_json(home / RECIPE) if (home / RECIPE).exists() else None
    if recipe is not None:
        found.recipes[home.resolve()] = recipe
    if (path / COMMAND).exists():
        found.commands[(path / COMMAND).read_text(encoding="utf-8").strip()] = None
    if (home / PLAN).exists():
        found.targets.add(float(read_json(home / PLAN).get("target", TARGET)))
    for folder in folders:
        if len(folders) == 1 or history_so_far(folder / METRICS):  # the next of several runs may just have begun
            found.records[folder.resolve()] = _record(folder, from_recipe=recipe is not None)
    if folders and not any(folder.resolve() in found.records for folder in folders):
        raise UserError(f"{path} holds no run with a finished round yet: wait for one")


def _still(path: Path) -> bool:
    """Whether a recipe that trains nothing was run here."""
    return (path / RECIPE).exists() and (path / PLAN).exists() and not planned(path)


def _inside(path: Path) -> list[Path]:
    """The run folders in a folder: by case, then as the methods were named, then by seed."""
    folders = [p.parent for p in path.glob(f"*/{CONFIG}")] if path.is_dir() else []
    if not folders:
        raise UserError(f"{path} holds no run: give a run folder, or that of a comparison or a recipe's runs")
    named = list(dict.fromkeys(map(folder_name, _methods_named(path))))

    def place(folder: Path) -> tuple[int, int, str, int]:
        match = _NAME.match(folder.name)
        if match is None:
            return 0, len(named), folder.name, 0
        method = match["method"]  # as folders spell it
        rank = named.index(method) if method in named else len(named)
        return int(match["case"] or 0), rank, method, int(match["seed"])

    return sorted(folders, key=place)


def _methods_named(path: Path) -> list[str]:
    if (path / RECIPE).exists():
        return [str(result["method"]) for result in read_json(path / RECIPE)["results"]]
    if (path / COMPARISON).exists():
        return [str(result["method"]) for result in json.loads((path / COMPARISON).read_text())]
    return [match["method"] for name in planned(path) if (match := _NAME.match(name))]


def planned(path: Path) -> list[str]:
    """The run folders that a comparison or a recipe makes in this one."""
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
    """The rows there are; a run that is under way may just be writing its last one."""
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
