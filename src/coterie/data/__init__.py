"""Federations: who holds which samples.

``federate`` divides a source of data among clients; ``from_tensors`` takes the clients' data as they are.
Both return a ``Federation``, the only form in which the rest of the library sees data.
"""

from .federation import Federation, from_tensors
from .partition import PARTITIONS
from .sources import SOURCES, federate
from .transform import Transform

__all__ = ["PARTITIONS", "SOURCES", "Federation", "Transform", "federate", "from_tensors"]
