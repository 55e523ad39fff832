"""The packages are imported before pytest collects any of their files, of which it runs the examples alone."""

from typing import Any

# Some files have the name of a function in them, as those of methods do, and their package binds that name to the
# function. Pytest would bind the name to the module, if pytest were the first to import the file.
import coterie.algorithms
import coterie.export
import coterie.measure
import coterie.models
import coterie.report
import coterie.submodels
import coterie.papers.theory  # noqa: F401


def pytest_pycollect_makeitem(collector: Any) -> list[Any] | None:
    """Collect no test from a file of the package, in which some functions are named test_ as well."""
    return [] if collector.path.is_relative_to(collector.config.rootpath / "src") else None
