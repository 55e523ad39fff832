"""Downloads that may stop at any moment: a part file is filled, checked, then renamed."""

import http.client
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ..core.errors import UserError
from ..core.files import create_folder, disk, to_disk
from ..core.spec import scaled, whole_number
from .catalog import entry, md5_of, present
from .data_dir import OPTION

CHUNK = 1 << 18
_LATER = (408, 425, 429, 500, 502, 503, 504)  # a later request may succeed


Watcher = Callable[[str, int, int | None], None]  # (file, bytes so far, bytes in all if the server says so)


class Patience(NamedTuple):
    """How long to wait, and how often to try again without a single new byte in between."""

    timeout: float = 30.0  # seconds without a byte
    attempts: int = 5
    pause: float = 1.0  # seconds before the second attempt; each later pause is twice as long


class _InterruptedError(Exception):
    """The connection ended early; the bytes that arrived are kept."""


def fetch(name: str, data: Path, watch: Watcher, retries: Patience) -> Path:
    """Download a data set into the data folder, unless it is there; return its folder."""
    found = present(name, data)
    if found is not None:
        return found[0].parent
    wanted = entry(name)
    folder = data / wanted.folder
    for remote in wanted.remotes:
        target = folder / remote.name
        final = folder / (remote.unpacked or remote.name)
        if not final.exists():
            if not target.exists():
                download(remote.url, target, remote.md5, watch, retries)
            if remote.unpacked:
                unzip(target, final)
                target.unlink()
    return folder


def download(url: str, target: Path, md5: str | None, watch: Watcher, retries: Patience) -> None:
    """Make ``target`` the file at ``url``; continue an earlier download if the server allows it."""
    part = target.with_name(f"{target.name}.part")
    with disk(part, OPTION):
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    failures = 0
    while True:
        before = part.stat().st_size
        try:
            _continue(url, part, watch, retries.timeout)
            break
        except _InterruptedError as error:
            failures = 1 if part.stat().st_size > before else failures + 1
            if failures >= retries.attempts:
                raise UserError(
                    f"{url} does not answer ({error}), {part.stat().st_size:,} bytes are here: "
                    f"call again to take up the rest, or {_by_hand(part)}"
                ) from error
            time.sleep(retries.pause * 2 ** (failures - 1))
    _check(url, part, target, md5)
    with disk(target, OPTION):
        part.replace(target)
    _version(part).unlink(missing_ok=True)


def _continue(url: str, part: Path, watch: Watcher, timeout: float) -> None:
    """Request the missing rest of the part file once."""
    have = part.stat().st_size
    request = urllib.request.Request(url, headers=_headers(part, have))
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            partial = answer.status == http.client.PARTIAL_CONTENT
            if partial and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
                _reset(part)
                raise _InterruptedError("it sends another part than it was asked for")
            with disk(part, OPTION):
                _version(part).write_text(_validator(answer.headers), encoding="utf-8")
            _receive(answer, part, have if partial else 0, watch)
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            _refused(url, part, have, error)
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(getattr(error, "reason", error) or type(error).__name__) from error


def _refused(url: str, part: Path, have: int, error: urllib.error.HTTPError) -> None:
    """Raise what a status means; return if it means that the whole file had arrived."""
    if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
        if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
            return
        _reset(part)
        raise _InterruptedError("the part that was here does not fit") from error
    if error.code in _LATER:
        raise _InterruptedError(f"status {error.code}") from error
    raise UserError(f"{url} answers {error.code} {error.reason}: {_by_hand(part)}") from error


def _receive(answer: http.client.HTTPResponse, part: Path, start: int, watch: Watcher) -> None:
    """Write the answer's bytes into the part file, from ``start`` on."""
    length = answer.headers.get("Content-Length")
    announced = whole_number(length or "")
    total = None if announced is None else start + announced
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
    """Return the bytes that have arrived: waiting for more would lose them in a stall.

    An error here is one of the network, not of the disk.
    """
    try:
        return answer.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(str(error) or type(error).__name__) from error


def _headers(part: Path, have: int) -> dict[str, str]:
    """Return headers that ask for the rest if the remote file has not changed."""
    if not have:
        return {"Accept-Encoding": "identity"}
    version = _version(part).read_text(encoding="utf-8") if _version(part).exists() else ""
    condition = {"If-Range": version} if version else {}
    return {"Accept-Encoding": "identity", "Range": f"bytes={have}-", **condition}


def _validator(headers: Mapping[str, str]) -> str:
    """Return what identifies this version of the remote file; a weak tag does not."""
    tag = headers.get("ETag") or ""
    return tag if tag.startswith('"') else headers.get("Last-Modified") or ""


def _version(part: Path) -> Path:
    """Return the file beside a part file that says which version of the remote file it is a part of."""
    return part.with_name(f"{part.name}.version")


def _reset(part: Path) -> None:
    """Empty a part file."""
    part.write_bytes(b"")
    _version(part).unlink(missing_ok=True)


def _check(url: str, part: Path, target: Path, md5: str | None) -> None:
    """Refuse and remove a file with a wrong checksum."""
    if md5 is None:
        return
    found = md5_of(part)
    if found != md5:
        _reset(part)
        part.unlink()
        raise UserError(
            f"what came from {url} has the md5 {found}, not {md5}, and was removed: "
            f"call again, or put a good {target.name} into {target.parent}"
        )


def _by_hand(part: Path) -> str:
    return f"put {part.name.removesuffix('.part')} into {part.parent} by hand"


def unzip(archive: Path, folder: Path) -> None:
    """Unpack the folder of that name from a zip archive, whole or not at all; this checks the archive's checksums."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(archive) as packed:
            need, free = sum(m.file_size for m in packed.infolist()), shutil.disk_usage(temporary).free
            if need > free:
                both = f"{scaled(need, 'B')}, and {scaled(free, 'B')} are free"
                raise UserError(f"{archive} unpacks to {both}: free the disk, or choose another {OPTION}")
            packed.extractall(temporary)  # this keeps every name below the folder
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
