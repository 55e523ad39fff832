"""The methods are imported before pytest collects any of their files."""

# The file of a method has the name of the function in it, and ``coterie.algorithms`` binds that name to the function.
# Pytest would bind the name to the module, if pytest were the first to import the file.
import coterie.algorithms  # noqa: F401
