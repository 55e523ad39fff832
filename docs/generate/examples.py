"""Docstrings for the API reference: doctests as code, formulas as they are typed, fields as a table."""

import inspect
import re
from pydoc import locate
from typing import Any

import griffe

from coterie.algorithms.about import ARGS, args_of
from coterie.algorithms.options import Options

OPTIONS = "{options}"  # where the docstring of a function has the options of a run
# What fields mean that stand elsewhere already: a Training has the values of all Options.
ELSEWHERE = {"coterie.algorithms.options.Training": args_of(inspect.getdoc(Options) or "")}


class Examples(griffe.Extension):
    """An extension that makes Markdown of docstrings, and shows the fields of classes with their comments."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Put fences into the docstring of a function, class or module, and the fields of a class behind it."""
        if obj.docstring and OPTIONS in obj.docstring.value:  # which Python puts there when the module is imported
            obj.docstring.value = inspect.getdoc(locate(obj.path)) or ""
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(to_markdown, obj.docstring.value.split("\n\n")))
        if isinstance(obj, griffe.Class) and obj.docstring and ARGS not in obj.docstring.value:
            obj.docstring.value += field_table(obj)


def to_markdown(paragraph: str) -> str:
    """Return a paragraph of a docstring in Markdown."""
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    if re.search(r" <- |^\w+ *= ", paragraph) and "`" not in paragraph and ">>>" not in paragraph:
        return f"```text\n{paragraph}\n```"
    return paragraph.replace("``", "`")


def field_table(cls: griffe.Class) -> str:
    """Return the fields of a class, each with its type, its default and the comment beside it in the source."""
    fields = [a for name, a in cls.attributes.items() if a.annotation and not name.startswith("_") and is_field(a)]
    rows = [f"| `{a.name}` | `{a.annotation}` | {default(a)} | {meaning(cls, a)} |" for a in fields]
    return "\n".join(["\n\n| field | type | default | what it is |", "|---|---|---|---|", *rows]) if rows else ""


def is_field(attribute: griffe.Attribute) -> bool:
    """Tell whether a person gives it a value; a property has none."""
    return "property" not in attribute.labels and not str(attribute.annotation).startswith("ClassVar")


def default(attribute: griffe.Attribute) -> str:
    """Return what a field has unless it is given."""
    value = "" if attribute.value is None else str(attribute.value)
    made = re.fullmatch(r"field\(default_factory=(\w+)\)", value)
    return f"`{made[1]}()`" if made else f"`{value}`" if value else ""


def meaning(cls: griffe.Class, attribute: griffe.Attribute) -> str:
    """Return the comment behind a field, or the one in the lines before it, as a sentence."""
    lines: list[str] = attribute.filepath.read_text(encoding="utf-8").splitlines()  # type: ignore[union-attr]
    first, last = (attribute.lineno or 1) - 1, (attribute.endlineno or 1) - 1
    text = lines[last].partition("  # ")[2]
    above = first - 1
    while not text and lines[above].lstrip().startswith("# "):
        above -= 1
    text = text or " ".join(line.strip().removeprefix("# ") for line in lines[above + 1 : first])
    text = text.partition(" # ")[0] or ELSEWHERE.get(cls.path, {}).get(attribute.name, "")
    marked = text.replace("``", "`").replace("[", "\\[").replace("|", "\\|").replace("*", "\\*")
    return f"{marked[0].upper()}{marked[1:].rstrip('.')}." if marked else ""
