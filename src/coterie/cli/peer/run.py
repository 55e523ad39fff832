"""Run one participant: from its file to its last round, or until somebody ends it."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...core.errors import FolderError
from ...core.files import private
from ...net.operations.log import Log
from ...net.operations.metrics import metrics_at
from ...net.peer.peer import run_peer
from ...net.setup.config import deadline_in, load
from ...net.setup.start import participant, transport_of, warned
from ...net.wire.address import check_loopback
from ...store import RunFolder
from ..common.typed import INTERRUPTED


def run_participant(path: Path, trust: Sequence[str], deadline: str | None, insecure: bool) -> None:
    """Take part until the last round; Ctrl-C and SIGTERM tell the neighbors, and keep all finished rounds."""
    config = load(path, trust)
    if deadline is not None:
        config = replace(config, deadline=deadline_in("--deadline", deadline))
    if insecure:
        check_loopback(config.members)
    log = Log(sys.stderr)
    on_event = warned(log) if insecure else log
    # Where training is Python code, messages would wait for its turn of 5 ms: 132 MB/s became 204.
    sys.setswitchinterval(0.0005)
    try:
        with private(), _in_its_folder(config.path), metrics_at(config.metrics, on_event) as serve:
            one = participant(config)
            folder = run_peer(one, transport_of(config, insecure, on_event), on_event, log.keep_in, serve)
    except KeyboardInterrupt:
        done = _done(config.folder, config.federation.rounds)
        print(f"left; {done}. Continue with:\n  {shlex.join(['coterie', *sys.argv[1:]])}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    quoted = shlex.quote(str(folder))
    print(f"{config.name} has run all rounds: coterie report {quoted}")
    print(f"its model in a file: coterie export {quoted} --client {config.name} --out {config.name}.onnx")
    print(f"beside training alone: coterie peer alone --config {shlex.quote(str(path))}")


@contextmanager
def _in_its_folder(file: Path) -> Iterator[None]:
    """Name what chooses a peer's folder: it is a line of its file, where other commands have --out."""
    try:
        yield
    except FolderError as error:
        told = str(error).replace(", or continue that run with --resume", "")  # it does so without being told
        raise FolderError(told.replace("another --out", f"another folder in [peer] of {file}")) from error


def _done(folder: Path, rounds: int) -> str:
    done = len(RunFolder(folder).rows()) if RunFolder(folder).exists else 0
    return f"{done} of {rounds} rounds are saved"
