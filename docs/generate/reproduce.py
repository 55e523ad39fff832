"""One line for every table and figure of the papers: the command, what it needs, and whether it was run.

``python docs/generate/reproduce.py`` writes them into docs/reproduce.md, from the recipes and the evidence, and so does
``make reproduce``.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from posixpath import normpath
from typing import Any

import tried
from coterie.algorithms import build
from coterie.core.spec import scaled
from coterie.data import Transform
from coterie.papers import recipes
from coterie.papers.recipes import Recipe
from coterie.papers.recipes.costs import cost
from tables import EVIDENCE, table

PAGE = EVIDENCE.parent / "reproduce.md"
BEGIN, END = "<!-- made by docs/generate/reproduce.py -->\n", "\n<!-- end -->"
COMPLETE = 0.98  # of the rounds: a run of which hardly any is missing counts
_IMAGE_DEFAULTS = {field.name: field.default for field in fields(Transform)}
# What a run has besides its settings that changes its models.
_AROUND = {"init": "common", "validation": 0.0, "drop_messages": 0.0, "offline": 0.0, "holdout_clients": 0}
# How many tables and figures each paper has, and those that show no experiment.
PRINTED = {
    "dfedalt": {"Table": 6, "Figure": 7},
    "dfedpgp": {"Table": 8, "Figure": 5},
    "fedlmt": {"Table": 8, "Figure": 10},
    "dfedsam": {"Table": 3, "Figure": 6},
    "fedavg-p": {"Table": 3, "Figure": 2},
}
NO_EXPERIMENT = {
    ("dfedalt", "Table 4"): "facts on the data sets",
    ("dfedalt", "Figure 2"): "a drawing of the methods",
    ("dfedpgp", "Table 5"): "facts on the data sets",
    ("dfedpgp", "Table 8"): "hyperparameters, which are in the recipes",
    ("dfedpgp", "Figure 1"): "a drawing of the method",
    ("fedlmt", "Table 5"): "the notation",
    ("fedlmt", "Table 6"): "hyperparameters, which are in the recipes",
    ("dfedsam", "Figure 1"): "a drawing of both kinds of federation",
    ("dfedsam", "Figure 6"): "a drawing of the topologies: `coterie topology ring`",
    ("fedavg-p", "Table 1"): "the notation",
    ("fedavg-p", "Table 2"): "rates of theorems: `coterie theory fedavg-p`",
    ("fedavg-p", "Table 3"): "rates of theorems: `coterie theory fedavg-p`",
}


def items(where: str) -> list[str]:
    """Return the tables and figures that a recipe covers.

    >>> items("Table 1, Figure 3"), items("Figures 2, 9, 10"), items("Appendix A.1, Figure 3"), items("Figure 5a")
    (['Table 1', 'Figure 3'], ['Figure 2', 'Figure 9', 'Figure 10'], ['Figure 3'], ['Figure 5a'])
    """
    found = re.findall(r"(Table|Figure)s? (\d+[a-d]?(?:, \d+[a-d]?)*)", where)
    return [f"{kind} {number}" for kind, numbers in found for number in numbers.split(", ")]


def covered(paper: str) -> Iterator[tuple[str, str]]:
    """Yield (table or figure, recipe) of one paper."""
    for name in recipes.names():
        recipe = recipes.load(name)
        if recipe.paper == paper:
            yield from ((item, name) for item in items(recipe.where))


def runs_of(recipe: Recipe) -> int:
    """Count our runs at the published size with all their rounds, each case, method and seed once."""
    if recipe.paper == "fedavg-p":
        studied = json.loads((EVIDENCE / "004_recipes.json").read_text(encoding="utf-8"))
        return len({(r["case"], r["seed"]) for r in studied if recipe.name == f"fedavg-p-f{r['figure']}"})
    counted = ((run["config"]["seed"], cells(recipe, run["config"], len(run["global"]))) for run in all_runs())
    return len({(*cell, seed) for seed, matching in counted for cell in matching})


def all_runs() -> list[dict[str, Any]]:
    """Return all our runs on CIFAR-10."""
    files = (EVIDENCE / "cifar10.json", *EVIDENCE.glob("cifar10-*-t*.json"))
    return [run for file in files for run in json.loads(file.read_text(encoding="utf-8")).values()]


def cells(recipe: Recipe, config: Mapping[str, Any], played: int) -> Iterator[tuple[str, str]]:
    """Yield (case, method) of a recipe that a run of so many rounds is: with the same clients, model and settings."""
    data, images = config["data"], config.get("transform") or config.get("preparation") or {}
    size = data["source"], data["partition"], data["clients"], config["model"]["name"]
    for case in recipe.cases:
        same = size == (case.data, case.partition, case.clients, case.model) and _agree(
            images, case.transform or {}, _IMAGE_DEFAULTS
        )
        if same and case.rounds and played >= COMPLETE * case.rounds:  # without rounds nothing is trained
            for method in case.methods:
                settings, builder = recipe.settings(method, case), recipe.entry(method).builder
                asked = {"init": recipe.init(method, case), "validation": case.validation}
                if (
                    builder == config["method"]
                    and _agree(config["settings"], settings, build(builder).settings)
                    and _agree({k: config[k] for k in _AROUND if k in config}, asked, _AROUND)
                    and (config["rounds"] == case.rounds or not _follows_all_rounds(settings))
                ):
                    yield case.label, method


def _follows_all_rounds(settings: Mapping[str, Any]) -> bool:
    """Return whether the rates of a round depend on how many rounds the run has.

    >>> _follows_all_rounds({"lr_decay": 0.99, "lr_min": None}), _follows_all_rounds({"lr_min": 0.0001})
    (False, True)
    """
    return any(settings.get(key) is not None for key in ("lr_min", "lr_milestones"))


def _agree(one: Mapping[str, Any], other: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Return whether two have the same values; a run of an older version had the defaults of later settings.

    >>> _agree({"lr": 0.1}, {"lr": 0.1, "robust": None}, {"lr": 0.5, "robust": None})
    True
    >>> _agree({"lr": 0.1}, {"lr": 0.1, "finetune_epochs": 5}, {"lr": 0.5, "finetune_epochs": 0})
    False
    """
    return {**defaults, **one} == {**defaults, **other}


