"""Docstrings for the API reference: doctests as code, formulas as they are typed."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """An extension that puts fences around doctests and formulas, which Markdown would take for running text."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Put fences into the docstring of a function, class or module."""
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(to_markdown, obj.docstring.value.split("\n\n")))


def to_markdown(paragraph: str) -> str:
    """Return a paragraph of a docstring in Markdown."""
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    if re.search(r" <- |^\w+ *= ", paragraph) and "`" not in paragraph and ">>>" not in paragraph:
        return f"```text\n{paragraph}\n```"
    return paragraph.replace("``", "`")
