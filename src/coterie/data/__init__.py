"""Federations: who holds which samples.

``federate`` divides a source of data among clients; ``from_tensors`` takes the clients' data as they are, and
``from_frame``, ``from_csv``, ``from_parquet`` and ``from_huggingface`` tables with a column for the client.
All return a ``Federation``, the only form in which the rest of the library sees data.
"""

from .federation import Federation, from_tensors
from .frames import from_csv, from_frame, from_huggingface, from_parquet
from .partition import PARTITIONS
from .sources import SOURCES, federate
from .transform import Transform

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Federation",
    "Transform",
    "federate",
    "from_csv",
    "from_frame",
    "from_huggingface",
    "from_parquet",
    "from_tensors",
]
