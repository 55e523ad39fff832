"""A built site, read as a browser would: what every page loads, where its links lead, which places it has."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}


@dataclass
class Webpage(HTMLParser):
    """One page."""

    text: str
    places: set[str] = field(default_factory=set)  # ids
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.heading: list[str] | None = None
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        self.places |= {given[k] for k in ("id", "name") if k in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link":
            self.loads.append(given.get("href", ""))
        if tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])
        if tag == "h2":
            self.heading = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "h2" and self.heading is not None:
            self.headings.append("".join(self.heading).strip().rstrip("¶"))
            self.heading = None

    def handle_data(self, data: str) -> None:
        if self.heading is not None:
            self.heading.append(data)


def read(site: Path) -> dict[Path, Webpage]:
    """Every page but 404.html, whose links start where the site is put, and that we do not know."""
    return {p: Webpage(p.read_text(encoding="utf-8")) for p in sorted(site.rglob("*.html")) if p.name != "404.html"}


def elsewhere(address: str) -> bool:
    """Whether an address is of another machine."""
    return bool(urlsplit(address).netloc)


def wrong_link(page: Path, link: str, pages: dict[Path, Webpage]) -> str | None:
    """What is wrong with a link; None: nothing. Addresses elsewhere are only looked at."""
    parts = urlsplit(link)
    if parts.scheme == "mailto":
        return None
    if parts.netloc or parts.scheme:
        well_formed = parts.scheme in ("http", "https") and "." in parts.netloc and " " not in link
        return None if well_formed else f"{link} is no address"
    path, place = urldefrag(link)
    target = (page.parent / unquote(path)).resolve() if path else page
    if not target.is_file():
        return f"{link} leads to no file"
    if place and target in pages and unquote(place) not in pages[target].places:
        return f"{link} leads to no place of that page"
    return None
