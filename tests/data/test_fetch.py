"""Downloads from a server that stalls, truncates, corrupts and refuses: one sentence, and the next call goes on."""

import hashlib
import io
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coterie.core.errors import UserError
from coterie.data import catalog
from coterie.data.catalog import CATALOG, CatalogEntry, Remote
from coterie.data.fetch import Patience, download, fetch
from entry_point import coterie
from helpers_cli import tmpfs

pytestmark = pytest.mark.hostile

CONTENT = bytes(range(256)) * 400  # 102,400 bytes
MD5 = hashlib.md5(CONTENT).hexdigest()
QUICK = Patience(timeout=0.3, attempts=3, pause=0.0)


class Home(ThreadingHTTPServer):
    """A data set's home with habits; ``asked`` keeps the ranges it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.habits: list[str] = []
        self.asked: list[str | None] = []
        self.tag: str | None = '"v1"'

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/set.bin"


class Handler(BaseHTTPRequestHandler):
    """Answers as the next habit says, decently when none is left."""

    server: Home

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        home, habit = self.server, self.server.habits.pop(0) if self.server.habits else "decent"
        home.asked.append(self.headers.get("Range"))
        if habit.isdigit():
            self.send_error(int(habit))
            return
        start = self._start(habit)
        if start >= len(home.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(home.content)}")
            self.end_headers()
            return
        body = home.content[start:] if habit != "corrupts" else bytes(len(home.content) - start)
        self.send_response(206 if start or habit == "elsewhere" else 200)
        if start or habit == "elsewhere":
            self.send_header("Content-Range", f"bytes {start}-{len(home.content) - 1}/{len(home.content)}")
        if home.tag:
            self.send_header("ETag", home.tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:30_000] if habit in ("stalls", "truncates") else body)
        if habit == "stalls":
            self.wfile.flush()
            time.sleep(1)

    def _start(self, habit: str) -> int:
        """Where the answer begins: a range counts where it is asked for, understood and of the same version."""
        wanted = self.headers.get("Range")
        if (
            wanted is None
            or habit in ("ignores", "elsewhere")
            or self.headers.get("If-Range") not in (None, self.server.tag)
        ):
            return 0
        return int(wanted.removeprefix("bytes=").removesuffix("-"))


@pytest.fixture
def home() -> Iterator[Home]:
    server = Home()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def get(home: Home, target: Path, md5: str | None = MD5) -> None:
    download(home.url, target, md5, lambda name, done, total: None, QUICK)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_file_arrives_and_is_counted(home: Home, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    download(home.url, tmp_path / "a" / "set.bin", MD5, lambda *said: seen.append(said), QUICK)
    assert (tmp_path / "a" / "set.bin").read_bytes() == CONTENT
    assert seen[0] == ("set.bin", 0, len(CONTENT))
    assert seen[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert names(tmp_path) == ["a", "set.bin"]


@pytest.mark.parametrize("habit", ["stalls", "truncates"])
def test_the_rest_is_asked_for_within_one_call(home: Home, tmp_path: Path, habit: str) -> None:
    home.habits = [habit, habit]
    get(home, tmp_path / "set.bin")
    assert home.asked == [None, "bytes=30000-", "bytes=60000-"]
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("status", ["500", "503", "429"])
def test_a_server_that_is_ill_is_asked_again(home: Home, tmp_path: Path, status: str) -> None:
    home.habits = [status]
    get(home, tmp_path / "set.bin")
    assert len(home.asked) == 2
    home.habits = [status] * 3
    with pytest.raises(UserError, match=f"status {status}.*0 bytes are here: call again to take up the rest"):
        get(home, tmp_path / "other.bin")


def test_a_later_call_takes_up_the_rest(home: Home, tmp_path: Path) -> None:
    home.habits = ["truncates", "500", "500", "500"]
    with pytest.raises(UserError, match="30,000 bytes are here"):
        get(home, tmp_path / "set.bin")
    assert names(tmp_path) == ["set.bin.part", "set.bin.part.version"]
    get(home, tmp_path / "set.bin")
    assert home.asked[-1] == "bytes=30000-"
    assert names(tmp_path) == ["set.bin"]
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("habit", ["ignores", "elsewhere"])
def test_a_server_that_does_not_do_ranges(home: Home, tmp_path: Path, habit: str) -> None:
    home.habits = ["truncates", habit]
    get(home, tmp_path / "set.bin")
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


def test_another_version_is_not_glued_to_the_first(home: Home, tmp_path: Path) -> None:
    home.habits = ["truncates", "500", "500", "500"]
    with pytest.raises(UserError):
        get(home, tmp_path / "set.bin", md5=None)
    home.content, home.tag = CONTENT[::-1], '"v2"'
    get(home, tmp_path / "set.bin", md5=None)
    assert (tmp_path / "set.bin").read_bytes() == CONTENT[::-1]


def test_a_part_that_is_already_whole(home: Home, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(CONTENT)
    get(home, tmp_path / "set.bin")
    assert home.asked == [f"bytes={len(CONTENT)}-"]
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_forgotten(home: Home, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(CONTENT + b"more")
    get(home, tmp_path / "set.bin")
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


def test_what_is_corrupt_never_gets_the_name(home: Home, tmp_path: Path) -> None:
    home.habits = ["corrupts"]
    with pytest.raises(UserError, match=f"not {MD5}, and was removed: call again, or put a good set.bin into"):
        get(home, tmp_path / "set.bin")
    assert names(tmp_path) == []
    get(home, tmp_path / "set.bin")
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("status", ["403", "404"])
def test_what_is_not_there_is_said_at_once(home: Home, tmp_path: Path, status: str) -> None:
    home.habits = [status]
    with pytest.raises(UserError, match=rf"answers {status} .*: put set.bin into .* by hand"):
        get(home, tmp_path / "set.bin")
    assert len(home.asked) == 1


def test_nobody_at_home(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not answer \(.*refused.*\).*put set.bin into .* by hand"):
        download("http://127.0.0.1:9/set.bin", tmp_path / "set.bin", None, lambda *said: None, QUICK)


def test_a_folder_that_cannot_be_written(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*choose another --data-dir"):
        get(home, tmp_path / "file" / "set.bin")


def test_a_disk_that_is_full_is_not_taken_for_the_network(home: Home, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=64k"):
        with pytest.raises(UserError, match=r"cannot write .*set.bin.part \(No space left on device\)"):
            get(home, tmp_path / "small" / "set.bin")
        assert len(home.asked) == 1


# Whole data sets


def zipped(*files: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files:
            archive.writestr(name, "some words\n" * 50)
    return packed.getvalue()


@pytest.fixture
def words(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A data set that is an archive, at a home of ours."""
    home.content = zipped("words/a.txt", "words/deep/b.txt")
    remote = Remote(home.url, None, "words")
    monkeypatch.setitem(CATALOG, "words", CatalogEntry("words", ".", (), (("words",),), (remote,)))
    return home


