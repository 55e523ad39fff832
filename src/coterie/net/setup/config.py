"""The file that a member writes, peer.toml: what all members have agreed on, and what is this member's alone."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ... import data, models, topology
from ...core.annotations import Fraction, Positive, PositiveInt, shown
from ...core.custom import CODE, check_named, own_name
from ...core.errors import UserError, did_you_mean
from ...core.files import user_path
from ...core.schema import Select
from ...core.settings_file import read_toml
from ...core.spec import convert, parse, parse_seconds, spelled, whole_number
from ...local.paces import PACES
from ...local.parse import OPTIMIZERS
from ...measure.selection import BEST_TEST, by_validation, rule_of
from ...training.settings import RunSettings, options
from ..certificates.validity import check_name
from ..wire.address import LOOPBACK, Address, address
from ..wire.tls import Credentials, say

AUTO = "auto"
EVERYWHERE, EVERYWHERE_6 = "0.0.0.0", "::"
LISTEN, METRICS = "0.0.0.0:7443", "127.0.0.1:9464"  # examples
TABLES = ("federation", "peer")
TEMPLATE = (Path(__file__).parents[1] / "files" / "peer.toml").read_text(
    encoding="utf-8"
)  # what coterie peer init writes
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FederationTable:
    """The table [federation] as it is written, the same at every member."""

    id: str
    method: str
    rounds: PositiveInt
    model: str
    seed: int = 0
    classes: PositiveInt | tuple[str, ...] | None = None
    loss: str = "cross-entropy"
    metric: str | tuple[str, ...] = ()
    columns: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[Positive, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PeerTable:
    """The table [peer] as it is written, this member's own."""

    name: str
    folder: str
    data: str
    listen: str = ""
    metrics: int | str = ""
    deadline: str = AUTO
    wait: str = "5m"
    evaluate_every: PositiveInt = 1
    validation: Fraction = 0.0
    select: Select = "last"
    patience: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class CertificateTable:
    """The table [peer.certificates] as it is written."""

    authority: str
    certificate: str
    key: str
    revoked: str = ""


EXAMPLES = {  # of what must be there
    "id": '"heart-2026"',
    "method": '"dfedalt"',
    "rounds": "50",
    "model": '"small-cnn"',
    "name": '"alpha"',
    "folder": '"alpha"',
    "data": '"npz:alpha.npz"',
    "authority": '"certs/authority.pem"',
    "certificate": '"certs/alpha.pem"',
    "key": '"certs/alpha.key"',
}


@dataclass(frozen=True)
class PeerConfig:
    """What peer.toml says, checked as far as one can see without training, data and certificates."""

    path: Path  # of the file; what it names without a folder lies beside it
    federation: FederationTable
    settings: Mapping[str, Any]  # of the method, as they are written
    members: Mapping[str, Address]  # of all, in the order of the clients
    peer: PeerTable
    listen: Address
    metrics: Address | None  # of the numbers for Prometheus; None: nowhere
    deadline: float | None  # seconds that a round waits for neighbors; None: it adapts
    wait: float  # seconds for the others to come before the first round
    certificates: CertificateTable | None  # None: the file has none

    @property
    def name(self) -> str:
        """The member's own name."""
        return self.peer.name

    @property
    def client(self) -> int:
        """The member's number."""
        return list(self.members).index(self.name)

    @property
    def folder(self) -> Path:
        """The member's own folder."""
        return self.located(self.peer.folder)

    def located(self, path: str) -> Path:
        """Return a path as the file means it: beside the file, unless it is a whole one."""
        return self.path.parent / user_path(path)

    def code(self, text: str) -> str:
        """Return the text of something that may be code of one's own, with a file of it where peer.toml means it."""
        name = own_name(text)
        module = (name or "").partition(":")[0]
        return str(self.located(module)) + text.strip()[len(module) :] if module.endswith(".py") else text

    @property
    def shared_code(self) -> list[str]:
        """The code of somebody's own that all members have agreed on, by name."""
        shared, known = self.federation, {*topology.BUILDERS, *OPTIMIZERS, *PACES}
        found = [own_name(shared.method), _own(shared.model, models.BUILDERS), *map(own_name, self.metric)]
        return [name for name in (*found, *(_own(self.settings.get(k), known) for k in CODE)) if name is not None]

    @property
    def own_loader(self) -> str | None:
        """The function of the member's own that loads its data, by name; None: its data are files."""
        return _own(self.peer.data, data.SOURCES)

    @property
    def metric(self) -> tuple[str, ...]:
        """The metrics by name; none: that of the task."""
        found = self.federation.metric
        return (found,) if isinstance(found, str) else found

    @property
    def run_settings(self) -> RunSettings:
        """The options of a member's run: those that all members have agreed on, and its own."""
        shared, own = self.federation, {f.name: vars(self.peer).get(f.name, f.default) for f in options()}
        agreed = {"rounds": shared.rounds, "seed": shared.seed, "loss": shared.loss, "metric": self.metric}
        return RunSettings(**{**own, **agreed})

    def credentials(self, warn: Callable[[str], object] = say) -> Credentials:
        """Return what the member shows and trusts, checked; ``warn``: see there."""
        found = self.certificates
        if found is None:
            example = '[peer.certificates] and below it authority = "certs/authority.pem"'
            raise UserError(f"{self.path} names no certificates: write {example}, certificate, key and revoked")
        authority, certificate, key = map(self.located, (found.authority, found.certificate, found.key))
        revoked = self.located(found.revoked) if found.revoked else None
        return Credentials(authority, certificate, key, revoked, self.name, warn)


