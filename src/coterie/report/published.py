"""Published numbers beside ours, where runs came from a recipe. They are no pass mark."""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean, pstdev
from typing import Any

from .collect import Record

PRINTED = "printed"  # how sure a published number is, where nothing need be said
ALL = "all cases"  # what several runs tell together
RECONSTRUCTED = "reconstructed: cells ran together in the text and were told apart by their order"


def published_tables(recipes: Sequence[Mapping[str, Any]], records: Sequence[Record]) -> str:
    """A table for every recipe, of the methods that are on this page."""
    shown = {r.name for r in records}
    tables = [
        _table(recipe, [r for r in recipe["results"] if not records or r["method"] in shown or r["case"] == ALL])
        for recipe in recipes
        if recipe["results"]
    ]
    return f'<section id="published"><h2>Published numbers</h2>{"".join(tables)}</section>' if tables else ""


def _table(recipe: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    heads = "".join(
        f'<th scope="col" data-kind="{kind}"><button type="button">{title}</button></th>'
        for title, kind in (
            ("case", "text"),
            ("method", "text"),
            ("number", "text"),
            ("published", "best-high"),
            ("ours", "best-high"),
            ("difference", "best-high"),
        )
    )
    sentences = [f"{', '.join(methods)}: {told}" for told, methods in _protocols(results).items()]
    sentences += [RECONSTRUCTED] if any(r["certainty"] == "reconstructed" for r in results) else []
    return f"""<h3>{escape(recipe["recipe"])}</h3>
<p>{escape(_comparable(recipe))}</p>
<div class="scroll" tabindex="0" role="region" aria-label="Published numbers of {escape(recipe["recipe"])}">
<table class="sortable"><thead><tr>{heads}</tr></thead><tbody>{"".join(map(_row, results))}</tbody></table></div>
<ul class="caption">{"".join(f"<li>{escape(s)}</li>" for s in sentences)}</ul>"""


def _protocols(results: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What the numbers are, and of which methods: one paper's table may mix them."""
    told: dict[str, list[str]] = {}
    for result in results:
        methods = told.setdefault(result["protocol"], [])
        methods += [] if result["method"] in methods else [result["method"]]
    return told


def _comparable(recipe: Mapping[str, Any]) -> str:
    """Whether the numbers may be compared at all."""
    seeds = f"{recipe['seeds']} seed{'s' if recipe['seeds'] > 1 else ''}, reading: {recipe['reading']}"
    if recipe["shortened"]:
        words = ", ".join(recipe["shortened"])
        return f"SHORTENED OR CHANGED, not comparable with the published numbers: {words} ({seeds})."
    return f"The published size ({seeds})."


def _row(result: Mapping[str, Any]) -> str:
    ours = [v for v in result["ours"] if v is not None]
    mean = fmean(ours) if ours and len(ours) == len(result["ours"]) else None
    spread = f"±{pstdev(ours):.2f} seeds" if mean is not None and len(ours) > 1 else ""
    note = "" if result["certainty"] in (None, PRINTED) else str(result["certainty"])
    return (
        f'<tr><td>{escape(result["case"])}</td><th scope="row">{escape(result["method"])}</th>'
        f"<td>{escape(_words(result['metric']))}</td>{_number(result['published'], note)}"
        f"{_number(mean, spread)}{_number(result['difference'], '', signed=True)}</tr>"
    )


def _number(value: float | None, small: str, signed: bool = False) -> str:
    beside = f"<small>{escape(small)}</small>" if small else ""
    if value is None:
        return f"<td>-{beside}</td>"
    text = f"{value:+.2f}" if signed else f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    return f'<td data-value="{value!r}"><span class="number">{text}</span>{beside}</td>'


def _words(metric: str) -> str:
    return metric.replace("_", " ")
