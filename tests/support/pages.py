"""A report as a reader's program sees it: its tags, its texts, and what its charts draw."""

import base64
import gzip
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "link", "input", "br"}


@dataclass
class Element:
    """A tag, its attributes, and what is inside it."""

    tag: str
    attributes: dict[str, str | None]
    children: "list[Element | str]" = field(default_factory=list)

    @property
    def text(self) -> str:
        """All words inside."""
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, tag: str = "", **attributes: str) -> "list[Element]":
        """Those inside it with this tag and these attributes."""
        inside = [c for c in self.children if isinstance(c, Element)]
        deeper = [e for c in inside for e in c.all(tag, **attributes)]
        wanted = attributes.items()
        mine = [c for c in inside if c.tag == (tag or c.tag) and all(c.attributes.get(k) == v for k, v in wanted)]
        return mine + deeper

    def one(self, tag: str = "", **attributes: str) -> "Element":
        """The only one."""
        (found,) = self.all(tag, **attributes)
        return found


class _Reader(HTMLParser):
    """Builds the tree, and refuses tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(text: str) -> Element:
    """The tree of an HTML text."""
    reader = _Reader()
    reader.feed(text)
    assert reader.open == [reader.root], "something is left open"
    return reader.root


class Page:
    """A report that was written."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.root = parsed(self.text)
        self.charts: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(self.root.one(id="charts").text)))

    def table(self, setup: str = "s1") -> dict[str, dict[str, Element]]:
        """The cells of the headline table by method and column."""
        table = next(t for t in self.root.one(id=setup).all("table") if "headline" in (t.attributes["class"] or ""))
        heads = [th.one("button").text for th in table.one("thead").all("th")]
        rows = table.one("tbody").all("tr")
        return {row.one("th").text: dict(zip(heads[1:], row.all("td"), strict=True)) for row in rows}

    def view(self, chart: str, view: str = "") -> dict[str, Any]:
        """A figure of a chart."""
        found: dict[str, Any] = self.charts[chart]["views"][view]
        return found


def value(cell: Element) -> float:
    """The number a table sorts by."""
    number = cell.attributes["data-value"]
    assert number is not None
    return float(number)


def number(cell: Element) -> str:
    """What a cell of the headline table prints, without its mark."""
    return str(cell.one("span", **{"class": "number"}).children[-1])
