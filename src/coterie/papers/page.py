"""What the papers add to a page: how close models come to losing a rank, landscapes, and what a recipe came to."""

from collections.abc import Callable

from ..core.errors import UserError
from ..report.charts import Section
from ..report.collect import Collected
from ..report.groups import Setup
from .figures.factors import blocks, factors
from .figures.landscape import landscapes
from .figures.published import published_tables
from .figures.recipe_charts import LANDSCAPE, recipe_charts


def of_setup(setup: Setup, collected: Collected, say: Callable[[str], object] | None, landscape: bool) -> list[Section]:
    """Return what belongs to one set-up; without ``say`` nothing that takes more than a moment."""
    recorded = blocks(setup)
    sections = [Section([recorded])] if recorded is not None else []
    if say is None:
        return sections
    together = landscape or any(recipe["draws"] == LANDSCAPE for recipe in collected.recipes)
    return [*sections, _factors(setup), *landscapes(setup, say, together)]


def _factors(setup: Setup) -> Section:
    """Return the chart of what is computed from the models, or why there is none."""
    try:
        drawn = factors(setup)
    except UserError as error:
        return Section(about=f"The smallest singular values are left out: {error}.")
    return Section([] if drawn is None else [drawn])


def of_page(collected: Collected) -> list[Section]:
    """Return the charts of recipes, and their published numbers."""
    recipes, records = collected.recipes, collected.records
    drawn = [chart for recipe in recipes for chart in recipe_charts(recipe, records)]
    return [Section(drawn, html=published_tables(recipes, records))]
