"""Text for masked language modeling: the tokens of a file, of which some are hidden; and WikiText-2."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core import rng
from ...core.annotations import Fraction, PositiveInt
from ...core.errors import UserError
from ...core.files import user_path, write_text
from ...core.memory import check_fits
from ..catalog import located
from ..data_dir import OPTION, convenience
from ..federation import Federation
from ..pool import Pool
from ..transform import Masking
from .packed import opened

UNKNOWN, END = "<unk>", "<eos>"  # tokens 0 and 1; WikiText, too, writes its rare words as the first one
VOCABULARY = "vocabulary.txt"
BYTES = 12  # of memory for every byte of a text: each token is an object of its own

Hide = Literal["once", "anew"]
"""When tokens are hidden: once for all passes, or anew in each."""
Strings = NDArray[Any]  # of Python strings: one long word must not widen them all


class Chunks(NamedTuple):
    """Pieces of equal length of a text, and the row of the text that each is from."""

    tokens: Strings  # [N, length]
    rows: NDArray[np.int64]  # [N]


def text(
    seed: int,
    path: str,
    test: str = "",
    length: PositiveInt = 64,
    rows: PositiveInt = 20,
    vocabulary: int = 0,
    mask: Fraction = 0.15,
    hide: Hide = "once",
) -> Pool:
    """Read a text file in chunks of ``length`` tokens: x with some tokens hidden, y as they were written.

    White space separates tokens, and one more token ends a line. The stream of tokens is cut into ``rows`` of equal
    length and every row into chunks; the remainder of a row is not used. Partitions treat rows as they treat classes:
    "pathological:1" gives each of ``rows`` clients one row, "iid" gives every client some chunks of all rows.

    test: another file, cut into as many rows; without one, the last quarter of every row is for testing. vocabulary:
    the largest number of tokens, the most frequent ones of the training chunks, the unknown and the end of a line
    included; 0: all. mask: how likely a token is hidden, that is, replaced by the number of tokens; hide: "once", or
    "anew" in every pass over the training samples, as the released code does; evaluation is always on the same.

    >>> pool = text(seed=0, path=__file__, length=8, rows=4)
    >>> pool.x.shape[1:], pool.y.unique().tolist()
    (torch.Size([8]), [0, 1, 2, 3])

    Reference: FedLMT/pFedLMT, the experiment on WikiText-2. Differs from the released code in: hidden tokens are drawn
    anew only if the user asks for it, and never in evaluation; the shorter chunk at the end of a row is left out.
    """
    _check_text(vocabulary, mask, hide)
    train, tested = train_and_test(path, test, length, rows)
    return masked_pool(seed, train, tested, numbered(train.tokens.flat, vocabulary), rows, mask, hide)


def masked_pool(
    seed: int, train: Chunks, tested: Chunks, ids: Mapping[str, int], rows: int, mask: float, hide: Hide
) -> Pool:
    """Return the chunks as numbers, with some tokens hidden."""
    y, test_y = (torch.from_numpy(encoded(part.tokens, ids)) for part in (train, tested))
    x, test_x = (hidden(part, len(ids), mask, rng.key(seed, k)) for part, k in ((y, "mask"), (test_y, "mask-test")))
    masking = Masking(len(ids), mask) if hide == "anew" else None
    if masking is not None:
        x, test_x = (masking.stored(token, seen == len(ids)) for token, seen in ((y, x), (test_y, test_x)))

    def per_client(federation: Federation) -> Federation:  # rows have decided who holds what; now tokens are targets
        return replace(federation, y=y, test_y=test_y, classes=len(ids))

    return Pool(x, torch.from_numpy(train.rows), test_x, torch.from_numpy(tested.rows), rows, per_client, masking)


def read(path: str) -> list[str]:
    """Return the tokens of a file, line after line."""
    try:
        file = user_path(path)
        with TextIOWrapper(opened(file), encoding="utf-8") as lines:
            check_fits(BYTES * file.stat().st_size, f"the tokens of {path}", "take a shorter text")
            return [token for line in lines for token in (*line.split(), END)]
    except OSError as error:
        raise UserError(f"the text {path} cannot be read ({error.strerror}): name a file that can") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: convert it first") from error


def cut(tokens: list[str], rows: int, length: int) -> Strings:
    """Cut a stream into rows of equal length and each row into whole chunks: [rows, chunks, length].

    >>> cut("a b c d e f g h i".split(), rows=2, length=2).tolist()
    [[['a', 'b'], ['c', 'd']], [['e', 'f'], ['g', 'h']]]
    """
    each = len(tokens) // rows
    stream = np.array(tokens, object)[: rows * each].reshape(rows, each)
    return stream[:, : each // length * length].reshape(rows, each // length, length)


def numbered(tokens: Iterable[str], most: int = 0) -> dict[str, int]:
    """Number all tokens: the two special ones first, then by frequency, and equally frequent ones as they come.

    >>> numbered("b a a <eos> c b a".split(), most=4)
    {'<unk>': 0, '<eos>': 1, 'a': 2, 'b': 3}
    """
    counted = Counter(tokens)
    known = [UNKNOWN, END, *(token for token, _ in counted.most_common() if token not in (UNKNOWN, END))]
    return {token: number for number, token in enumerate(known[: most or None])}


def encoded(tokens: Strings, ids: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the numbers of tokens; an unknown token has number 0."""
    numbers = np.fromiter((ids.get(token, 0) for token in tokens.flat), np.int64, tokens.size)
    return numbers.reshape(tokens.shape)


