"""What a page carries to draw with, compressed: plotly.js is 4.8 MB as it comes and 2 MB this way."""

import base64
import gzip
import json
from functools import cache
from typing import Any

from ..core.errors import UserError

MISSING = "a report needs plotly: run pip install 'coterie[report]'"


@cache
def compressed_library() -> str:
    """plotly.js of the installed package, as ``packed`` has it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError(MISSING) from error
    return packed(get_plotlyjs())


def packed(text: str) -> str:
    """A text as base64 of gzip, the same for the same text; browsers unpack it without any library.

    >>> unpacked(packed("Okabe-Ito")) == "Okabe-Ito"
    True
    """
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def unpacked(text: str) -> str:
    """What ``packed`` packed."""
    return gzip.decompress(base64.b64decode(text)).decode()


def packed_json(value: Any) -> str:
    """JSON, packed, with numbers of at most six digits: more cannot be seen."""
    return packed(json.dumps(rounded(value), allow_nan=False, separators=(",", ":")))


def rounded(value: Any) -> Any:
    """All floating numbers inside lists and dicts to six significant digits.

    >>> rounded({"y": [1 / 3, 12, None]})
    {'y': [0.333333, 12, None]}
    """
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
