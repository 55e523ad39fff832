"""Mutual TLS 1.3 between the members of a federation: their own authority alone is trusted, and a refusal has words.

Under TLS 1.3 a client has finished its handshake before the server has looked at its certificate: what a refused client
writes seems to succeed. Only an answer of the application says that a message has arrived.
"""

import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate, CertificateRevocationList

from ...core.errors import UserError
from ..certificates.validity import (
    Standing,
    member_name,
    read_certificate,
    read_key,
    read_revoked,
    revocations,
    signed_by,
)
from ..certificates.validity import standing as standing_of

# What OpenSSL finds wrong with a certificate, by the number of its X509_V_ERR: the other side's, unless it says ours.
_ANOTHERS = "its certificate is another authority's"
_VERIFIED = {
    3: "our list of revoked certificates is not this authority's",
    7: _ANOTHERS,
    9: "its certificate is not valid yet, or our clock is wrong",
    10: "its certificate has expired, or our clock is wrong",
    11: "our list of revoked certificates is not valid yet, or our clock is wrong",
    12: "our list of revoked certificates has expired: get a new one from whoever runs the authority",
    18: _ANOTHERS,
    19: _ANOTHERS,
    20: _ANOTHERS,
    21: _ANOTHERS,
    23: "its certificate is revoked",
    26: "its certificate is not one of a member",
    62: "its certificate is that of another member",
}
# What OpenSSL says of a handshake. There are no alerts of the other side: asyncio closes without sending them.
_HANDSHAKE = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "UNSUPPORTED_PROTOCOL": "its TLS version is too old: TLS 1.3 is the least",
    "HTTP_REQUEST": "it speaks plain HTTP without TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
}


def say(text: str) -> None:
    """Tell whoever is at the terminal."""
    print(f"coterie: {text}", file=sys.stderr)


@dataclass(frozen=True)
class Credentials:
    """What one member shows and trusts. It is checked when it is made; ``name``: the member's own."""

    authority: Path
    certificate: Path
    key: Path
    revoked: Path | None
    name: str
    warn: Callable[[str], object] = say  # told when the list of revoked certificates cannot be read again
    _list: "RevokedList" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        authority = read_certificate(self.authority, "copy authority.pem from whoever runs the authority")
        own = read_certificate(self.certificate)
        if not signed_by(own, authority):
            raise UserError(f"{self.certificate} is not of the authority {self.authority}: take both of one federation")
        if read_key(self.key).public_key() != own.public_key():
            raise UserError(f"{self.key} does not fit {self.certificate}: take both of one member")
        if member_name(own) != self.name:
            raise UserError(f"{self.certificate} is {member_name(own)}'s and not {self.name}'s: change one of the two")
        object.__setattr__(self, "_list", RevokedList(self.revoked, authority, self.warn))
        self._check_now(authority)

    def _check_now(self, authority: Certificate) -> None:
        """Refuse what is not valid at this moment."""
        now, mine = datetime.now(UTC), self.standing
        for path, one in ((self.authority, standing_of(authority, {})), (self.certificate, mine)):
            if one.valid_from > now:
                raise UserError(
                    f"{path} is valid from {one.valid_from:%Y-%m-%d %H:%M} UTC on: set this machine's clock"
                )
            if one.valid_until <= now:
                fix = f"let the authority renew it (coterie certs issue {self.name} --renew)"
                fix = "make a new authority and new certificates" if one is not mine else fix
                raise UserError(f"{path} has expired on {one.valid_until:%Y-%m-%d}: {fix}")
        if mine.revoked:
            fix = f"let the authority issue another one (coterie certs issue {self.name})"
            raise UserError(f"{self.certificate} was revoked on {mine.revoked:%Y-%m-%d}: {fix}")

    @property
    def standing(self) -> Standing:
        """What is known of the member's own certificate."""
        return standing_of(read_certificate(self.certificate), self._list.read())


