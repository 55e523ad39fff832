"""Certificates and TLS of real peers: who is let in, who is not, and in which words."""

import asyncio
import functools
import json
import re
import shutil
import ssl
import stat
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="certificates need coterie[peers]")

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from coterie.core.errors import UserError
from coterie.net.certificates import authority as authorities
from coterie.net.certificates.authority import Authority
from coterie.net.certificates.validity import read_revoked, standings
from coterie.net.setup.start import CertificateWatch
from coterie.net.wire import tls
from coterie.net.wire.tls import Credentials, client_context, name_of, reason, revoked, serial_of, server_context
from in_process import answer

MEMBERS = ("alpha", "beta", "gone")


class Folders:
    """The folders of a federation and of a stranger's authority."""

    def __init__(self, root: Path) -> None:
        self.own, self.strange = root / "own", root / "strange"
        own, strange = Authority.create(self.own), Authority.create(self.strange)
        for name in MEMBERS:
            own.issue(name)
        strange.issue("alpha")
        own.issue("old", days=-0.5)  # since yesterday, until this night
        own.revoke("gone")

    def credentials(self, name: str, folder: Path | None = None) -> Credentials:
        folder = folder or self.own
        return Credentials(
            folder / "authority.pem", folder / f"{name}.pem", folder / f"{name}.key", folder / "revoked.pem", name
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folders = Folders(tmp_path_factory.mktemp("certs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authorities, "BEFORE", timedelta(days=-1))
        Authority.load(folders.own).issue("early", days=2)
    return folders


@pytest.fixture
def copied(made: Folders, tmp_path: Path) -> Path:
    """The authority's folder, to be changed."""
    return Path(shutil.copytree(made.own, tmp_path / "certs"))


async def exchange(server: ssl.SSLContext, client: ssl.SSLContext | None, name: str = "alpha") -> str:
    """What a client gets to read from a server: the name that the server knows it by, or nothing."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peercert")
        writer.write(name_of(peer).encode())
        writer.close()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # asyncio's own lines about failed handshakes
    listening = await asyncio.start_server(respond, "127.0.0.1", 0, ssl=server)
    port = listening.sockets[0].getsockname()[1]
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname=name if client else None
        )
        if client is None:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
        try:
            return (await reader.read()).decode()
        finally:
            writer.close()
    finally:
        listening.close()


def connect(made: Folders, client: ssl.SSLContext | None, name: str = "alpha") -> tuple[str, list[str]]:
    """What a client of ``alpha`` gets, or its error in words; and what the server says of it."""
    told: list[str] = []
    return connect_to(server_context(made.credentials("alpha"), told.append), client, name), told


def connect_to(server: ssl.SSLContext, client: ssl.SSLContext | None, name: str = "alpha") -> str:
    try:
        return asyncio.run(exchange(server, client, name))
    except ssl.SSLError as error:
        return reason(error)
    except ConnectionError:
        return "cut"


def plain_client(folder: Path, name: str | None) -> ssl.SSLContext:
    """A client that checks nothing of its own certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "authority.pem")
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def old_client(made: Folders) -> ssl.SSLContext:
    context = plain_client(made.own, "beta")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def strange_client(made: Folders) -> ssl.SSLContext:
    context = plain_client(made.own, None)
    context.load_cert_chain(made.strange / "alpha.pem", made.strange / "alpha.key")
    return context


def test_a_member_is_let_in_under_its_name(made: Folders) -> None:
    assert connect(made, client_context(made.credentials("beta"))) == ("beta", [])


REFUSED: dict[str, tuple[Callable[[Folders], ssl.SSLContext | None], str]] = {
    "no certificate": (lambda made: plain_client(made.own, None), "showed no certificate"),
    "another authority": (strange_client, "is another authority's"),
    "expired": (lambda made: plain_client(made.own, "old"), "has expired"),
    "not yet valid": (lambda made: plain_client(made.own, "early"), "is not valid yet"),
    "revoked": (lambda made: plain_client(made.own, "gone"), "is revoked"),
    "an old TLS": (old_client, "TLS version is too old"),
    "no TLS": (lambda made: None, "plain HTTP"),
}


@pytest.mark.parametrize("who", REFUSED)
def test_strangers_stay_out_and_are_named(made: Folders, who: str) -> None:
    client, told = REFUSED[who]
    got, refusals = connect(made, client(made))
    assert got in ("", "cut")
    assert len(refusals) == 1
    assert told in refusals[0]


def test_a_server_under_anothers_name_is_refused(made: Folders) -> None:
    got, _ = connect(made, client_context(made.credentials("beta")), "beta")
    assert got == "its certificate is that of another member"


def test_a_client_refuses_a_strange_server(made: Folders) -> None:
    server = server_context(made.credentials("alpha", made.strange), print)
    assert connect_to(server, client_context(made.credentials("beta"))) == "its certificate is another authority's"


def test_contexts_trust_the_authority_alone(made: Folders) -> None:
    for context in (server_context(made.credentials("alpha"), print), client_context(made.credentials("alpha"))):
        assert context.cert_store_stats() == {"x509": 1, "crl": 1, "x509_ca": 1}
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_certificate_in_the_list_of_revoked_ones_is_no_authority(made: Folders, copied: Path) -> None:
    path = copied / "revoked.pem"
    path.write_bytes(path.read_bytes() + (made.strange / "authority.pem").read_bytes())
    (copied / "authority.pem").write_bytes(
        (copied / "authority.pem").read_bytes() + (made.strange / "authority.pem").read_bytes()
    )
    assert server_context(made.credentials("alpha", copied), print).cert_store_stats()["x509"] == 1


def test_a_revocation_counts_at_once(made: Folders, copied: Path) -> None:
    """In contexts that exist, and for whoever asks during an open connection; twice within the same second."""
    told: list[str] = []
    server = server_context(made.credentials("alpha", copied), told.append)
    asked = made.credentials("alpha", copied)
    clients = {name: client_context(made.credentials(name)) for name in ("alpha", "beta")}
    for name, client in clients.items():
        serial = next(one.serial for one in standings(copied) if one.name == name)
        assert connect_to(server, client) == name
        assert serial not in revoked(asked)
        Authority.load(copied).revoke(name)
        assert serial in revoked(asked)
        assert connect_to(server, client) in ("", "cut")
        assert told.pop() == "its certificate is revoked"


def test_a_damaged_list_is_said_and_the_one_before_it_holds(made: Folders, copied: Path) -> None:
    told: list[str] = []
    paths = (copied / name for name in ("authority.pem", "alpha.pem", "alpha.key", "revoked.pem"))
    credentials = Credentials(*paths, "alpha", told.append)
    before = revoked(credentials)
    for damage in (b"", (made.strange / "revoked.pem").read_bytes()):
        (copied / "revoked.pem").write_bytes(damage)
        assert revoked(credentials) == revoked(credentials) == before != frozenset()
    assert ["plain PEM" in told[0], "not signed by" in told[1], len(told)] == [True, True, 2]


def expired_list(folder: Path) -> bytes:
    """A list of the authority's that another program has made, for half a day."""
    own, now = Authority.load(folder), datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(own.certificate.subject)
    builder = builder.last_update(now - timedelta(days=1)).next_update(now - timedelta(days=0.5))
    return builder.sign(own.key, SHA256()).public_bytes(Encoding.PEM)


def test_an_expired_list_shuts_nobody_out_in_silence(
    made: Folders, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = copied / "revoked.pem", list[str]()
    valid = path.read_bytes()
    path.write_bytes(expired_list(copied))
    with pytest.raises(UserError, match=r"has expired on .*get a new one"):
        made.credentials("alpha", copied)
    with monkeypatch.context() as patch:  # as if it had expired while the peer runs
        patch.setattr(tls.RevokedList, "_read", lambda self, path: read_revoked(path, self.authority))
        server = server_context(made.credentials("alpha", copied), told.append)
    client = client_context(made.credentials("beta"))
    assert connect_to(server, client) in ("", "cut")
    assert "our list of revoked certificates has expired: get a new one" in told.pop()
    path.write_bytes(valid)
    assert connect_to(server, client) == "beta"


def test_a_certificate_that_cannot_be_made_leaves_no_key(made: Folders, copied: Path) -> None:
    with pytest.raises(ValueError, match="not valid before"):
        Authority.load(copied).issue("late", days=-2)
    assert not (copied / "late.key").exists()


def test_names_and_serials_of_connections() -> None:
    assert serial_of({"serialNumber": "0A"}) == 10
    for names in ((), (("DNS", "a"), ("DNS", "b")), (("IP Address", "127.0.0.1"),)):
        with pytest.raises(UserError, match="one member"):
            name_of({"subjectAltName": names})


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "another's key": ({"key": "beta.key"}, "beta.key does not fit .*alpha.pem: take both of one member"),
    "another's name": ({"certificate": "beta.pem", "key": "beta.key"}, "is beta's and not alpha's"),
    "another authority's": ({"authority": "../strange/authority.pem"}, "is not of the authority"),
    "a missing file": ({"certificate": "missing.pem"}, "cannot read the certificate .*missing.pem"),
    "no key": ({"key": "alpha.pem"}, "alpha.pem holds no key in plain PEM"),
    "no list": ({"revoked": "missing.pem"}, "cannot read the list .*: copy it from any other member"),
    "another's list": ({"revoked": "../strange/revoked.pem"}, "was not signed by this federation's authority"),
    "expired": ({"certificate": "old.pem", "key": "old.key", "name": "old"}, "expired on .* --renew"),
    "too early": ({"certificate": "early.pem", "key": "early.key", "name": "early"}, "valid from .* clock"),
    "revoked": ({"certificate": "gone.pem", "key": "gone.key", "name": "gone"}, "was revoked on .* issue gone"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_credentials_are_checked_in_one_sentence(made: Folders, wrong: str) -> None:
    change, told = WRONG[wrong]
    files = {"authority": "authority.pem", "certificate": "alpha.pem", "key": "alpha.key", "revoked": "revoked.pem"}
    paths = {key: made.own / change.get(key, file) for key, file in files.items()}
    with pytest.raises(UserError, match=told):
        Credentials(**paths, name=change.get("name", "alpha"))


def test_keys_are_their_owners_alone(made: Folders) -> None:
    if sys.platform == "win32":
        pytest.skip("files have no such modes here")
    keys = list(made.own.glob("*.key"))
    assert len(keys) == 1 + len(MEMBERS) + 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_the_folder_of_the_authority_is_its_owners_alone(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("files have no such modes here")
    Authority.create(tmp_path / "certs").issue("alpha")
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "certs", *(tmp_path / "certs").rglob("*"))}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in found.items()), found
    assert len(found) == 8


def test_a_certificate_is_looked_at_while_its_connection_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create(tmp_path)
    authority.issue("alpha", days=20)
    authority.issue("beta", days=100)
    authority.issue("gamma")
    files = [tmp_path / name for name in ("authority.pem", "alpha.pem", "alpha.key", "revoked.pem")]
    told: list[str] = []
    watch = CertificateWatch(Credentials(*files, "alpha"), told.append)
    assert len(told) == 1, "its own, at once"
    assert re.match(r"the certificate of alpha ends on 20\d\d-\d\d-\d\d: let .* issue alpha --renew", told.pop())
    beta, gamma = (ssl._ssl._test_decode_cert(str(tmp_path / f"{name}.pem")) for name in ("beta", "gamma"))  # type: ignore[attr-defined]
    assert (watch(beta), watch(gamma), told) == (None, None, [])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 80 * 86400)
    for _ in range(5):
        assert watch(beta) is None
    assert [text[:24] for text in told] == ["the certificate of alpha", "the certificate of beta "]  # once a day
    monkeypatch.setattr(time, "time", lambda: now + 101 * 86400)
    assert (watch(beta), watch(gamma)) == ("its certificate has expired", None)
    authority.revoke("gamma")
    assert watch(gamma) == "it was revoked"


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    for words in ("init", "issue alpha", "issue beta"):
        assert answer("certs", *words.split(), cwd=folder).status == 0
    return folder


class TestCommands:
    """``coterie certs``, as typed."""

    def test_a_whole_life(self, tmp_path: Path) -> None:
        run = functools.partial(answer, cwd=tmp_path)
        said = run("certs", "init").out
        assert "authority.pem and certs/revoked.pem: hand these two to all" in said.replace("\\", "/")
        assert "authority.key: hand this one to nobody" in said
        assert "alpha alone" in run("certs", "issue", "alpha", "--days", "9").out
        key = (tmp_path / "certs" / "alpha.key").read_bytes()
        assert "9 days left: coterie certs issue alpha --renew" in run("certs", "show").out.replace("8 days", "9 days")
        assert "keeps its key" in run("certs", "issue", "alpha", "--renew").out
        assert (tmp_path / "certs" / "alpha.key").read_bytes() == key
        assert "days left:" not in run("certs", "show").out
        assert "revoked 2 certificates of alpha" in run("certs", "revoke", "alpha").out
        assert run("certs", "issue", "alpha").status == 0
        assert (tmp_path / "certs" / "alpha.key").read_bytes() != key
        rows = json.loads(run("certs", "show", "--format", "json").out)
        assert [row["name"] for row in rows][1:] == ["alpha"] * 3
        assert sorted(row["revoked"] is None for row in rows) == [False, False, True, True]
        assert {row["days_left"] for row in rows} == {8, 364, 3649}

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ("init", "is there already: issue certificates with it"),
            ("issue alpha", "type --renew, or first coterie certs revoke alpha"),
            ("issue ALPHA", "differ in their case alone"),
            ("issue new --renew", "leave out --renew"),
            ("issue ../evil", "is no name of a member"),
            ("issue .hidden", "is no name of a member"),
            ("issue a..b", "is no name of a member"),
            ("issue 10.0.0.1", "is an address"),
            ("issue Authority", "as a file of the authority is"),
            ("revoke alhpa", "did you mean alpha?"),
            ("issue gamma --folder elsewhere", "run coterie certs init"),
            ("show --folder elsewhere", "run coterie certs init"),
            ("show --format xml", "unknown format"),
        ],
    )
    def test_mistakes(self, cwd: Path, words: str, told: str) -> None:
        assert told in answer("certs", *words.split(), cwd=cwd).sentence

    def test_an_expired_authority_does_nothing(self, tmp_path: Path) -> None:
        Authority.create(tmp_path / "certs", days=-0.5).issue("alpha")
        before = sorted(tmp_path.rglob("*"))
        for words in ("issue beta", "issue alpha --renew", "revoke alpha"):
            told = answer("certs", *words.split(), cwd=tmp_path).sentence
            assert "authority in certs has expired on" in told
            assert "make a new one in another folder" in told
        assert sorted(tmp_path.rglob("*")) == before

    def test_members_are_known_without_the_copies_of_their_certificates(self, cwd: Path, tmp_path: Path) -> None:
        shutil.copytree(cwd / "certs", tmp_path / "certs", ignore=shutil.ignore_patterns("issued"))
        assert "type --renew" in answer("certs", "issue", "alpha", cwd=tmp_path).sentence
        assert "revoked 1 certificate of alpha" in answer("certs", "revoke", "alpha", cwd=tmp_path).out

    def test_a_member_sees_its_own_folder(self, cwd: Path, tmp_path: Path) -> None:
        for name in ("authority.pem", "beta.pem", "beta.key", "revoked.pem"):
            shutil.copy(cwd / "certs" / name, tmp_path / name)
        (tmp_path / "other.pem").write_text("of another program")
        shown = json.loads(answer("certs", "show", "--folder", ".", "--format", "json", cwd=tmp_path).out)
        assert [row["name"] for row in shown][1:] == ["beta"]
        assert "do it there" in answer("certs", "issue", "gamma", "--folder", ".", cwd=tmp_path).sentence

    def test_without_the_packages(self, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.startswith("coterie.net")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "cryptography", None)
        assert "pip install 'coterie[peers]'" in answer("certs", "show", cwd=cwd).sentence