def run_yet(name: str, done: Mapping[str, Any]) -> str:
    """Return whether a recipe was run, in part or never, with the page that tells of it."""
    recipe, mine = recipes.load(name), tried.state(name, done)
    count, every = runs_of(recipe), recipe.seeds * sum(len(case.methods) for case in recipe.cases if case.rounds)
    if count:
        words = "run" if count == every else f"in part: {count} of {every} runs"
    elif mine == tried.NEVER:
        return "never"
    else:
        words = "in part, smaller" if mine == tried.SMALLER else "in part" if recipe.trains else "run"
    counted = count and recipe.paper != "fedavg-p"  # among the runs on CIFAR-10
    page = normpath(f"evidence/{'cifar10.md' if counted else done[name]['page']}")
    return words if page == PAGE.name else f"[{words}]({page})"


def line(item: str, name: str, done: Mapping[str, Any]) -> list[str]:
    """Return one table or figure that a recipe covers."""
    recipe = recipes.load(name)
    data = ", ".join(dict.fromkeys(case.data.partition(":")[0] for case in recipe.cases))
    needs = "nothing is trained"
    if recipe.trains:
        needs = f"{scaled(cost(recipe).flops, 'FLOP')}, {recipe.seeds} seed{'s' if recipe.seeds > 1 else ''}"
    data = "none" if not recipe.trains and not recipe.draws else data  # models alone are counted
    return [item, f"`coterie recipe run {name}`", data, needs, run_yet(name, done)]


def lines(paper: str) -> list[list[str]]:
    """Return all tables and figures of one paper, in order."""
    done = tried.load_attempts()
    rows = [line(item, name, done) for item, name in covered(paper)]
    rows += [[item, "-", "-", why, "-"] for (of, item), why in NO_EXPERIMENT.items() if of == paper]
    return sorted(rows, key=lambda row: _place(row[0]))


def _place(item: str) -> tuple[bool, int, str]:
    kind, number = item.split()
    return kind == "Figure", int(re.sub(r"\D", "", number)), number


def everything() -> str:
    """Return one table per paper."""
    columns = ["", "command", "data", "needs", "run?"]
    parts = []
    for key, facts in recipes.papers().items():
        parts += [f"### {facts['number']}: {facts['title']}", table(columns, lines(key))]
    return "\n\n".join(parts)


def written(page: str) -> str:
    """Return the text of the page with the lines as they are now."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + everything() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
