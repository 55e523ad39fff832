"""``coterie recipe list`` and ``recipe show``, facts that do without torch; published numbers beside ours."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...cli.common.console import table, wide_console
from ...core.errors import unknown
from ...core.spec import scaled
from ..recipes import Case, PublishedNumber, Recipe, RecipeMethod, load, names, papers, published_numbers
from ..recipes.costs import RecipeCost, cost, is_size
from ..recipes.metrics import POINTS, WHEN, protocol
from ..recipes.results import ALL, RecipeResult, digits

FEW = 3  # methods that are named in the list
_MARK = {"printed": "", "reconstructed": "~", "doubtful": "?", "uncertain": "?", "missing": "?"}
MARKS = "~ cells ran together in the text and were told apart by their order, ? doubtful, - not reached or not run"
_PART = re.compile(r"(.+)_(b\d|block_\d+)")


def show_recipes(paper: str | None) -> None:
    """Print one row per recipe, paper by paper."""
    if paper is not None and paper not in papers():
        raise unknown("paper", paper, papers())
    console = wide_console()
    for key, facts in papers().items():
        if paper in (None, key):
            console.print(Text.assemble((key, "bold"), f": {facts['title']} ({facts['authors']})"))
            console.print(_listed([load(name) for name in names() if load(name).paper == key]))
    console.print("FLOPs: multiply-adds, forward and backward; all cases, methods and seeds", style="dim")
    console.print("one of them: coterie recipe show NAME, coterie recipe run NAME", style="dim")


def _listed(recipes: Iterable[Recipe]) -> Table:
    made = table("recipe", "where", "methods", "data", ">cases", ">rounds", ">FLOPs", ">sent")
    for r in recipes:
        methods, more = list(r.methods), len(r.methods) - FEW
        few = ", ".join(methods) if more < 2 else f"{', '.join(methods[:FEW])} and {more} more"
        data = ", ".join(dict.fromkeys(case.data.partition(":")[0] for case in r.cases))
        rounds = ", ".join(map(str, sorted({case.rounds for case in r.cases})))
        made.add_row(r.name, r.where, few, data, str(len(r.cases)), rounds, *_counts(cost(r)))
    return made


def _counts(spent: RecipeCost, unit: str = "") -> tuple[str, str]:
    """Return operations and bytes; ``unit``: of the operations, where no heading says it."""
    return (scaled(spent.flops, unit), scaled(spent.bytes, "B")) if spent.flops else ("-", "-")


def show_recipe(name: str) -> None:
    """Print all there is to know about one recipe."""
    recipe = load(name)
    facts = papers()[recipe.paper]
    console = wide_console()
    about = f": {recipe.about}. {recipe.where} of {facts['title']}"
    console.print(Text.assemble((recipe.name, "bold"), about))
    console.print(f"released code: {facts['code']}")
    console.print(f"reported: {_reported(recipe)}")
    if recipe.trains:
        counts = ", ".join(_counts(cost(recipe), "FLOP"))
        console.print(f"seeds: {recipe.seeds}; all of it: {counts} sent")
    console.print(_cases(recipe))
    if recipe.methods:
        first, *others = (_told(entry) for entry in recipe.methods.values())
        common = {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
        console.print(f"all methods: {_text(common)}")
        console.print(_methods(recipe, common))
    if recipe.readings:
        differing = table("where they differ", "paper", "code", "taken", "because", "--reading switches")
        for row in recipe.readings:
            differing.add_row(row.what, row.paper, row.code, row.chosen, row.why, row.switches())
        console.print(differing)
    _sentences(console, "Changed, so that a claim can show; --reading paper undoes it", recipe.changed)
    _sentences(console, "Assumed, because nobody states it", recipe.assumed)
    apart = [f"{k}: {entry.differs}" for k, entry in recipe.methods.items() if entry.differs]
    _sentences(console, "Differs from what was published", [*recipe.differs, *apart])
    _sentences(console, "What the paper concludes", recipe.claims)
    _show_published(console, published_numbers(recipe.name))


def _reported(recipe: Recipe) -> str:
    """Return what numbers the experiment has."""
    reports = recipe.protocol
    if reports.metric == "none":
        return reports.clients
    names = dict.fromkeys(name for case in recipe.cases for name in reports.metrics(case.target))
    when = "" if reports.over_rounds in ("first", "none") else f", {WHEN[reports.over_rounds]}"
    return f"{', '.join(names).replace('_', ' ')}{when}, {reports.clients}"


def _sentences(console: Console, title: str, sentences: Sequence[str]) -> None:
    if sentences:
        console.print(title, style="bold")
        for sentence in sentences:
            console.print(f"  * {sentence}")


def _cases(recipe: Recipe) -> Table:
    made = table(
        ">case", "data", "partition", "model", ">clients", ">rounds", ">target", "instead of the settings below"
    )
    for number, case in enumerate(recipe.cases, 1):
        target = "-" if case.target is None else f"{case.target} %"
        counts = (str(case.clients), str(case.rounds), target)
        made.add_row(str(number), case.data, case.partition, case.model, *counts, _own(case))
    return made


def _own(case: Case) -> str:
    """Return the settings of a case, each with the methods that have it unless all do."""
    who: dict[str, list[str]] = {}
    for method, settings in case.settings.items():
        who.setdefault(_text(settings), []).append(method)
    everybody = len(case.methods)
    return "; ".join(text if len(m) == everybody else f"{text} ({', '.join(m)})" for text, m in who.items())


def _methods(recipe: Recipe, common: Collection[str]) -> Table:
    made = table("method", "measured", "settings we take")
    for key, entry in recipe.methods.items():
        name = key if key == entry.builder else f"{key} ({entry.builder})"
        own = {k: v for k, v in _told(entry).items() if k not in common}
        made.add_row(name, POINTS[entry.point], _text(own))
    return made


def _told(entry: RecipeMethod) -> dict[str, Any]:
    """Return the settings without those that are off; a cosine takes the place of a decay."""
    told = {k: v for k, v in entry.settings.items() if v is not None and v is not False}
    if "lr_min" in told:
        del told["lr_decay"]
    return told


def _text(settings: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in settings.items()) or "-"


def _show_published(console: Console, numbers: Sequence[PublishedNumber]) -> None:
    """Print one table per kind of number, methods down and cases across; then the rest, and the notes."""
    placed = [p for p in numbers if p.case is not None and p.method]
    for kind in dict.fromkeys(map(_kind, placed)):
        console.print(_pivot(" ".join(kind).replace("_", " ").strip(), [p for p in placed if _kind(p) == kind]))
    rest = [
        f"{p.table} {p.printed}, {p.data}, {p.setting}, {p.metric.replace('_', ' ')}: {printed(p)} "
        f"({'; '.join(filter(None, (p.reason, p.note)))})"
        for p in numbers
        if p not in placed
    ]
    _sentences(console, "Published for no single run", rest)
    if placed:
        console.print(f"published numbers: {MARKS}", style="dim")
        _sentences(console, "Notes on them", _notes(placed))


def _pivot(title: str, numbers: Sequence[PublishedNumber]) -> Table:
    columns = sorted({_column(p) for p in numbers})
    made = table(title, *(f">{part or f'case {number}'}" for number, part in columns))
    for method in dict.fromkeys(p.printed for p in numbers):
        own: dict[tuple[int, str], list[str]] = {}
        for p in numbers:
            if p.printed == method:
                own.setdefault(_column(p), []).append(printed(p))
        made.add_row(method, *(", ".join(own.get(column, [])) for column in columns))
    return made


def _kind(p: PublishedNumber) -> tuple[str, str, str]:
    """Return what is in one table: the cases of a number side by side, or the parts it has in one case."""
    stem, part = _parted(p.metric)
    return p.table, stem, f"case {p.case}" if part else ""


def _column(p: PublishedNumber) -> tuple[int, str]:
    return p.case or 0, _parted(p.metric)[1]


def _parted(metric: str) -> tuple[str, str]:
    """Return a number that a model has several of, and which of them: a capacity or a block.

    >>> _parted("params_b2"), _parted("min_singular_value_block_3"), _parted("rounds_to_80")
    (('params', 'b2'), ('min_singular_value', 'block 3'), ('rounds_to_80', ''))
    """
    found = _PART.fullmatch(metric)
    return (found[1], found[2].replace("_", " ")) if found else (metric, "")


def _notes(numbers: Sequence[PublishedNumber]) -> list[str]:
    """Return every note once, with the numbers that it is about, or how many these are."""
    about: dict[str, list[str]] = {}
    for p in filter(lambda p: p.note, numbers):
        about.setdefault(p.note, []).append(f"{p.printed} in case {p.case}")
    return [f"{note} ({', '.join(who) if len(who) <= FEW else f'{len(who)} numbers'})" for note, who in about.items()]


def printed(p: PublishedNumber) -> str:
    """Return a published number as the paper prints it.

    >>> printed(published_numbers("dfedalt-t1")[0])
    '78.96~ ±0.42'
    """
    if p.value is None:
        return "-"
    digits = f"{p.value:.2f}" if "accuracy" in p.metric else f"{p.value:,g}" if p.value < 1e5 else f"{p.value:,.0f}"
    return digits + _MARK[p.certainty] + ("" if p.std is None else f" ±{p.std:.2f}")


class Circumstances(NamedTuple):
    """How the runs behind our numbers came about."""

    reading: str | None = None
    seeds: int = 1
    shortened: Sequence[str] = ()
    warnings: Sequence[str] = ()


def results_as_json(recipe: Recipe, results: Sequence[RecipeResult], told: Circumstances) -> dict[str, Any]:
    """Return all that is to be known about the numbers, for a file."""
    return {
        "recipe": recipe.name,
        "reading": told.reading or "ours",
        "seeds": told.seeds,
        "shortened": list(told.shortened),
        "changed": list(recipe.changed),
        "warnings": list(told.warnings),
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


def show_results(recipe: Recipe, results: Sequence[RecipeResult], told: Circumstances) -> None:
    """Print the table, what its numbers are, and whether they can be compared at all."""
    console = wide_console()
    made = table("case", "method", "number", ">published", ">ours", ">difference")
    over = f"; mean ± std over {told.seeds} seeds" if told.seeds > 1 else "; one seed"
    sentences: dict[str, None] = {}
    for r in results:
        theirs = "-" if r.published is None else printed(r.published)
        difference = "-" if r.difference is None else digits(r.difference, "+")
        made.add_row(_label(recipe, r), r.who, r.metric.replace("_", " "), theirs, _ours(r), difference)
        sentences[protocol(r.metric, recipe, r.method) + ("" if is_size(r.metric) else over)] = None
    console.print(made)
    for sentence in sentences:
        console.print(sentence, style="dim")
    console.print(f"published: {MARKS}", style="dim")
    apart = [
        f"{m}: {d}" for m in dict.fromkeys(r.method for r in results if r.method) if (d := recipe.entry(m).differs)
    ]
    differs = (f"differs: {sentence}" for sentence in (*recipe.differs, *apart))
    for remark in (*(f"changed: {sentence}" for sentence in recipe.changed), *differs):
        console.print(remark, style="dim")
    for warning in told.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    read = f"reading: {told.reading or 'our choice'}"
    if told.shortened:
        words = f"SHORTENED OR CHANGED, not comparable with the published numbers: {', '.join(told.shortened)}; {read}"
        console.print(words, soft_wrap=True)
    else:
        size = f"the published size{' but for what is changed' if recipe.changed else ''}"
        console.print(f"{size}; {read}; numbers and their certainty: coterie recipe show {recipe.name}")


def _label(recipe: Recipe, result: RecipeResult) -> str:
    return ALL if result.case is None else recipe.cases[result.case - 1].label


def _ours(result: RecipeResult) -> str:
    """Return our mean and its spread; rounds have no mean unless all seeds reach the target.

    >>> _ours(RecipeResult(1, "dfedalt", "rounds_to_80", None, [131, None, 140]))
    'reached by 2 of 3 seeds'
    """
    if result.mean is not None:
        return digits(result.mean) + ("" if result.spread is None else f" ±{digits(result.spread)}")
    if not result.metric.startswith(("rounds_to", "speedup_to")):
        return "-"
    reached = sum(value is not None for value in result.ours)
    return f"reached by {reached} of {len(result.ours)} seeds" if reached else "not reached"
