"""Tables that come from data: published numbers, recipes, our own evidence."""

import re
from functools import cache
from pathlib import Path

from coterie.papers import recipes

EVIDENCE = Path(__file__).parent.parent / "evidence"
ACCURACIES = {
    "personal_accuracy": "personal accuracy",
    "global_accuracy": "global accuracy",
    "global_accuracy_val": "global accuracy",
    "test_accuracy": "test accuracy",
    "perplexity": "perplexity",
}
# How a docstring names a paper, and the name its recipes begin with.
PAPERS = {
    "DFedAlt/DFedSalt": "dfedalt",
    "DFedPGP": "dfedpgp",
    "FedLMT/pFedLMT": "fedlmt",
    "DFedSAM": "dfedsam",
    "FedAvg-P/Scaffold-P": "fedavg-p",
}


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def cite(reference: str) -> str:
    """Return a reference with the full title where it names one of the five papers."""
    name = reference.partition(",")[0]
    if name not in PAPERS:
        return reference
    paper = recipes.papers()[PAPERS[name]]
    return f'{paper["authors"]}, "{paper["title"]}"{reference.removeprefix(name)}'


@cache
def uses(method: str) -> tuple[tuple[str, str], ...]:
    """Return the recipes that run a method, each with the builder's name inside it."""
    loaded = [recipes.load(name) for name in recipes.names()]
    return tuple((r.name, key) for r in loaded for key, entry in r.methods.items() if entry.builder == method)


def recipes_with(method: str) -> str:
    """Return which experiments of the papers run a method."""
    names = dict.fromkeys(name for name, _ in uses(method))
    rows = [[f"`{n}`", recipes.load(n).where, recipes.load(n).about] for n in names]
    return table(["recipe", "where", "what"], rows)


def published_of(method: str) -> str:
    """Return the published accuracies of a method, each with how sure the number is."""
    keys = set(uses(method))
    rows = []
    for p in recipes.published_numbers():
        if (p.recipe, p.method) in keys and p.metric in ACCURACIES and p.value is not None:
            spread = f" ± {p.std:g}" if p.std is not None else ""
            where = f"{recipes.papers()[p.paper]['number']} {p.table}"
            rows.append(
                [where, p.printed, p.data, p.setting, ACCURACIES[p.metric], f"{p.value:g}{spread}", p.certainty]
            )
    rows = list(map(list, dict.fromkeys(map(tuple, rows))))
    return table(["paper, table", "printed as", "data", "clients", "number", "value", "how sure"], rows) if rows else ""


def published_table(recipe: str) -> str:
    """Return the numbers a paper printed for one experiment: methods by cases."""
    r = recipes.load(recipe)
    found = {
        (p.method, p.case): p.value
        for p in recipes.published_numbers(recipe)
        if p.metric == r.protocol.metric and p.value is not None and p.method in r.methods
    }
    columns = sorted({case for _, case in found if case is not None})
    rows = [
        [f"[{r.methods[m].printed}](methods/{r.methods[m].builder}.md)"]
        + [f"{found[m, c]:.2f}" if (m, c) in found else "-" for c in columns]
        for m in dict.fromkeys(m for m, _ in found)
    ]
    return table(["", *(r.cases[c - 1].label for c in columns)], rows)


def all_recipes() -> str:
    """Return every recipe, with its paper."""
    rows = []
    for name in recipes.names():
        r = recipes.load(name)
        methods = ", ".join(f"[`{b}`](methods/{b}.md)" for b in dict.fromkeys(e.builder for e in r.methods.values()))
        rows.append([f"`{name}`", r.where, r.about, str(len(r.cases)), str(r.seeds), methods or "trains nothing"])
    return table(["recipe", "where", "what", "cases", "seeds", "methods"], rows)


def all_papers() -> str:
    """Return the five papers."""
    rows = [
        [f["number"], f["title"], f["authors"], str(sum(n.startswith(f"{k}-") for n in recipes.names())), f["code"]]
        for k, f in recipes.papers().items()
    ]
    return table(["", "paper", "authors", "recipes", "code"], rows)


def ours(method: str) -> str:
    """Return the rows of a method in the tables of our own evidence, by the page they stand on."""
    out = []
    for page in ("digits", "capacities"):
        alike: dict[tuple[str, ...], list[list[str]]] = {}
        for title, head, row in _rows(page, method):
            alike.setdefault(tuple(head[1:]), []).append([title, *row[1:]])
        tables = [table(["study", *head], rows) for head, rows in alike.items()]
        out += [f"From [{page}](../evidence/{page}.md):", *tables] if tables else []
    return "\n\n".join(out)


def _rows(page: str, method: str) -> list[tuple[str, list[str], list[str]]]:
    text = (EVIDENCE / f"{page}-tables.md").read_text()
    found = []
    for title, body in re.findall(r"^#+ (.+?)\n(.*?)(?=^#|\Z)", text, flags=re.DOTALL | re.MULTILINE):
        lines = [line.strip("| \n").split(" | ") for line in body.splitlines() if line.startswith("|")]
        width = max(map(len, lines), default=0)
        head = ["", *lines[0]] if lines and len(lines[0]) < width else lines[0] if lines else []
        found += [(title, head, row) for row in lines[2:] if row[0].strip() == method]
    return found
