"""Rows for other programs: JSON or CSV alone on the standard output, where a table is for people."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import unknown

TABLE, JSON, CSV = "table", "json", "csv"


def for_programs(format: str) -> bool:
    """Return whether rows are printed for a program; refuse a format that there is not."""
    if format.lower() not in (TABLE, JSON, CSV):
        raise unknown("format", format, (TABLE, JSON, CSV))
    return format.lower() != TABLE


def print_rows(format: str, rows: Sequence[Mapping[str, Any]], whole: Any = None) -> None:
    """Print rows of equal keys as CSV, or ``whole``, by default the rows, as JSON."""
    if format.lower() == JSON:
        print(json.dumps(rows if whole is None else whole, indent=2, ensure_ascii=False))
        return
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
