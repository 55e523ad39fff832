"""A federation's own authority: it certifies members, and lists the certificates that count no more.

Its folder holds ``authority.pem`` and ``authority.key``, ``revoked.pem``, ``NAME.pem`` and ``NAME.key`` of each member,
and in ``issued`` a copy of every certificate that was ever issued, so that all of a member's can be revoked.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...core.errors import UserError, unknown
from .validity import (
    AUTHORITY,
    ISSUED,
    NEW_AUTHORITY,
    PEM,
    REVOKED,
    Standing,
    certified,
    check_name,
    member_name,
    read_authority,
    read_key,
    read_revoked,
    revocations,
    standings,
    write_bytes,
    write_key,
)

BEFORE = timedelta(days=1)  # how long ago all of it became valid: nobody's clock is further off
AUTHORITY_DAYS, DAYS = 3650, 365


@dataclass(frozen=True)
class Authority:
    """An authority with its key, which signs."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, folder: Path, days: float = AUTHORITY_DAYS) -> "Authority":
        """Make an authority in a folder that has none, with an empty list of revoked certificates."""
        for path, fix in (
            (folder / f"{AUTHORITY}.pem", "issue certificates with it"),
            (folder / f"{AUTHORITY}.key", f"restore {AUTHORITY}.pem beside it"),
        ):
            if os.path.lexists(path):
                raise UserError(f"{path} is there already: {fix}, or choose another --folder")
        key, serial = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
        name = _named(f"coterie authority {serial:x}"[:26])
        builder = _builder(name, name, key.public_key(), key, _from_now(days)).serial_number(serial)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        made = cls(folder, builder.sign(key, hashes.SHA256()), key)
        made._write_revoked({}, number=1, after=None)
        write_key(folder / f"{AUTHORITY}.key", key)
        write_bytes(folder / f"{AUTHORITY}.pem", made.certificate.public_bytes(PEM))
        return made

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Read an authority that ``create`` has made."""
        certificate = read_authority(folder)
        path = folder / f"{AUTHORITY}.key"
        key = read_key(path, "certificates are issued and revoked where the authority was made, so do it there")
        if key.public_key() != certificate.public_key():
            raise UserError(f"{path} does not fit {AUTHORITY}.pem: restore the two files that belong together")
        until = certificate.not_valid_after_utc
        if until <= datetime.now(UTC):
            raise UserError(f"the authority in {folder} has expired on {until:%Y-%m-%d}: {NEW_AUTHORITY}")
        return cls(folder, certificate, key)

    def issue(self, name: str, days: float = DAYS, renew: bool = False) -> list[Path]:
        """Issue a member's certificate, with a new key unless it is renewed; return the files for the member."""
        check_name(name)
        self._check_case(name)
        gone = self.revoked()
        valid = [one for one in self.issued(name) if one.serial_number not in gone]
        if valid and not renew:
            raise UserError(f"{name} has a certificate already: type --renew, or first coterie certs revoke {name}")
        if renew and not valid:
            raise UserError(f"{name} has no certificate that could be renewed: leave out --renew")
        key = None if renew else self._new_key(name)
        made = self._member(name, (valid[-1] if key is None else key).public_key(), _from_now(days))
        own, key_file = (self.folder / f"{name}.{kind}" for kind in ("pem", "key"))
        if key is not None:
            write_key(key_file, key)
        for path in (self.folder / ISSUED / f"{made.serial_number:x}.pem", own):
            write_bytes(path, made.public_bytes(PEM))
        return [own] if key is None else [own, key_file]

    def revoke(self, name: str) -> list[Standing]:
        """List all of a member's certificates as counting no more; return those that were not listed before."""
        found = self.issued(name)
        if not found:
            raise unknown("member", name, {one.name for one in standings(self.folder)})
        old = read_revoked(self.folder / f"{REVOKED}.pem", self.certificate)
        before, now = revocations(old), datetime.now(UTC)
        added = {one.serial_number: now for one in found if one.serial_number not in before}
        if not added:
            raise UserError(f"all certificates of {name} are revoked already: hand {REVOKED}.pem to all members")
        number = old.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        self._write_revoked({**before, **added}, number + 1, after=old.last_update_utc)
        return [one for one in standings(self.folder) if one.serial in added]

    def issued(self, name: str) -> list[x509.Certificate]:
        """Return all certificates that a member was ever given, the oldest first."""
        found = (one for one in certified(self.folder, self.certificate) if member_name(one) == name)
        return sorted(found, key=lambda one: (one.not_valid_before_utc, one.not_valid_after_utc))

    def revoked(self) -> dict[int, datetime]:
        """Return the serial numbers of certificates that count no more, and since when."""
        return revocations(read_revoked(self.folder / f"{REVOKED}.pem", self.certificate))

    def _check_case(self, name: str) -> None:
        """Refuse a name that TLS, and some file systems, would take for another member's."""
        for other in sorted({one.name for one in standings(self.folder)} - {name}):
            if other.lower() == name.lower():
                raise UserError(
                    f"{name} and {other} differ in their case alone, which TLS ignores: choose another name"
                )

    def _new_key(self, name: str) -> ec.EllipticCurvePrivateKey:
        """Return a new key for a member; refuse to replace one that was never certified here."""
        path = self.folder / f"{name}.key"
        if os.path.lexists(path) and not self.issued(name):
            raise UserError(f"{path} is there already, without a certificate: move it to another place")
        return ec.generate_private_key(ec.SECP256R1())

    def _member(self, name: str, public: Any, until: datetime) -> x509.Certificate:
        """Return a new certificate for a member as a server and as a client; it does not outlast the authority's."""
        until = min(until, self.certificate.not_valid_after_utc)
        builder = _builder(_named(name), self.certificate.subject, public, self.key, until)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(digital_signature=True), critical=True)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _write_revoked(self, serials: Mapping[int, datetime], number: int, after: datetime | None) -> None:
        """Write the list. It lasts as long as the authority: one that expired before would shut out every member."""
        since = datetime.now(UTC) - BEFORE
        if after is not None:  # of two lists OpenSSL takes the later one, and counts in seconds
            since = max(since, after + timedelta(seconds=1))
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        builder = builder.last_update(since).next_update(self.certificate.not_valid_after_utc)
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        for serial, when in serials.items():
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
            builder = builder.add_revoked_certificate(one)
        made = builder.sign(self.key, hashes.SHA256())
        write_bytes(self.folder / f"{REVOKED}.pem", made.public_bytes(PEM))


def _from_now(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: Any, signer: ec.EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    """Return what certificates of the authority and of members have in common."""
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.not_valid_before(datetime.now(UTC) - BEFORE).not_valid_after(until)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(identifier, critical=False)


def _usage(**purposes: bool) -> x509.KeyUsage:
    """Return what a key is for, and nothing else."""
    every = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign"
    )
    none = dict.fromkeys([*every.split(), "encipher_only", "decipher_only"], False)
    return x509.KeyUsage(**{**none, **purposes})
