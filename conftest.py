"""The packages are imported before pytest collects any of their files."""

# Some files have the name of a function in them, as those of methods do, and their package binds that name to the
# function. Pytest would bind the name to the module, if pytest were the first to import the file.
import coterie.algorithms
import coterie.bench
import coterie.export
import coterie.measure
import coterie.models
import coterie.report
import coterie.submodels
import coterie.theory  # noqa: F401
