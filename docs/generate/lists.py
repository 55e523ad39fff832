"""The lists of names and rooms on hand-written pages and in ``coterie list``, from the tables of the package.

They stand between ``<!-- list: NAME -->`` and ``<!-- end -->``; all around them is written by hand. ``make lists``
writes them after a name was added.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from inspect import Parameter, getdoc

import rooms
import tables
from coterie import data, measure, models, topology
from coterie.algorithms import BUILDERS
from coterie.algorithms.about import about
from coterie.cli.show.names import FILE, GROUPS, METHODS
from coterie.core.choices import METRICS
from coterie.core.spec import parameters
from coterie.data.catalog import CATALOG
from coterie.data.partition import NATURAL
from coterie.local.parse import OPTIMIZERS
from coterie.models.losses import LOSSES
from kinds import method_kind

ROOT = tables.EVIDENCE.parent.parent
NAMES_FILE = ROOT / "src/coterie/cli/show" / FILE
PAGES = ("README.md", "docs/architecture.md", "docs/metrics.md", "docs/own-topology.md")
LIST = re.compile(r"(<!-- list: (.*?) -->).*?(<!-- end -->)", re.DOTALL)
SUMS = {
    "doubly": "of rows and columns (doubly stochastic): the mean stays the same",
    "row": "of rows: the mean drifts a little",
    "column": "of columns: push-sum only",
}
TRIED = 3  # what a topology is given where it needs a number
NAMES: dict[str, Iterable[str]] = {
    "topologies": topology.BUILDERS,
    "partitions": (*data.PARTITIONS, NATURAL),
    "data": data.SOURCES,
    "published data": CATALOG,
    "models": models.BUILDERS,
    "metrics": measure.BUILT_IN,
    "optimizers": OPTIMIZERS,
}


def in_a_row(names: Iterable[str]) -> str:
    """Return names as a sentence has them.

    >>> in_a_row(["ring", "grid"])
    '`ring`, `grid`'
    """
    return ", ".join(f"`{name}`" for name in names)


def methods_of(group: str) -> str:
    """Return the methods of one kind, in the order of the table."""
    return in_a_row(name for name in BUILDERS if method_kind(name).group == group)


def table_of_metrics() -> str:
    """Return what each metric is for and what it is."""
    rows = []
    for name, family in measure.BUILT_IN.items():
        more = ", in %" * family.percent + "; lower is better" * (not family.higher_is_better)
        rows.append([f"`{name}`", ", ".join(family.formulas), METRICS[name] + more])
    return block(tables.table(["name", "for", "what it is"], rows))


def table_of_topologies() -> str:
    """Return how each topology is typed, what its docstring says first, and which sums of its weights are 1."""
    rows = []
    for name, make in topology.BUILDERS.items():
        takes = parameters(make, filled=("n", "seed"))
        needed = [k for k, p in takes.items() if p.default is Parameter.empty]
        text = f"`{name}:{','.join(needed)}`" if needed else f"`{name}`"
        what = " ".join((getdoc(make) or "").partition("\n\n")[0].split())
        made = make(2 * TRIED, **dict.fromkeys(needed, TRIED))
        rows.append([text, in_a_row(k for k in takes if k not in needed), what, SUMS[made.stochastic]])
    return block(tables.table(["text", "options", "what it does", "sums of W that are 1"], rows))


def listed() -> str:
    """Return the file that ``coterie list`` prints."""
    rows = [{"method": name, **method_kind(name)._asdict(), "what": about(b).what} for name, b in BUILDERS.items()]
    others = {
        "data": data.SOURCES,
        "partitions": (*data.PARTITIONS, NATURAL),
        "topologies": topology.BUILDERS,
        "models": models.BUILDERS,
        "losses": LOSSES,
        "metrics": measure.BUILT_IN,
    }
    names = {METHODS: rows, **{kind: list(table) for kind, table in others.items()}}
    return json.dumps(names, indent=1, ensure_ascii=False) + "\n"


def block(text: str) -> str:
    """Return a text that stands in lines of its own."""
    return f"\n\n{text}\n\n"


@cache
def lists() -> dict[str, str]:
    """Return every list by its name."""
    return {
        **{name: in_a_row(names) for name, names in NAMES.items()},
        **{f"methods, {group}": methods_of(group) for group in GROUPS},
        "table of metrics": table_of_metrics(),
        "table of topologies": table_of_topologies(),
        "table of rooms": block(f"{rooms.table()}\n\n{rooms.exceptions()}"),
    }


def written(page: str) -> str:
    """Return the text of a page with its lists as they are now."""
    return LIST.sub(lambda found: found[1] + lists()[found[2]] + found[3], page)


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / name
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
    NAMES_FILE.write_text(listed(), encoding="utf-8")
