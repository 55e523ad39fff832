"""Published experiments as data: what was run, what it gave, and how to run it here.

    recipe = coterie.recipes.load("dfedalt-t1")
    recipe.algorithm("dfedalt"), recipe.federation(case=1), recipe.model(case=1)

Facts come from five papers and the code released with them; a recipe says where they differ and what we take.
"""

from .published import Published, published
from .reading import READINGS, Reading, Statement
from .recipe import Case, Protocol, PublishedCell, Recipe, load, names, papers
from .shorten import Changes, changed

__all__ = [
    "READINGS",
    "Case",
    "Changes",
    "Protocol",
    "Published",
    "PublishedCell",
    "Reading",
    "Recipe",
    "Statement",
    "changed",
    "load",
    "names",
    "papers",
    "published",
]
