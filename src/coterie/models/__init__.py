"""Models by name, and what they cost."""

from .cost import Cost, cost
from .zoo import BUILDERS, again, build, is_own, named

__all__ = ["BUILDERS", "Cost", "again", "build", "cost", "is_own", "named"]
