"""Published numbers beside ours as tables of a page."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ...report.record import Record
from ...report.tables import head, small
from ..recipes.results import ALL, RecipeResult, digits

PRINTED = "printed"  # how sure a published number is, where nothing need be said
RECONSTRUCTED = "reconstructed: cells ran together in the text and were told apart by their order"
_PUBLISHED_KINDS = {
    "case": "text",
    "method": "text",
    "number": "text",
    "published": "best-high",
    "ours": "best-high",
    "difference": "best-high",
}


def published_tables(recipes: Sequence[Mapping[str, Any]], records: Sequence[Record]) -> str:
    """Return a table for every recipe, of the methods that are on this page."""
    shown = {r.name for r in records}
    tables = [
        _published_table(
            recipe, [r for r in recipe["results"] if not records or r["method"] in shown or r["case"] == ALL]
        )
        for recipe in recipes
        if recipe["results"]
    ]
    return f'<section id="published"><h2>Published numbers</h2>{"".join(tables)}</section>' if tables else ""


def _published_table(recipe: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    protocols: dict[str, dict[str, None]] = {}  # of which methods: one paper's table may mix them
    for result in results:
        protocols.setdefault(result["protocol"], {})[result["method"]] = None
    sentences = [f"{', '.join(methods)}: {protocol}" for protocol, methods in protocols.items()]
    sentences += [RECONSTRUCTED] if any(r["certainty"] == "reconstructed" for r in results) else []
    heads = "".join(head(title, "", kind) for title, kind in _PUBLISHED_KINDS.items())
    rows = "".join(map(_published_row, results))
    return f"""<h3>{escape(recipe["recipe"])}</h3>
<p>{escape(_comparability(recipe))}</p>
{"".join(f"<p>{escape(remark)}</p>" for remark in _remarks(recipe))}
<div class="scroll" tabindex="0" role="region" aria-label="Published numbers of {escape(recipe["recipe"])}">
<table class="sortable"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>
<ul class="caption">{"".join(f"<li>{escape(s)}</li>" for s in sentences)}</ul>"""


def _comparability(recipe: Mapping[str, Any]) -> str:
    """Say whether the numbers may be compared at all."""
    seeds = f"{recipe['seeds']} seed{'s' if recipe['seeds'] > 1 else ''}, reading: {recipe['reading']}"
    if recipe["shortened"]:
        words = ", ".join(recipe["shortened"])
        return f"SHORTENED OR CHANGED, not comparable with the published numbers: {words} ({seeds})."
    return f"The published size{' but for what is changed' if recipe.get('changed') else ''} ({seeds})."


def _remarks(recipe: Mapping[str, Any]) -> list[str]:
    """Say what is not as printed, and what is known of the reading."""
    kinds = {"changed": "Changed", "warnings": "Warning"}
    return [f"{word}: {sentence}." for kind, word in kinds.items() for sentence in recipe.get(kind, ())]


def _published_row(saved: Mapping[str, Any]) -> str:
    ours = RecipeResult(None, saved["method"], saved["metric"], None, saved["ours"])
    spread = "" if ours.spread is None else f"±{digits(ours.spread)} seeds"
    note = "" if saved["certainty"] in (None, PRINTED) else str(saved["certainty"])
    return (
        f'<tr><td>{escape(saved["case"])}</td><th scope="row">{escape(saved["method"])}</th>'
        f"<td>{escape(saved['metric'].replace('_', ' '))}</td>{_number(saved['published'], note)}"
        f"{_number(ours.mean, spread)}{_number(saved['difference'], '', signed=True)}</tr>"
    )


def _number(value: float | None, note: str, signed: bool = False) -> str:
    if value is None:
        return f"<td>-{small(note)}</td>"
    text = digits(value, "+" if signed else "")
    return f'<td data-value="{value!r}"><span class="number">{text}</span>{small(note)}</td>'
