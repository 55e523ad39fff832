"""Words that readers of the field do not expect, and that must not come back into what they read.

Documents, helps, errors and pages say after aggregation, an integer, one row per round, light and dark.
"""

import ast
import re
from pathlib import Path

import pytest

import coterie

ROOT = Path(__file__).parents[2]
PACKAGE = Path(coterie.__file__).parent
# What is not said, and what is said instead.
WORDS = {
    r"after mixing": "after aggregation",
    r"around a server": "with a server",
    r"whole[- ]numbers?\b": "integer",
    r"\ba text such as\b": "a string such as",
    r"\b(points|rounds|seconds) before (local|fed|dfed)": "ahead of",
    r"\bwould last\b": "holds up",
    r"\bfares? (best|worst)\b": "is best off",
    r"\bdivided by (dirichlet|natural|iid)": "partitioned with",
    r"[Ww]ho mixes with whom, where": "communication graph",
    r"What the clients hold": "label distribution per client",
    r"\b[Bb]reak it off\b": "interrupt",
    r"\b[Bb]y (day|night)\b": "light, dark",
    r"tables? of pandas": "a pandas DataFrame",
    r"[Tt]he recurrence\b": "the update rule",
    r"\b(row|pair|file|folder|line|label|message)s? a (round|client|class|sample)\b": "per",
    r"\b(bytes|parameters|samples|messages|models) a (round|message)\b": "per",
    r"\bEvery participant\b": "every client",
    r"\w*(quantis|vectoris|normalis|personalis|initialis|optimis(?!ti)|summaris|regularis|colour|behaviour|neighbour)\w*":
        "-ize, color, behavior, neighbor",
}  # fmt: skip
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(page for folder in ("docs", "docs/design", "docs/tasks") for page in (ROOT / folder).glob("*.md")),
]


def wrong(text: str) -> list[str]:
    """What a text says that it should not."""
    plain = " ".join(text.split())
    return [found[0] for pattern in WORDS for found in re.finditer(pattern, plain)]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_documents_have_the_words_of_the_field(page: Path) -> None:
    assert wrong(page.read_text(encoding="utf-8")) == []


def test_sentences_of_the_program_have_them() -> None:
    """All texts in the code: docstrings, which the reference shows, helps, errors, captions."""
    found = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}": words
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (words := wrong(node.value))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    ["measured after mixing", "one row a round", "it takes a whole\nnumber", "vectorised", "a table of pandas"],
)
def test_such_words_are_found(text: str) -> None:
    assert wrong(text)


def test_others_are_not() -> None:
    assert wrong("an optimistic number, one row per round, by daylight, the mixing matrix, a string") == []
