"""WikiText-2 by name: the text source on its files, with one vocabulary for every way of cutting them."""

from itertools import islice
from pathlib import Path

from ...core.errors import UserError
from ..catalog import located
from ..place import convenience, whole_file
from ..pool import Pool
from .text import check_text, masked, numbered, read, train_and_test

VOCABULARY = "vocabulary.txt"


def wikitext2(
    seed: int,
    folder: Path,
    test: str = "test",
    length: int = 64,
    rows: int = 20,
    vocabulary: int = 0,
    mask: float = 0.15,
    hide: str = "once",
) -> Pool:
    """WikiText-2 for masked language modeling; test: "test" or "valid"; the rest: see the source "text".

    The vocabulary is that of the whole training file, whatever length and rows are; it is written beside the data, a
    token a line in the order of the numbers.

    Reference: Merity et al., Pointer Sentinel Mixture Models, ICLR 2017.
    """
    if test not in ("test", "valid"):
        raise UserError(f"test={test} is no part of wikitext2: choose test or valid")
    check_text(length, rows, vocabulary, mask, hide)
    (path,) = located("wikitext2", folder)
    train, tested = (str(path / f"wiki.{part}.tokens") for part in ("train", test))
    ids = numbered(read(train))
    keep(path / VOCABULARY, "".join(f"{token}\n" for token in ids))
    frequent = dict(islice(ids.items(), vocabulary or None))
    return masked(seed, *train_and_test(train, tested, length, rows), frequent, rows, mask, hide)


def keep(path: Path, content: str) -> None:
    """Writes a file that says otherwise or is not there, where the folder lets us."""
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        convenience(path, lambda: whole_file(path, lambda temporary: temporary.write_text(content, encoding="utf-8")))