def hidden(tokens: Tensor, mask_id: int, probability: float, key: int) -> Tensor:
    """Replace some tokens by ``mask_id``; which ones depends only on their sample, their place and the key.

    >>> hidden(torch.tensor([[3, 1, 2]]), 9, 1.0, key=0)
    tensor([[9, 9, 9]])
    """
    sample, place = np.arange(len(tokens))[:, None], np.arange(tokens.shape[1])
    drawn = rng.counters(key, sample, place) / 2.0**64
    return tokens.masked_fill(torch.from_numpy(drawn < probability), mask_id)


def train_and_test(path: str, test: str, length: int, rows: int) -> tuple[Chunks, Chunks]:
    """Return both parts: of two files, or of one file whose rows end in test chunks."""
    if test:
        parts = _chunks(path, rows, length, 1), _chunks(test, rows, length, 1)
    else:
        chunks = _chunks(path, rows, length, 2)
        last = max(1, chunks.shape[1] // 4)
        parts = chunks[:, :-last], chunks[:, -last:]
    train, tested = (Chunks(part.reshape(-1, length), np.repeat(np.arange(rows), part.shape[1])) for part in parts)
    return train, tested


def _chunks(path: str, rows: int, length: int, least: int) -> Strings:
    """Return the chunks of a file; refuse a text that has fewer than ``least`` per row."""
    tokens = read(path)
    need = rows * length * least
    if len(tokens) < need:
        raise UserError(
            f"{path} has {len(tokens)} tokens, and {rows} rows of {least} x {length} need {need}: "
            "lower rows or length, or take a longer text"
        )
    return cut(tokens, rows, length)


def _check_text(vocabulary: int, mask: float, hide: Hide) -> None:
    if vocabulary < 0 or vocabulary in (1, 2):
        raise UserError(f"vocabulary={vocabulary} leaves no word: ask for 3 or more, or 0 for all")
    if hide == "anew" and mask in (0, 1):
        raise UserError(f"mask={mask:g} hides the same tokens in every pass: leave hide=anew out, or choose between")


def wikitext2(
    seed: int,
    folder: Path,
    test: str = "test",
    length: PositiveInt = 64,
    rows: PositiveInt = 20,
    vocabulary: int = 0,
    mask: Fraction = 0.15,
    hide: Hide = "once",
) -> Pool:
    """Read WikiText-2 for masked language modeling; test: "test" or "valid"; the rest: see the source "text".

    The vocabulary is that of the whole training file, whatever length and rows are; it is written beside the data, one
    token per line in the order of the numbers.

    Reference: Merity et al., Pointer Sentinel Mixture Models, ICLR 2017.
    """
    if test not in ("test", "valid"):
        raise UserError(f"test={test} is no part of wikitext2: choose test or valid")
    _check_text(vocabulary, mask, hide)
    (path,) = located("wikitext2", folder)
    train, tested = (str(path / f"wiki.{part}.tokens") for part in ("train", test))
    ids = numbered(read(train))
    _write_vocabulary(path / VOCABULARY, "".join(f"{token}\n" for token in ids))
    frequent = dict(islice(ids.items(), vocabulary or None))
    return masked_pool(seed, *train_and_test(train, tested, length, rows), frequent, rows, mask, hide)


def _write_vocabulary(path: Path, content: str) -> None:
    """Write a file that is missing or has other contents, if the folder can be written to."""
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        convenience(path, lambda: write_text(path, content, OPTION, shared=True))
