"""Published experiments as data: what was run, what it gave, and how to run it here.

    recipe = coterie.recipes.load("dfedalt-t1")
    recipe.algorithm("dfedalt"), recipe.federation(case=1), recipe.model(case=1)

The facts come from five papers and the code released with them; a recipe says where they differ and what we take.
"""

from .changes import Changes, apply_changes
from .published import PublishedNumber, published_numbers
from .reading import READINGS, Reading, Statement
from .recipe import Case, Protocol, Recipe, RecipeMethod, load, names, papers

__all__ = [
    "READINGS",
    "Case",
    "Changes",
    "Protocol",
    "PublishedNumber",
    "Reading",
    "Recipe",
    "RecipeMethod",
    "Statement",
    "apply_changes",
    "load",
    "names",
    "papers",
    "published_numbers",
]
