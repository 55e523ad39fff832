"""Asking other members what they are, by one that does not take part yet."""

from typing import Any

from ...core.errors import UserError
from ..setup.config import PeerConfig
from ..setup.start import transport_of
from .check import Ask

TIMEOUT = 5.0  # seconds for an answer


def asker(config: PeerConfig) -> Ask | None:
    """Return what asks a member for its hello; None where this one's certificate allows to ask nobody."""
    nobody: Any = None  # a transport that is not started neither takes messages nor says anything of itself
    try:
        transport = transport_of(config, False, lambda event, **fields: None)(nobody, nobody, nobody)
    except UserError:
        return None
    return lambda name: transport.ask(name, TIMEOUT)
