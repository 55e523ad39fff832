"""Which of the papers' experiments were tried, at which size, and which never: from the recipes and tried.json."""

import json
from collections.abc import Mapping
from typing import Any

from coterie.papers import recipes
from tables import EVIDENCE, table

FULL, SMALLER, NEVER = STATES = ("at its size", "smaller", "never")


def load_attempts() -> dict[str, dict[str, str]]:
    """Return by recipe: the state, the page that tells, the result."""
    return dict(json.loads((EVIDENCE / "tried.json").read_text(encoding="utf-8")))


def state(name: str, done: Mapping[str, Any]) -> str:
    """Return how far a recipe was tried."""
    return str(done[name]["state"]) if name in done else NEVER


def row(name: str, done: Mapping[str, Any]) -> list[str]:
    """Return one recipe: where it stands in its paper, what it claims, what was done."""
    recipe, mine = recipes.load(name), done.get(name)
    found = f"[{mine['page'].removesuffix('.md')}]({mine['page']}): {mine['found']}" if mine else "-"
    where = f"{recipes.papers()[recipe.paper]['number']}, {recipe.where}"
    return [f"`{name}`", where, "; ".join(recipe.claims) or recipe.about, state(name, done), found]


def everything() -> str:
    """Return all recipes, those that were never tried first."""
    done, names = load_attempts(), recipes.names()
    counted = ", ".join(f"{sum(state(n, done) == s for n in names)} {s}" for s in reversed(STATES))
    parts = [f"Of {len(names)} recipes: {counted}."]
    for wanted in reversed(STATES):
        rows = [row(n, done) for n in names if state(n, done) == wanted]
        parts += [
            f"## {wanted[0].upper()}{wanted[1:]}",
            table(["recipe", "paper, where", "what it claims or is", "tried", "what was found"], rows),
        ]
    return "\n\n".join(parts)
