"""Downloads that may stop at any moment: into a part file, checked, then renamed."""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from ..core.errors import UserError
from ..core.files import create_folder, disk, to_disk
from .catalog import Remote, entry, present
from .place import OPTION

CHUNK = 1 << 18
_LATER = (408, 425, 429, 500, 502, 503, 504)  # what a server may answer otherwise a little later


class Watcher(Protocol):
    """Is told how many bytes of a file are there, and how many there will be where the server says so."""

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """So far."""


class Patience(NamedTuple):
    """How long to wait, and how often to begin again without a single new byte in between."""

    timeout: float = 30.0  # seconds without a byte
    attempts: int = 5
    pause: float = 1.0  # seconds before the second attempt; doubled for each after it


class _InterruptedError(Exception):
    """The connection ended early; what arrived is kept."""


def fetch(name: str, data: Path, watch: Watcher, patience: Patience) -> Path:
    """Brings a data set from its home into the data folder, unless it is there; returns the folder it lies in."""
    found = present(name, data)
    if found is not None:
        return found[0].parent
    known = entry(name)
    for remote in known.remotes:
        _bring(remote, data / known.folder, watch, patience)
    return data / known.folder


def _bring(remote: Remote, folder: Path, watch: Watcher, patience: Patience) -> None:
    target = folder / remote.name
    final = folder / remote.unpacked if remote.unpacked else target
    if final.exists():
        return
    if not target.exists():
        download(remote.url, target, remote.md5, watch, patience)
    if remote.unpacked:
        unpack(target, final)
        target.unlink()


def download(url: str, target: Path, md5: str | None, watch: Watcher, patience: Patience) -> None:
    """Makes ``target`` the file at ``url``; what an earlier call left of it is taken up where the server allows it."""
    part = target.with_name(f"{target.name}.part")
    with disk(part, OPTION):
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    failures = 0
    while True:
        before = part.stat().st_size
        try:
            _continue(url, part, watch, patience.timeout)
            break
        except _InterruptedError as error:
            failures = 1 if part.stat().st_size > before else failures + 1
            if failures >= patience.attempts:
                raise UserError(
                    f"{url} does not answer ({error}), {part.stat().st_size:,} bytes are here: "
                    f"call again to take up the rest, or {_by_hand(part)}"
                ) from error
            time.sleep(patience.pause * 2 ** (failures - 1))
    _check(url, part, target, md5)
    with disk(target, OPTION):
        part.replace(target)
    _mark(part).unlink(missing_ok=True)


def _continue(url: str, part: Path, watch: Watcher, timeout: float) -> None:
    """One request for what is missing of the part file."""
    have = part.stat().st_size
    request = urllib.request.Request(url, headers=_wanted(part, have))
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            partial = answer.status == http.client.PARTIAL_CONTENT
            if partial and not _starts(answer.headers, have):
                _forget(part)
                raise _InterruptedError("it sends another part than it was asked for")
            with disk(part, OPTION):
                _mark(part).write_text(_validator(answer.headers), encoding="utf-8")
            _receive(answer, part, have if partial else 0, watch)
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            _refused(url, part, have, error)
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(getattr(error, "reason", error) or type(error).__name__) from error


def _refused(url: str, part: Path, have: int, error: urllib.error.HTTPError) -> None:
    """Says what a status means; returns where it means that all had arrived."""
    if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
        if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
            return
        _forget(part)
        raise _InterruptedError("the part that was here does not fit") from error
    if error.code in _LATER:
        raise _InterruptedError(f"status {error.code}") from error
    raise UserError(f"{url} answers {error.code} {error.reason}: {_by_hand(part)}") from error


def _receive(answer: http.client.HTTPResponse, part: Path, start: int, watch: Watcher) -> None:
    """The answer's bytes into the part file, from ``start`` on."""
    length = answer.headers.get("Content-Length")
    total = start + int(length) if length and length.isdigit() else None
    name, done = part.name.removesuffix(".part"), start
    with disk(part, OPTION):
        with part.open("r+b") as file:
            file.truncate(start)
            file.seek(start)
            watch(name, done, total)
            while block := _block(answer):
                file.write(block)
                done += len(block)
                watch(name, done, total)
        to_disk(part)
    if total is not None and done < total:
        raise _InterruptedError(f"{total - done:,} bytes are missing")


def _block(answer: http.client.HTTPResponse) -> bytes:
    """What has arrived: waiting for more would lose it in a stall. What fails here is the network, not the disk."""
    try:
        return answer.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(str(error) or type(error).__name__) from error


def _wanted(part: Path, have: int) -> dict[str, str]:
    """Headers that ask for the rest, if the file is still the one it was."""
    if not have:
        return {"Accept-Encoding": "identity"}
    known = _mark(part).read_text(encoding="utf-8") if _mark(part).exists() else ""
    condition = {"If-Range": known} if known else {}
    return {"Accept-Encoding": "identity", "Range": f"bytes={have}-", **condition}


def _starts(headers: Mapping[str, str], at: int) -> bool:
    return (headers.get("Content-Range") or "").startswith(f"bytes {at}-")


def _validator(headers: Mapping[str, str]) -> str:
    """What tells this version of the file from another; a weak tag does not."""
    tag = headers.get("ETag") or ""
    return tag if tag.startswith('"') else headers.get("Last-Modified") or ""


def _mark(part: Path) -> Path:
    """Beside a part file: which version of the remote file it is a part of."""
    return part.with_name(f"{part.name}.version")


def _forget(part: Path) -> None:
    """Begins a part file anew."""
    part.write_bytes(b"")
    _mark(part).unlink(missing_ok=True)


def _check(url: str, part: Path, target: Path, md5: str | None) -> None:
    """Refuses, and removes, what is not the file."""
    if md5 is None:
        return
    with part.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        _forget(part)
        part.unlink()
        raise UserError(
            f"what came from {url} has the md5 {found}, not {md5}, and was removed: "
            f"call again, or put a good {target.name} into {target.parent}"
        )


def _by_hand(part: Path) -> str:
    return f"put {part.name.removesuffix('.part')} into {part.parent} by hand"


def unpack(archive: Path, folder: Path) -> None:
    """The folder of that name in a zip archive, whole or not at all; its own checksums are checked on the way."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(temporary)  # which keeps every name below the folder
        if not (temporary / folder.name).is_dir():
            raise zipfile.BadZipFile(f"no folder {folder.name} in it")
        for path in (temporary / folder.name).iterdir():
            path.rename(temporary / path.name)
        (temporary / folder.name).rmdir()

    try:
        create_folder(folder, write, OPTION)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        archive.unlink()
        raise UserError(f"{archive} is damaged ({error}) and was removed: call again") from error
