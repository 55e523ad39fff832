"""A method of one's own in a published experiment, beside those that were run there."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .recipe import Case, PublishedCell, Recipe


def with_own(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """The recipe with further methods, ``module:function``, in all its cases."""
    from ..algorithms import build

    entries = {name: PublishedCell(name, name, "after_mix", build(name).settings, None) for name in names}
    return replace(
        recipe,
        methods={**recipe.methods, **entries},
        cases=tuple(_with_own(recipe, case, names) for case in recipe.cases),
    )


def _with_own(recipe: Recipe, case: Case, names: Sequence[str]) -> Case:
    from ..algorithms import build

    settings = {name: build(name, **agreed(recipe, case, name)).settings for name in names}
    return replace(case, methods=(*case.methods, *names), settings={**case.settings, **settings})


def agreed(recipe: Recipe, case: Case, name: str) -> dict[str, Any]:
    """What all methods of a case that have a setting agree on, of the settings that a set-up chooses."""
    from ..algorithms import builder
    from ..algorithms.custom import suitable
    from ..algorithms.settings import settings_of

    theirs = [recipe.settings(method, case) for method in case.methods]
    wanted = [key for key in settings_of(builder(name)) if suitable(name, key)]
    found = {key: [s[key] for s in theirs if key in s] for key in wanted}
    return {key: values[0] for key, values in found.items() if values and all(v == values[0] for v in values)}
