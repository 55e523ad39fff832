"""Sentences about the columns of a table."""

from collections.abc import Mapping, Sequence

SHOWN = 5  # names in a sentence


def feature_notes(features: Mapping[str, tuple[str, ...] | None], standardize: str) -> list[str]:
    """Return what was done to the features: by column its texts, or None for a column of numbers."""
    texts = [name for name, found in features.items() if found is not None]
    numbers = len(features) - len(texts)
    width = sum(len(found) for found in features.values() if found is not None)
    said = [f"{few(texts)}: texts, encoded one-hot in {width} inputs"] if texts else []
    if numbers and standardize != "none":
        said.append(f"{numbers} column{'s' * (numbers > 1)} of numbers: standardized by the training rows")
    return said


def few(names: Sequence[str]) -> str:
    """Return the first of some names.

    >>> few(["a", "b"]), few(["a", "b", "c", "d", "e", "f"])
    ('a, b', 'a, b, c, d, e and 1 more')
    """
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
