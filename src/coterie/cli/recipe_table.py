"""Published numbers beside ours: as a table for people, and as data."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from ..recipes import Recipe
from ..recipes.costs import is_size
from ..recipes.metrics import protocol
from ..recipes.results import RecipeResult
from ..report.tables import ALL
from .console import table, wide_console
from .recipe_show import MARKS, printed


def saved(
    recipe: Recipe, results: Sequence[RecipeResult], reading: str | None, seeds: int, shortened: Sequence[str]
) -> dict[str, Any]:
    """All that is to be known about the numbers, for a file."""
    return {
        "recipe": recipe.name,
        "reading": reading or "ours",
        "seeds": seeds,
        "shortened": list(shortened),
        "draws": recipe.draws,
        "results": [
            {
                "case": _label(recipe, r),
                "method": r.who,
                "metric": r.metric,
                "protocol": protocol(r.metric, recipe, r.method),
                "published": None if r.published is None else r.published.value,
                "certainty": None if r.published is None else r.published.certainty,
                "ours": r.ours,
                "difference": r.difference,
            }
            for r in results
        ],
    }


def show(
    recipe: Recipe, results: Sequence[RecipeResult], reading: str | None, seeds: int, shortened: Sequence[str]
) -> None:
    """The table, what its numbers are, and whether they can be compared at all."""
    console = wide_console()
    console.print(_table(recipe, results))
    for sentence in dict.fromkeys(_sentence(recipe, r, seeds) for r in results):
        console.print(sentence, style="dim", markup=False)
    console.print(f"published: {MARKS}", style="dim", markup=False)
    apart = [
        f"{m}: {d}" for m in dict.fromkeys(r.method for r in results if r.method) if (d := recipe.entry(m).differs)
    ]
    for sentence in (*recipe.differs, *apart):
        console.print(f"differs: {sentence}", style="dim", markup=False)
    read = f"reading: {reading or 'our choice'}"
    if shortened:
        words = f"SHORTENED OR CHANGED, not comparable with the published numbers: {', '.join(shortened)}; {read}"
        console.print(words, markup=False, soft_wrap=True)
    else:
        console.print(f"the published size; {read}; numbers and their certainty: coterie recipe show {recipe.name}")


def _sentence(recipe: Recipe, result: RecipeResult, seeds: int) -> str:
    over = f"; mean ± std over {seeds} seeds" if seeds > 1 else "; one seed"
    return protocol(result.metric, recipe, result.method) + ("" if is_size(result.metric) else over)


def _label(recipe: Recipe, result: RecipeResult) -> str:
    return ALL if result.case is None else recipe.cases[result.case - 1].label


def _table(recipe: Recipe, results: Sequence[RecipeResult]) -> Table:
    made = table("case", "method", "number", ">published", ">ours", ">difference")
    for r in results:
        theirs = "-" if r.published is None else printed(r.published)
        number = r.metric.replace("_", " ")
        made.add_row(_label(recipe, r), r.who, number, theirs, _ours(r), _signed(r.difference))
    return made


def _ours(result: RecipeResult) -> str:
    if result.mean is None:
        return _not_reached(result) if result.metric.startswith(("rounds_to", "speedup_to")) else "-"
    return _digits(result.mean) + ("" if result.spread is None else f" ±{_digits(result.spread)}")


def _not_reached(result: RecipeResult) -> str:
    """Rounds have no mean unless all seeds reach the target.

    >>> _not_reached(RecipeResult(1, "dfedalt", "rounds_to_80", None, [131, None, 140]))
    'reached by 2 of 3 seeds'
    """
    reached = sum(value is not None for value in result.ours)
    return f"reached by {reached} of {len(result.ours)} seeds" if reached else "not reached"


def _digits(value: float, sign: str = "") -> str:
    """Two digits behind the point, or three that count where these would be noughts; none where there are thousands.

    >>> _digits(-2.345, "+"), _digits(0.00131), _digits(0.0), _digits(11_173_962)
    ('-2.35', '0.00131', '0.00', '11,173,962')
    """
    if abs(value) >= 1000:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}.2f}" if abs(value) >= 0.1 or not value else f"{value:{sign}.3g}"


def _signed(difference: float | None) -> str:
    return "-" if difference is None else _digits(difference, "+")
