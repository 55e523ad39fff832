"""Federations: who holds which samples.

``federate`` divides a source of data among clients; ``from_tensors`` takes the clients' data as they are.
Both give a ``Federation``, the only form in which the rest of the library sees data.
"""

from .federation import Federation, from_tensors
from .partition import PARTITIONS
from .preparation import Preparation
from .sources import SOURCES, federate

__all__ = ["PARTITIONS", "SOURCES", "Federation", "Preparation", "federate", "from_tensors"]
