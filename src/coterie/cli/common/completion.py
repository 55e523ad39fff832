"""What a shell completes: the names of methods, read without importing them, because a key waits for the answer."""

import re
from functools import cache
from importlib.resources import files


@cache
def method_names() -> list[str]:
    """Return the names of all methods, from the table that imports them."""
    table = files("coterie").joinpath("algorithms", "__init__.py").read_text(encoding="utf-8")
    imported = re.findall(r"^from \.(\w+) import (\w+) as \2$", table, flags=re.MULTILINE)
    return [name.replace("_", "-") for module, name in imported if module == name]


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that begin so, whatever the case."""
    return [name for name in method_names() if name.startswith(incomplete.lower().replace("_", "-"))]
