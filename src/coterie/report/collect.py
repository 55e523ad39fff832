"""Runs and folders as plain data. Models are not loaded."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..core.checked_json import read_json, read_text
from ..core.custom import folder_names, is_own
from ..core.errors import UserError
from ..core.schema_several import ComparedMethod, Plan, SavedRecipe
from ..measure import summarize
from ..store import RunFolder
from ..store.folder import CONFIG, METRICS, SUMMARY
from ..training.run import Run
from .members import join_members
from .record import Record

COMPARISON, RECIPE, COMMAND = "compare.json", "recipe.json", "command.txt"
PLAN = "plan.json"  # the run folders that will be made

Source = Run | str | Path

_NAME = re.compile(r"(?:case(?P<case>\d+)-)?(?P<method>.+)-seed(?P<seed>\d+)$")


class Collected(NamedTuple):
    """Everything that a page is made of."""

    records: list[Record]
    recipes: list[SavedRecipe]  # what ``coterie recipe run`` saved beside the runs
    commands: list[str]  # as somebody typed them
    target: float | None = None  # that rounds are counted to, where the comparisons agree on one
    left_out: Sequence[str] = ()  # why runs beside these cannot be shown
    notes: Sequence[str] = ()  # what the commands said beside the results


@dataclass
class _Collection:
    """What is gathered folder by folder; a run that is named twice counts once."""

    records: dict[Path | int, Record] = field(default_factory=dict)
    recipes: dict[Path, SavedRecipe] = field(default_factory=dict)
    left_out: dict[Path, str] = field(default_factory=dict)
    commands: dict[str, None] = field(default_factory=dict)
    targets: set[float | None] = field(default_factory=set)
    notes: dict[str, None] = field(default_factory=dict)


def collect(sources: Sequence[Source], data_dir: str | Path | None = None) -> Collected:
    """Return the runs behind folders and Runs, in the order in which they are named; ``data_dir``: of their data."""
    if not sources:
        raise UserError("a report needs at least one run: name its folder")
    collection = _Collection()
    for run in sources:
        if isinstance(run, Run):
            collection.records[id(run)] = record_of(run)
        else:
            _add_folder(Path(run), collection)
    if collection.left_out and not collection.records:
        raise UserError(next(iter(collection.left_out.values())))
    target = collection.targets.pop() if len(collection.targets) == 1 else None
    records, notes = join_members([replace(record, data_dir=data_dir) for record in collection.records.values()])
    return Collected(
        records,
        list(collection.recipes.values()),
        list(collection.commands),
        target,
        [*collection.left_out.values()],
        [*collection.notes, *notes],
    )


def record_of(run: Run, name: str | None = None) -> Record:
    """Return a run in memory as a page has it; ``name``: what a comparison calls its method."""
    return Record(run.config, run.history, run.summary, run.client_summary, name=name, loaded=run)


def _add_folder(path: Path, into: _Collection) -> None:
    """Add a run folder, or one that holds the runs of a comparison or a recipe."""
    if path.name == CONFIG:
        path = path.parent
    if RunFolder(path).exists:
        folders, home = [path], path.absolute().parent
    else:
        folders, home = ([] if _trains_nothing(path) else _run_folders(path)), path
    recipe = read_json(home / RECIPE, SavedRecipe) if (home / RECIPE).exists() else None
    if recipe is not None:
        into.recipes[home.resolve()] = recipe
    if (path / COMMAND).exists():
        into.commands[read_text(path / COMMAND).strip()] = None
    plan = read_json(home / PLAN, Plan) if (home / PLAN).exists() else None
    if plan is not None:
        into.targets.add(plan["target"])
        into.notes |= dict.fromkeys(plan.get("notes", ()))
    for folder in folders:
        try:
            # The next of several runs may just have begun.
            if len(folders) == 1 or (folder / SUMMARY).exists() or RunFolder(folder).rows():
                record = _record(folder, from_recipe=recipe is not None)
                into.records[folder.resolve()] = record if plan is None else _labeled(record, folder.name, plan)
        except UserError as error:
            into.left_out[folder.resolve()] = str(error)
    if (path / COMPARISON).exists():  # all runs are finished, so that those which are not there were lost
        for lost in (path / name for name in planned_runs(path) if not (path / name / CONFIG).exists()):
            into.left_out[lost.resolve()] = f"{lost / CONFIG} is missing: restore it, or delete {lost} and run it again"
    if folders and not any(folder.resolve() in into.records | into.left_out for folder in folders):
        raise UserError(f"{path} holds no run with a finished round yet: wait for one")


def _trains_nothing(path: Path) -> bool:
    """Return whether the folder is that of a recipe that trains nothing."""
    return (path / RECIPE).exists() and (path / PLAN).exists() and not planned_runs(path)


def _run_folders(path: Path) -> list[Path]:
    """Return the run folders in a folder: by case, then as the methods were named, then by seed."""
    folders = [p.parent for p in path.glob(f"*/{CONFIG}")] if path.is_dir() else []
    if not folders and planned_runs(path) and any(path.glob(f"*/*/{CONFIG}")):
        raise UserError(
            f"{path} is still choosing settings, and none of its runs has begun: wait for one, or go on with the same "
            "command and --resume"
        )
    if not folders:
        raise UserError(f"{path} holds no run: give a run folder, or that of a comparison or a recipe's runs")
    names = folder_names(list(dict.fromkeys(_method_names(path))))

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
        return [result["method"] for result in read_json(path / RECIPE, SavedRecipe)["results"]]
    if (path / COMPARISON).exists():
        return [result["method"] for result in read_json(path / COMPARISON, list[ComparedMethod])]
    return [match["method"] for name in planned_runs(path) if (match := _NAME.match(name))]


def _labeled(record: Record, folder: str, plan: Plan) -> Record:
    """Return a run of a comparison with the name that its method has there, and how its settings were chosen."""
    label = plan.get("labels", {}).get(folder)
    return record if label is None else replace(record, name=label, tuned=plan.get("tuned", {}).get(label))


def planned_runs(path: Path) -> list[str]:
    """Return the names of the run folders that a comparison or a recipe makes in this one."""
    return read_json(path / PLAN, Plan)["runs"] if (path / PLAN).exists() else []


def _record(folder: Path, from_recipe: bool) -> Record:
    run = RunFolder(folder)
    config, history = run.config(), run.rows()
    if not history and (folder / SUMMARY).exists():
        raise UserError(f"{folder / METRICS} has no rounds, and the run is finished: restore it, or run it again")
    if not history:
        raise UserError(f"{folder} has no finished round yet: wait for one, or continue it with --resume")
    match = _NAME.match(folder.name)
    method = config["method"] if is_own(config["method"]) else match and match["method"]
    return Record(
        config,
        history,
        run.summary() if run.finished else summarize(config, history),
        run.client_summary(),
        run.finished,
        folder=folder,
        name=method if from_recipe and match else None,
        case=match["case"] if from_recipe and match else None,
    )
