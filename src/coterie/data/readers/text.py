"""Text files for masked language modeling: which token stands there, where some are hidden."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core import rng as rng
from ...core.errors import UserError, unknown
from ..federation import Federation
from ..masking import Masking
from ..pool import Pool

UNKNOWN, END = "<unk>", "<eos>"  # tokens 0 and 1; WikiText writes its rare words as the first one, too

Strings = NDArray[Any]  # of Python's own strings: one long word must not widen them all


class Chunks(NamedTuple):
    """Pieces of equal length of a text, and which of its rows each of them lies in."""

    tokens: Strings  # [N, length]
    rows: NDArray[np.int64]  # [N]


def text(
    seed: int,
    path: str,
    test: str = "",
    length: int = 64,
    rows: int = 20,
    vocabulary: int = 0,
    mask: float = 0.15,
    hide: str = "once",
) -> Pool:
    """A text file in chunks of ``length`` tokens: x with some of them hidden, y as they were written.

    Tokens are what white space separates, and one more ends a line. The stream of them is cut into ``rows`` of equal
    length and every row into chunks; what is left over at the end of a row is not used. A row is to the partitions
    what a class is elsewhere: "pathological:1" gives each of ``rows`` clients one row, "iid" every client some of all.

    test: another file, cut in as many rows; without one, the last quarter of every row is for testing. vocabulary: at
    most so many tokens, the most frequent of the training chunks, the unknown and the end of a line among them; 0: all.
    mask: how likely a token is hidden, that is, replaced by the number of tokens; hide: "once", or "anew" in every pass
    over the training samples, as the released code does; what a model is evaluated on is always the same.

    >>> pool = text(seed=0, path=__file__, length=8, rows=4)
    >>> pool.x.shape[1:], pool.y.unique().tolist()
    (torch.Size([8]), [0, 1, 2, 3])

    Reference: FedLMT/pFedLMT, the experiment on WikiText-2. Differs from the released code in: hidden tokens are drawn
    anew only if asked for, and never in evaluation; the shorter chunk at the end of a row is left out.
    """
    check_text(length, rows, vocabulary, mask, hide)
    train, tested = train_and_test(path, test, length, rows)
    return masked(seed, train, tested, numbered(train.tokens.flat, vocabulary), rows, mask, hide)


def masked(seed: int, train: Chunks, tested: Chunks, ids: Mapping[str, int], rows: int, mask: float, hide: str) -> Pool:
    """The chunks in numbers, some of them hidden."""
    y, test_y = (torch.from_numpy(encoded(part.tokens, ids)) for part in (train, tested))
    x, test_x = (hidden(part, len(ids), mask, rng.key(seed, k)) for part, k in ((y, "mask"), (test_y, "mask-test")))
    masking = Masking(len(ids), mask) if hide == "anew" else None
    if masking is not None:
        x, test_x = (masking.stored(token, seen == len(ids)) for token, seen in ((y, x), (test_y, test_x)))
    per_client = partial(_spelt, y=y, test_y=test_y, tokens=len(ids))
    return Pool(x, torch.from_numpy(train.rows), test_x, torch.from_numpy(tested.rows), rows, per_client, masking)


def read(path: str) -> list[str]:
    """The tokens of a file, line after line."""
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            return [token for line in file for token in (*line.split(), END)]
    except OSError as error:
        raise UserError(f"the text {path} cannot be read ({error.strerror}): name a file that can") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: convert it first") from error


def cut(tokens: list[str], rows: int, length: int) -> Strings:
    """[rows, chunks a row, length]: the stream in rows of equal length, each in whole chunks.

    >>> cut("a b c d e f g h i".split(), rows=2, length=2).tolist()
    [[['a', 'b'], ['c', 'd']], [['e', 'f'], ['g', 'h']]]
    """
    each = len(tokens) // rows
    stream = np.array(tokens, object)[: rows * each].reshape(rows, each)
    return stream[:, : each // length * length].reshape(rows, each // length, length)


def numbered(tokens: Iterable[str], most: int = 0) -> dict[str, int]:
    """A number for every token: the two special ones first, then by frequency, equally frequent ones as they come.

    >>> numbered("b a a <eos> c b a".split(), most=4)
    {'<unk>': 0, '<eos>': 1, 'a': 2, 'b': 3}
    """
    counted = Counter(tokens)
    known = [UNKNOWN, END, *(token for token, _ in counted.most_common() if token not in (UNKNOWN, END))]
    return {token: number for number, token in enumerate(known[: most or None])}


def encoded(tokens: Strings, ids: Mapping[str, int]) -> NDArray[np.int64]:
    """The numbers of some tokens; one that is not known has number 0."""
    numbers = np.fromiter((ids.get(token, 0) for token in tokens.flat), np.int64, tokens.size)
    return numbers.reshape(tokens.shape)


def hidden(tokens: Tensor, mask_id: int, probability: float, key: int) -> Tensor:
    """The tokens with some replaced by ``mask_id``: whether one is depends on its sample, its place and the key alone.

    >>> hidden(torch.tensor([[3, 1, 2]]), 9, 1.0, key=0)
    tensor([[9, 9, 9]])
    """
    sample, place = np.arange(len(tokens))[:, None], np.arange(tokens.shape[1])
    drawn = rng.counters(key, sample, place) / 2.0**64
    return tokens.masked_fill(torch.from_numpy(drawn < probability), mask_id)


def train_and_test(path: str, test: str, length: int, rows: int) -> tuple[Chunks, Chunks]:
    """Both parts: of two files, or of one whose rows end in test chunks."""
    if test:
        return _joined(_long_enough(path, rows, length, 1)), _joined(_long_enough(test, rows, length, 1))
    chunks = _long_enough(path, rows, length, 2)
    last = max(1, chunks.shape[1] // 4)
    return _joined(chunks[:, :-last]), _joined(chunks[:, -last:])


def _joined(chunks: Strings) -> Chunks:
    rows, each, length = chunks.shape
    return Chunks(chunks.reshape(rows * each, length), np.repeat(np.arange(rows), each))


def _long_enough(path: str, rows: int, length: int, least: int) -> Strings:
    """The chunks of a file, at least so many in a row."""
    tokens = read(path)
    need = rows * length * least
    if len(tokens) < need:
        raise UserError(
            f"{path} has {len(tokens)} tokens, and {rows} rows of {least} x {length} need {need}: "
            "lower rows or length, or take a longer text"
        )
    return cut(tokens, rows, length)


def _spelt(federation: Federation, y: Tensor, test_y: Tensor, tokens: int) -> Federation:
    """Tokens for targets, once the rows have told who holds what."""
    return replace(federation, y=y, test_y=test_y, classes=tokens)


def check_text(length: int, rows: int, vocabulary: int, mask: float, hide: str) -> None:
    if length < 1 or rows < 1:
        raise UserError(f"a text needs at least 1 row and a length of 1, not {rows} and {length}")
    if vocabulary < 0 or vocabulary in (1, 2):
        raise UserError(f"vocabulary={vocabulary} leaves no word: ask for 3 or more, or 0 for all")
    if not 0 <= mask <= 1:
        raise UserError(f"mask must be a probability between 0 and 1, not {mask:g}")
    if hide not in ("once", "anew"):
        raise unknown("hide", hide, ("once", "anew"))
    if hide == "anew" and mask in (0, 1):
        raise UserError(f"mask={mask:g} hides the same tokens in every pass: leave hide=anew out, or choose between")
