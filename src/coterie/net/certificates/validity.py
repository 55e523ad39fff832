"""Certificates, keys and lists of revoked certificates, as they lie in files, and what is known of them."""

import ipaddress
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ...core.errors import LONGEST, UserError
from ...core.files import disk, replace

AUTHORITY, REVOKED, ISSUED = "authority", "revoked", "issued"  # names of files, which no member can have
SOON = 30  # days in which a certificate should be renewed
LONGEST_MEMBER = 63  # characters: TLS takes a member's name for that of a host, whose parts have no more
PEM = serialization.Encoding.PEM
NO_AUTHORITY = "run coterie certs init, or name the --folder of the authority"
NEW_AUTHORITY = "make a new one in another folder, and certify all members with it"
_NAME = re.compile(r"[A-Za-z0-9]+([.-][A-Za-z0-9]+)*")
T = TypeVar("T")


class Standing(NamedTuple):
    """What is known of one certificate."""

    name: str
    serial: int
    valid_from: datetime
    valid_until: datetime
    revoked: datetime | None  # since when
    fingerprint: str  # SHA-256, in hexadecimal digits

    @property
    def days_left(self) -> int:
        """The days until it expires, rounded down, and negative when it has."""
        return (self.valid_until - datetime.now(UTC)).days


def standings(folder: Path) -> list[Standing]:
    """Return what is known of all members' certificates in a folder, by name and age."""
    authority = read_authority(folder)
    path = folder / f"{REVOKED}.pem"
    revoked = revocations(read_revoked(path, authority)) if path.exists() else {}
    found = [standing(one, revoked) for one in certified(folder, authority)]
    return sorted(found, key=lambda one: (one.name, one.valid_from, one.valid_until))


def certified(folder: Path, authority: x509.Certificate) -> Collection[x509.Certificate]:
    """Return all certificates of an authority in a folder: copies of those ever issued, and members' own."""
    found = [*map(read_certificate, (folder / ISSUED).glob("*.pem")), *_others(folder)]
    return {one.serial_number: one for one in found if signed_by(one, authority)}.values()


def _others(folder: Path) -> Iterator[x509.Certificate]:
    """Yield the certificates in a folder, which may hold other files in PEM as well."""
    for path in folder.glob("*.pem"):
        if path.stem not in (AUTHORITY, REVOKED):
            with suppress(UserError):
                yield read_certificate(path)


def standing(certificate: x509.Certificate, revoked: Mapping[int, datetime]) -> Standing:
    """Return what is known of one certificate."""
    return Standing(
        member_name(certificate),
        certificate.serial_number,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        revoked.get(certificate.serial_number),
        certificate.fingerprint(hashes.SHA256()).hex(),
    )


def check_name(name: str) -> None:
    """Refuse a name that cannot be that of a file and a host, or that the authority needs itself.

    >>> check_name("clinic-2.example")
    >>> check_name("../alpha")
    Traceback (most recent call last):
    coterie.core.errors.UserError: '../alpha' is no name of a member: take at most 63 letters and digits, with - or .
    between them
    """
    shown = name if len(name) <= LONGEST else f"{name[:20]}..."
    if not _NAME.fullmatch(name) or len(name) > LONGEST_MEMBER:
        most = f"at most {LONGEST_MEMBER} letters and digits, with - or . between them"
        raise UserError(f"{shown!r} is no name of a member: take {most}")
    if name.lower() in (AUTHORITY, REVOKED, ISSUED):
        raise UserError(f"a member cannot be named {name}, as a file of the authority is: choose another name")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return
    raise UserError(f"{name} is an address, and members have names: choose another name")


def member_name(certificate: x509.Certificate) -> str:
    """Return the common name in a certificate, or nothing."""
    return "".join(str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[:1])


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def revocations(found: x509.CertificateRevocationList) -> dict[int, datetime]:
    """Return the serial numbers on a list, and since when each is there."""
    return {one.serial_number: one.revocation_date_utc for one in found}


def read_authority(folder: Path) -> x509.Certificate:
    """Read the certificate of the authority whose folder it is."""
    return read_certificate(folder / f"{AUTHORITY}.pem", NO_AUTHORITY)


def read_certificate(path: Path, fix: str = "copy it again from whoever has issued it") -> x509.Certificate:
    """Read a certificate; ``fix``: what to do where there is none."""
    return _read(path, "certificate", fix, x509.load_pem_x509_certificate)


def read_revoked(path: Path, authority: x509.Certificate) -> x509.CertificateRevocationList:
    """Read a list of revoked certificates; refuse one that the authority has not signed."""
    fix = "copy it from any other member"
    found = _read(path, "list of revoked certificates", fix, x509.load_pem_x509_crl)
    public = authority.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey) or not found.is_signature_valid(public):
        raise UserError(f"{path} was not signed by this federation's authority: {fix}")
    return found


def read_key(path: Path, fix: str = "copy it again from whoever has made it") -> ec.EllipticCurvePrivateKey:
    """Read a private key; ``fix``: what to do where there is none."""
    key = _read(path, "key", fix, lambda content: serialization.load_pem_private_key(content, None))
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} holds no key of an elliptic curve: take one that coterie certs has made")
    return key


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key that nobody but its owner can read, from the first byte on."""
    format = serialization.PrivateFormat.PKCS8
    write_bytes(path, key.private_bytes(PEM, format, serialization.NoEncryption()))


def key_problem(path: Path) -> str:
    """Say that others than its owner can read a key, or nothing."""
    mode = 0 if sys.platform == "win32" else stat.S_IMODE(path.stat().st_mode)  # Windows has no such modes
    return f"{path} can be read by others (mode {mode:o}): chmod 600 {path}" if mode & 0o077 else ""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all, in a folder that its owner alone can enter."""

    def write(temporary: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # Windows would change ends of lines
        with open(os.open(temporary, flags, 0o600), "wb") as f:
            f.write(content)

    with disk(path, "--folder"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(path, write, "--folder")


def _read(path: Path, what: str, fix: str, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the {what} {path} ({error.strerror}): {fix}") from error
    except (ValueError, TypeError) as error:  # the second: a key behind a password
        raise UserError(f"{path} holds no {what} in plain PEM: {fix}") from error
