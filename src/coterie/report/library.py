"""What a page carries to draw with, compressed: plotly.js is 4.8 MB as it comes and 2 MB this way."""

import base64
import gzip
import json
from functools import cache
from typing import Any

from ..core.extras import import_extra


@cache
def compressed_library() -> str:
    """Return plotly.js of the installed package, packed."""
    return pack(import_extra("plotly.offline", "report", "a report").get_plotlyjs())


def pack(text: str) -> str:
    """Return a text as base64 of gzip, the same for the same text; browsers unpack it without any library.

    >>> gzip.decompress(base64.b64decode(pack("Okabe-Ito")))
    b'Okabe-Ito'
    """
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def pack_json(value: Any) -> str:
    """Return a value as JSON, packed, with numbers of at most six digits: more cannot be seen."""
    return pack(json.dumps(round_floats(value), allow_nan=False, separators=(",", ":")))


def round_floats(value: Any) -> Any:
    """Round all floating numbers inside lists and dicts to six significant digits.

    >>> round_floats({"y": [1 / 3, 12, None]})
    {'y': [0.333333, 12, None]}
    """
    if isinstance(value, dict):
        return {k: round_floats(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
