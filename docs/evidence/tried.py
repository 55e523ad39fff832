"""What of the papers' experiments was tried, at which size, and what never: made of the recipes and tried.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie import recipes

FULL, SMALLER, NEVER = STATES = ("at its size", "smaller", "never")
HEAD = """# What was tried, and what never was

Made by `python docs/evidence/pages.py` of the recipes and of `tried.json`, which says what a run of ours has to do with
a recipe. *At its size*: data, model, clients and rounds of the paper, if not all of its methods and seeds. *Smaller*:
the claim was tried on smaller data or models. *Never*: nothing of it was run for evidence.
"""


def state(name: str, known: Mapping[str, Any]) -> str:
    """Of a recipe."""
    return str(known[name]["state"]) if name in known else NEVER


def line(name: str, known: Mapping[str, Any]) -> str:
    """One recipe: where it stands in its paper, what it claims, what was done."""
    recipe, mine = recipes.load(name), known.get(name, {})
    claims = "; ".join(recipe.claims) or recipe.about
    page = f"[{mine['page'].removesuffix('.md')}]({mine['page']}): {mine['found']}" if mine else "-"
    where = f"{recipes.papers()[recipe.paper]['number']}, {recipe.where}"
    return f"| `{name}` | {where} | {claims} | {state(name, known)} | {page} |"


def page(folder: Path) -> str:
    """All recipes, those that were never tried first."""
    known = json.loads((folder / "tried.json").read_text())
    names = recipes.names()
    counted = ", ".join(f"{sum(state(n, known) == s for n in names)} {s}" for s in STATES)
    parts = [HEAD, f"Of {len(names)} recipes: {counted}.\n"]
    for wanted in reversed(STATES):
        mine = [n for n in names if state(n, known) == wanted]
        if mine:
            rows = [line(n, known) for n in mine]
            head = ["| recipe | paper, where | what it claims or is | tried | by |", "|---|---|---|---|---|"]
            parts.append("\n".join([f"## {wanted[0].upper()}{wanted[1:]}", "", *head, *rows, ""]))
    return "\n".join(parts)
