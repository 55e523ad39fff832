"""What of the papers' experiments was tried, at which size, and what never: made of the recipes and of tried.json."""

import json
from collections.abc import Mapping
from typing import Any

from coterie import recipes
from tables import EVIDENCE, table

FULL, SMALLER, NEVER = STATES = ("at its size", "smaller", "never")


def known() -> dict[str, dict[str, str]]:
    """What was done about a recipe: the state, the page that tells, what was found."""
    return dict(json.loads((EVIDENCE / "tried.json").read_text(encoding="utf-8")))


def state(name: str, done: Mapping[str, Any]) -> str:
    """Of a recipe."""
    return str(done[name]["state"]) if name in done else NEVER


def row(name: str, done: Mapping[str, Any]) -> list[str]:
    """One recipe: where it stands in its paper, what it claims, what was done."""
    recipe, mine = recipes.load(name), done.get(name)
    found = f"[{mine['page'].removesuffix('.md')}]({mine['page']}): {mine['found']}" if mine else "-"
    where = f"{recipes.papers()[recipe.paper]['number']}, {recipe.where}"
    return [f"`{name}`", where, "; ".join(recipe.claims) or recipe.about, state(name, done), found]


def everything() -> str:
    """All recipes, those that were never tried first."""
    done, names = known(), recipes.names()
    counted = ", ".join(f"{sum(state(n, done) == s for n in names)} {s}" for s in reversed(STATES))
    parts = [f"Of {len(names)} recipes: {counted}."]
    for wanted in reversed(STATES):
        rows = [row(n, done) for n in names if state(n, done) == wanted]
        parts += [
            f"## {wanted[0].upper()}{wanted[1:]}",
            table(["recipe", "paper, where", "what it claims or is", "tried", "what was found"], rows),
        ]
    return "\n\n".join(parts)
