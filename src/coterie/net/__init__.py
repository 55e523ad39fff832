"""Real peers: one participant of a federation in each process, over a network that fails.

``aiohttp`` carries the messages: it takes the TLS of Python's own ``ssl`` module, which can insist on TLS 1.3, on one
authority and on its list of revoked certificates, and says why a certificate was refused. gRPC's Python package can
set neither the version nor the list.
"""

from importlib.util import find_spec

from ..core.errors import UserError

if not all(map(find_spec, ("aiohttp", "cryptography"))):
    raise UserError("peers and their certificates need aiohttp and cryptography: pip install 'coterie[peers]'")