class RevokedList:
    """A list of revoked certificates in a file, read again when the file changes; None: nobody is on it."""

    def __init__(self, path: Path | None, authority: Certificate, warn: Callable[[str], object]) -> None:
        self.path, self.authority, self.warn = path, authority, warn
        self._version = None if path is None else _version(path)
        self.latest = None if path is None else self._read(path)

    def read(self) -> dict[int, datetime]:
        """Return the serial numbers; where the file cannot be read any more, those before, and say so once."""
        if self.path is not None and (version := _version(self.path)) != self._version:
            self._version = version
            try:
                self.latest = self._read(self.path)
            except UserError as error:
                self.warn(f"{error}; until then the list before it holds")
        return {} if self.latest is None else revocations(self.latest)

    def _read(self, path: Path) -> CertificateRevocationList:
        found, now = read_revoked(path, self.authority), datetime.now(UTC)
        if found.next_update_utc is not None and found.next_update_utc <= now:
            fix = "get a new one from whoever runs the authority"
            raise UserError(f"{path} has expired on {found.next_update_utc:%Y-%m-%d}: {fix}")
        return found


def _version(path: Path) -> object:
    """Return what changes when a file is replaced."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino


class MemberContext(ssl.SSLContext):
    """A context that knows the list of revoked certificates, and whom to tell why a handshake failed."""

    revoked: RevokedList
    loaded: CertificateRevocationList | None = None  # the list that it has
    on_refused: Callable[[str], object]

    def refresh(self) -> None:
        """Take the list of revoked certificates as its file has it now: of several OpenSSL uses the latest."""
        self.revoked.read()
        if (latest := self.revoked.latest) is None or latest is self.loaded:
            return
        try:
            self._load(latest)
        except OSError as error:  # a full disk; who asks for every request what is revoked knows it nevertheless
            self.revoked.warn(f"{self.revoked.path} cannot be used for new connections ({error}): free the disk")

    def _load(self, latest: CertificateRevocationList) -> None:
        """Load the list alone, and no more of its file: a certificate that stood there would be another authority."""
        with TemporaryDirectory(prefix="coterie-") as folder:
            path = Path(folder) / "revoked.pem"
            path.write_bytes(latest.public_bytes(Encoding.PEM))
            self.load_verify_locations(path)
        self.loaded = latest


class Handshake(ssl.SSLObject):
    """A connection whose failed handshake is told in words: asyncio keeps the reason to itself."""

    def do_handshake(self) -> None:
        """Do what ``ssl.SSLObject`` does."""
        context: Any = self.context
        context.refresh()
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            context.on_refused(reason(error))
            raise


def server_context(credentials: Credentials, on_refused: Callable[[str], object]) -> ssl.SSLContext:
    """Return the context of a member that others connect to; ``on_refused`` is told why somebody could not."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, credentials, on_refused)
    context.num_tickets = 0  # a connection taken up again would not show its certificate
    return context


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context of a member that connects to another, whose name is given as ``server_hostname``."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, credentials, lambda reason: None)  # the caller gets the error itself
    context.check_hostname = True
    return context


def _context(protocol: int, credentials: Credentials, on_refused: Callable[[str], object]) -> MemberContext:
    """Return a context that trusts the federation's authority and nobody else."""
    context = MemberContext(protocol)
    context.sslobject_class = Handshake
    context.revoked, context.on_refused = credentials._list, on_refused
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(
        cadata=credentials._list.authority.public_bytes(Encoding.DER)
    )  # this one, whatever follows
    context.load_cert_chain(credentials.certificate, credentials.key)
    if credentials.revoked is not None:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        context.refresh()
    return context


def reason(error: ssl.SSLError) -> str:
    """Say in words why a handshake, or a connection after it, has failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFIED.get(error.verify_code) or f"its certificate is refused ({error.verify_message})"
    known = _HANDSHAKE.get(error.reason or "")
    return known or f"TLS failed ({(error.reason or str(error)).replace('_', ' ').lower()})"


def name_of(peercert: Mapping[str, Any]) -> str:
    """Return the member whose certificate ``getpeercert`` of a connection shows.

    >>> name_of({"subjectAltName": (("DNS", "alpha"),)})
    'alpha'
    """
    names = [value for kind, value in peercert.get("subjectAltName", ()) if kind == "DNS"]
    if len(names) != 1:
        raise UserError("a certificate must name one member: take one that coterie certs has issued")
    return str(names[0])


def serial_of(peercert: Mapping[str, Any]) -> int:
    """Return the serial number of the certificate that ``getpeercert`` of a connection shows.

    >>> serial_of({"serialNumber": "0A1F"})
    2591
    """
    return int(peercert["serialNumber"], 16)


def revoked(credentials: Credentials) -> frozenset[int]:
    """Return the serial numbers of the certificates that count no more, as the file has them now."""
    return frozenset(credentials._list.read())
