"""Models by name, and what they cost."""

from .cost import Cost, cost
from .zoo import BUILDERS, build

__all__ = ["BUILDERS", "Cost", "build", "cost"]
