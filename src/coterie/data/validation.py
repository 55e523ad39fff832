"""Validation samples: a part of every client's training samples that is kept out of training, to choose by.

Whatever is chosen by looking (a round, a learning rate) must be chosen on samples that neither trained the model nor
measure it afterwards. Test samples never move.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import rng
from ..core.clients import client_list
from ..core.errors import UserError
from .federation import Federation
from .pool import rows_by_label

FEWEST = 2  # samples of a client that can give one away


def with_validation(federation: Federation, fraction: float, seed: int) -> Federation:
    """Return the federation with a fraction of every client's training samples kept for validation.

    The draw depends on the seed, the client and what the client has, and on nothing else: all methods have the same
    one. Where every sample has one class, each class of a client gives its share. A client of two samples or more
    gives one at least and keeps one at least; a client of fewer gives none.

    >>> x, y, rows = torch.zeros(10, 1), torch.tensor([0] * 5 + [1] * 5), torch.arange(10)
    >>> fed = with_validation(Federation(x, y, x, y, (rows, rows[:1]), (rows, rows), classes=2), 0.4, seed=0)
    >>> [len(own) for own in fed.train], [len(own) for own in fed.validation], y[fed.validation[0]].tolist()
    ([6, 1], [4, 0], [0, 0, 1, 1])
    """
    if not fraction:
        return federation
    if federation.validation:
        raise UserError("the federation has validation samples of its own: leave validation out")
    if not 0 < fraction < 1:
        raise UserError(f"validation={fraction:g} is out of range: give a fraction between 0 and 1, such as 0.2")
    classes = federation.y.cpu().numpy() if federation.classes is not None and federation.y.dim() == 1 else None
    kept = [
        stratified(
            None if classes is None else classes[own.cpu().numpy()],
            len(own),
            fraction,
            rng.generator(seed, "validation", client),
        )
        for client, own in enumerate(federation.train)
    ]
    if not any(mine.any() for mine in kept):
        raise UserError(f"no client has {FEWEST} training samples, one of them for validation: leave validation out")
    masks = [torch.from_numpy(mine).to(own.device) for own, mine in zip(federation.train, kept, strict=True)]
    parts = [(own[~mine], own[mine]) for own, mine in zip(federation.train, masks, strict=True)]
    train, validation = zip(*parts, strict=True)
    return replace(federation, train=train, validation=validation)


def stratified(
    labels: NDArray[np.int64] | None, size: int, fraction: float, draw: np.random.Generator
) -> NDArray[np.bool_]:
    """Mark the samples of one client that are kept out; ``labels``: their classes, None where they have none."""
    marked = np.zeros(size, bool)
    if size < FEWEST:
        return marked
    count = min(max(1, round(fraction * size)), size - 1)
    groups = [np.arange(size)] if labels is None else [rows for _, rows in sorted(rows_by_label(labels).items())]
    for rows, share in zip(groups, shares([len(rows) for rows in groups], count, draw), strict=True):
        marked[draw.permutation(rows)[:share]] = True
    return marked


def shares(sizes: Sequence[int], count: int, draw: np.random.Generator) -> list[int]:
    """Divide ``count`` among groups of these sizes in proportion: rounded down, then one more for the largest rests.

    A group of one sample comes last: it would leave the training altogether. Equal rests are drawn.

    >>> shares([50, 30, 20, 1], 10, np.random.default_rng(0))
    [5, 3, 2, 0]
    """
    quota = np.array(sizes) * count / sum(sizes)
    found = np.floor(quota).astype(int)
    order = np.lexsort((draw.random(len(found)), -(quota - found), np.array(sizes) == 1))
    found[order[: count - found.sum()]] += 1
    return [int(share) for share in found]


def without_validation(federation: Federation) -> str | None:
    """Say which clients have no validation samples although others do; None if all have some, or nobody does."""
    none = [i for i, own in enumerate(federation.validation) if not len(own)]
    if not none:
        return None
    who = f"{client_list(federation.names, none)} {'has' if len(none) == 1 else 'have'}"
    return f"{who} fewer than {FEWEST} training samples and so none for validation: what is chosen rests on the others"
