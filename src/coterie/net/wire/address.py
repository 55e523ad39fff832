"""Addresses as people write them: HOST:PORT."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...core.annotations import shown
from ...core.errors import UserError
from ...core.spec import whole_number

LOOPBACK = "127.0.0.1"
PORTS = 65535  # the largest number of a port


class Address(NamedTuple):
    """Where a member is reached, or where it listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(where: str, key: str, text: Any, example: str) -> Address:
    """Read HOST:PORT, where an address of version 6 has brackets.

    >>> address("peer.toml", "listen", "[::1]:7443", "0.0.0.0:7443"), str(Address("::1", 7443))
    (Address(host='::1', port=7443), '[::1]:7443')
    """
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    number = whole_number(port)
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    plain = inside and not re.search(r"[\s/@\[\]]", inside) and (":" not in inside or inside != host)
    if not colon or not plain or number is None or not 0 < number <= PORTS:
        raise UserError(f"{where}: {key}={shown(text)} is no address: write HOST:PORT, as in {example}")
    return Address(inside, number)


def check_loopback(places: Mapping[str, tuple[str, int]]) -> None:
    """Refuse to go without TLS where anybody is, or may be, on another machine.

    >>> check_loopback({"alpha": ("127.0.0.1", 7443), "beta": ("10.0.0.2", 7443)})
    Traceback (most recent call last):
    coterie.core.errors.UserError: beta is at 10.0.0.2:7443, which is not on 127.0.0.1: use certificates instead of \
    --insecure-loopback, as only members on one machine go without
    """
    for name, where in places.items():
        if where[0] != LOOPBACK:  # a name may mean another machine tomorrow
            raise UserError(
                f"{name} is at {Address(*where)}, which is not on {LOOPBACK}: use certificates instead of "
                "--insecure-loopback, as only members on one machine go without"
            )
