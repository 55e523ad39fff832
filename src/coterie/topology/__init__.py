"""Who hears whom in a round, as a matrix: W[i, j] is the weight receiver i gives to the message of sender j.

>>> from coterie import topology
>>> topology.build("ring", n=4)(0)
tensor([[0.3333, 0.3333, 0.0000, 0.3333],
        [0.3333, 0.3333, 0.3333, 0.0000],
        [0.0000, 0.3333, 0.3333, 0.3333],
        [0.3333, 0.0000, 0.3333, 0.3333]], dtype=torch.float64)
"""

from .draws import clique, one_peer_exponential, random, random_pull, random_push
from .facts import degree, degrees, diameter, edges, in_neighbors, spectral_gap, stochasticity
from .graphs import Topology, TopologyLike, exponential, full, grid, metropolis, none, ring, star
from .parse import BUILDERS, build
from .sparse import diagonal, drop_messages, links, support, with_diagonal, without_absent

__all__ = [
    "BUILDERS",
    "Topology",
    "TopologyLike",
    "build",
    "clique",
    "degree",
    "degrees",
    "diagonal",
    "diameter",
    "drop_messages",
    "edges",
    "exponential",
    "full",
    "grid",
    "in_neighbors",
    "links",
    "metropolis",
    "none",
    "one_peer_exponential",
    "random",
    "random_pull",
    "random_push",
    "ring",
    "spectral_gap",
    "star",
    "stochasticity",
    "support",
    "with_diagonal",
    "without_absent",
]
