"""Docstrings for the API reference: doctests as code, formulas as they are typed."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Puts fences around doctests and formulas, which Markdown would take for quotations and running text."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every function, class and module."""
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(fenced, obj.docstring.value.split("\n\n")))


def fenced(paragraph: str) -> str:
    """A paragraph of a docstring in Markdown."""
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    if re.search(r" <- |^\w+ *= ", paragraph) and "`" not in paragraph and ">>>" not in paragraph:
        return f"```text\n{paragraph}\n```"
    return paragraph.replace("``", "`")