def _own(text: Any, known: Collection[str]) -> str | None:
    """Return the code of one's own that a text names, unless it is something known with options."""
    name = own_name(text)
    return None if name is None or parse(spelled(text, known)).name in known else name


def load(path: str | Path, trusted: Collection[str] | None = ()) -> PeerConfig:
    """Read peer.toml; refuse what it should not say, and code that it names unless a person has ``trusted`` it.

    None: nothing of it is going to run.
    """
    file = user_path(path)
    found = read_toml(file, "write one with coterie peer init", 'write [federation] and below it id = "heart-2026"')
    _check_keys(str(file), "table", found, TABLES)
    shared, own = (dict(_table(str(file), found, name)) for name in TABLES)
    tables = [(shared, "federation", "settings"), (shared, "federation", "members"), (own, "peer", "certificates")]
    settings, members, certificates = (_inner(str(file), *each) for each in tables)
    agreed = _read(f"{file}, [federation]", shared, FederationTable)
    peer = _read(f"{file}, [peer]", own, PeerTable)
    places = _members(file, members)
    listen, metrics = _addresses(file, peer, places)
    config = PeerConfig(
        path=file,
        federation=agreed,
        settings=settings or {},
        members=places,
        peer=peer,
        listen=listen,
        metrics=metrics,
        deadline=deadline_in(f"{file}, [peer]: deadline", peer.deadline),
        wait=_seconds(f"{file}, [peer]: wait", peer.wait),
        certificates=None
        if certificates is None
        else _read(f"{file}, [peer.certificates]", certificates, CertificateTable),
    )
    _check(config)
    if trusted is not None:
        _check_trusted(config, trusted)
    return config


