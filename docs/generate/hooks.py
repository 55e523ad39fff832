"""The hooks of MkDocs: pages that are generated, and links that differ between the repository and the site.

In the repository a page is read beside README and CONTRIBUTING; on the site these two are pages as well.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import methods
import tables
import tried
from coterie import algorithms

ROOT = Path(__file__).parent.parent.parent
BORROWED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
INSERTED: dict[str, Callable[[], str]] = {
    "<!-- all recipes -->": tables.all_recipes,
    "<!-- all papers -->": tables.all_papers,
    "<!-- tried -->": tried.everything,
    "<!-- published: dfedalt-t1 -->": partial(tables.published_table, "dfedalt-t1"),
    "<!-- published: fedlmt-t2-image -->": partial(tables.published_table, "fedlmt-t2-image"),
}


def generated_pages() -> dict[str, str]:
    """Return the generated pages by their path."""
    pages = {f"methods/{method}.md": methods.page(method) for method in algorithms.BUILDERS}
    borrowed = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in BORROWED.items()}
    return {"methods/index.md": methods.index(), **pages, **borrowed}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the methods into the navigation, kind by kind."""
    pages = next(section["Methods"] for section in config.nav or () if "Methods" in section)
    pages += [{kind: [f"methods/{m}.md" for m in names]} for kind, names in methods.kinds().items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for where, text in generated_pages().items():
        files.append(File.generated(config, where, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables, and point links to where the site has their pages."""
    for mark, make in INSERTED.items():
        markdown = markdown.replace(mark, make()) if mark in markdown else markdown
    for there, source in BORROWED.items():
        markdown = re.sub(rf"\]\((\.\./)*{re.escape(source)}(#[\w-]*)?\)", rf"]({there}\2)", markdown)
    if page.file.src_uri in BORROWED:
        markdown = markdown.replace("](docs/", "](")
    return markdown
