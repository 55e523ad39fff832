"""Models by name, and what they cost."""

from .cost import Cost, cost
from .zoo import BUILDERS, build, rebuild, rebuild_trusted

__all__ = ["BUILDERS", "Cost", "build", "cost", "rebuild", "rebuild_trusted"]