def _table(where: str, found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(found.get(name), dict):
        raise UserError(f"{where} has no table [{name}]: write it as coterie peer init does")
    table: Mapping[str, Any] = found[name]
    return table


def _inner(where: str, table: dict[str, Any], name: str, key: str) -> dict[str, Any] | None:
    """Take a table out of another one; None: it has none."""
    found = table.pop(key, None)
    if found is not None and not isinstance(found, dict):
        raise UserError(f"{where}, [{name}]: {key}={shown(found)} is no table: write [{name}.{key}] above its lines")
    return found


def _check_keys(where: str, what: str, found: Mapping[str, Any], known: Collection[str]) -> None:
    for key in found:
        if key not in known:
            near = did_you_mean(key, known) or f"it has {', '.join(known)}"
            raise UserError(f"{where} has the {what} {shown(key)}, which nothing is done with: {near}")


def _read(where: str, found: Mapping[str, Any], kind: type[T]) -> T:
    """Return a table with all its values of the right types."""
    hints, own = get_type_hints(kind, include_extras=True), fields(kind)  # type: ignore[arg-type]
    _check_keys(where, "key", found, [field.name for field in own])
    for field in own:
        if field.default is MISSING and field.name not in found:
            raise UserError(f"{where} lacks {field.name}: write {field.name} = {EXAMPLES[field.name]}")
    try:
        values = {key: convert("it", key, value, hints[key]) for key, value in found.items()}
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    empty = next((key for key, value in values.items() if isinstance(value, str) and not value.strip()), None)
    if empty is not None:
        raise UserError(f"{where}: {empty} is an empty text: give it a value, or leave it out")
    return kind(**values)


def _members(file: Path, found: Mapping[str, Any] | None) -> dict[str, Address]:
    """Return where each member is reached."""
    where = f"{file}, [federation.members]"
    if found is None or len(found) < 2:
        raise UserError(f'{where} names {len(found or ())} members: write alpha = "10.0.0.1:7443", a line for each')
    for name in found:
        check_name(name)
    alike = {name.lower(): name for name in found}
    for name in found:
        if alike[name.lower()] != name:
            raise UserError(f"{where}: {name} is {alike[name.lower()]} in another case, which TLS ignores: rename one")
    addresses = {name: address(where, name, text, "10.0.0.1:7443") for name, text in found.items()}
    for name, one in addresses.items():
        if other := next((k for k, v in addresses.items() if v == one and k != name), None):
            raise UserError(f"{where}: {name} and {other} both are at {one}: give each its own address or port")
    return addresses


def _addresses(file: Path, peer: PeerTable, members: Mapping[str, Address]) -> tuple[Address, Address | None]:
    """Return where the member listens, and where it shows its numbers."""
    where = f"{file}, [peer]"
    if peer.name not in members:
        near = did_you_mean(peer.name, members) or f"they are {', '.join(members)}"
        raise UserError(f"{where}: name={shown(peer.name)} is none of [federation.members]: {near}")
    own = members[peer.name]
    everywhere = Address(EVERYWHERE_6 if ":" in own.host else EVERYWHERE, own.port)
    listen = address(where, "listen", peer.listen, LISTEN) if peer.listen else everywhere
    if peer.metrics == "":
        return listen, None
    text = str(peer.metrics)
    bare = whole_number(text) is not None
    return listen, address(where, "metrics", f"{LOOPBACK}:{text}" if bare else text, METRICS)


def deadline_in(where: str, text: str) -> float | None:
    """Return the seconds that a text says a round waits for neighbors; None: they adapt."""
    return None if text.strip().lower() == AUTO else _seconds(where, text)


def _seconds(where: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except UserError as error:
        raise UserError(f"{where}={error}") from error


def _check(config: PeerConfig) -> None:
    """Refuse what does not go together."""
    shared, where = config.federation, f"{config.path}, [federation]"
    if not _ID.fullmatch(shared.id):
        raise UserError(f"{where}: id={shown(shared.id)} is no name: take letters and digits, with - _ . between them")
    if len(shared.mean) != len(shared.std):
        raise UserError(f"{where}: mean and std have {len(shared.mean)} and {len(shared.std)} numbers: one per channel")
    if isinstance(shared.classes, tuple) and len(set(shared.classes)) < len(shared.classes):
        raise UserError(f"{where}: classes names one class twice: name each once")
    settings, own = config.run_settings, f"{config.path}, [peer]"
    if rule_of(settings.saved) == BEST_TEST:
        raise UserError(
            f"{own}: select={BEST_TEST} chooses the model by the samples that measure it, and it would be deployed: "
            'write validation = 0.2 and select = "best-validation"'
        )
    for key in by_validation(settings.saved) if not settings.validation else ():
        raise UserError(f"{own}: {key} looks at validation samples, and there are none: write validation = 0.2")


def _check_trusted(config: PeerConfig, trusted: Collection[str]) -> None:
    """Refuse code that only the file names: what all members have alike may have come from another one."""
    check_named([*config.shared_code, *filter(None, [config.own_loader])], trusted, str(config.path))