def test_an_archive_becomes_its_folder(words: Home, tmp_path: Path) -> None:
    assert fetch("words", tmp_path, lambda *said: None, QUICK) == tmp_path / "."
    assert names(tmp_path) == ["a.txt", "b.txt", "deep", "words"]
    fetch("words", tmp_path, lambda *said: None, QUICK)
    assert len(words.asked) == 1  # it is there


@pytest.mark.parametrize("spoilt", ["cut", "bit", "other"])
def test_a_damaged_archive_leaves_nothing(words: Home, tmp_path: Path, spoilt: str) -> None:
    good = words.content
    bad = {"cut": good[:-40], "bit": good[:60] + bytes([good[60] ^ 1]) + good[61:], "other": zipped("x/a.txt")}
    words.content = bad[spoilt]
    with pytest.raises(UserError, match="call again"):
        fetch("words", tmp_path, lambda *said: None, QUICK)
    assert names(tmp_path) == []
    words.content = good
    fetch("words", tmp_path, lambda *said: None, QUICK)
    assert "words" in names(tmp_path)


def test_every_file_of_the_catalog_is_one_that_its_set_needs() -> None:
    for name, entry in CATALOG.items():
        assert len(entry.remotes) == len(entry.needs), name
        for remote, group in zip(entry.remotes, entry.needs, strict=True):
            assert (remote.unpacked or remote.name) in group
            assert remote.md5 is None or len(bytes.fromhex(remote.md5)) == 16
            assert remote.url.startswith(("https://", "http://"))


# On the command line


def test_fetch_list_and_dir_as_typed(
    words: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    assert coterie(capsys, monkeypatch, "data", "dir", str(tmp_path / "sets"))[0] == 0
    status, out, err = coterie(capsys, monkeypatch, "data", "fetch", "words")
    assert (status, out) == (0, f"words is in {tmp_path / 'sets'}\n")
    assert "set.bin" in err
    assert (tmp_path / "sets" / "words" / "a.txt").exists()
    status, out, _ = coterie(capsys, monkeypatch, "data", "list")
    assert status == 0
    assert {line.split()[1]: "no" in line.split() for line in out.splitlines() if line.startswith("│")}[
        "words"
    ] is False
    assert coterie(capsys, monkeypatch, "data", "dir")[1] == (
        f"{tmp_path / 'sets'} ({tmp_path / 'config' / 'coterie' / 'config.json'})\n"
    )


@pytest.mark.parametrize("habit", ["404", "500", "stalls", "corrupts"])
def test_status_2_and_one_sentence(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, habit: str
) -> None:
    entry = CatalogEntry("a set", "set", (), (("set.bin",),), (Remote(home.url, MD5),))
    monkeypatch.setitem(catalog.CATALOG, "set", entry)
    typed = ["data", "fetch", "set", "--data-dir", str(tmp_path), "--timeout", "0.3", "--attempts", "1"]
    home.habits = [habit]
    status, _, err = coterie(capsys, monkeypatch, *typed)
    assert status == 2
    assert [line for line in err.splitlines() if line.startswith("coterie: ")] == err.splitlines()[-1:]
    assert not (tmp_path / "set" / "set.bin").exists()
    assert coterie(capsys, monkeypatch, *typed)[0] == 0
    assert (tmp_path / "set" / "set.bin").read_bytes() == CONTENT


def test_an_unknown_set(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = coterie(capsys, monkeypatch, "data", "fetch", "cifar11")
    assert (status, "did you mean cifar10" in err) == (2, True)
