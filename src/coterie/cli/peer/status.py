"""``coterie peer status``: what a peer of this machine does, for whoever looks after it."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...core.checked_json import read_json
from ...core.errors import UserError, in_one_line, unknown
from ...core.schema import Config
from ...core.spec import counted, scaled
from ...core.units import metrics_of, with_unit, words
from ...measure.compare import POINTS
from ...net.operations.status import EVERY, STATUS, PeerStatus
from ...net.setup.config import PeerConfig, load
from ...store import RunFolder
from ...store.lock import writer_of
from ...track.progress import clock
from ..common.console import table, wide_console
from ..common.rows_format import JSON, TABLE

SOON = 100.0  # seconds that are said as such
OLD = 6 * EVERY  # seconds after which a status is not what happens now


def show_status(path: Path, format: str) -> None:
    """Print the status of a peer that runs, or say that it does not, with the status 2."""
    if format.lower() not in (TABLE, JSON):
        raise unknown("format", format, (TABLE, JSON))
    config = load(path, trusted=None)
    folder = RunFolder(config.folder)
    writer = writer_of(folder.path)
    status = _status(folder, writer)
    if format.lower() == JSON:
        print(json.dumps({"running": writer is not None, **(status or {})}, indent=2))
    if writer is None:
        raise UserError(_why_not(config, folder))
    if format.lower() == TABLE and status is not None:
        _print(folder.config(), status, writer)
    elif format.lower() == TABLE:
        print(f"{config.name} has begun ({writer}), and shows nothing yet")


def _status(folder: RunFolder, writer: str | None) -> PeerStatus | None:
    """Return what is shown; None: nothing yet, or only what an earlier process has left."""
    if not (folder.path / STATUS).exists():
        return None
    status = read_json(folder.path / STATUS, PeerStatus)
    earlier = writer is not None and not writer.startswith((f"process {status['process']} on", "another process"))
    return None if earlier else status


def _why_not(config: PeerConfig, folder: RunFolder) -> str:
    """Say that nobody runs here, how far the peer got, and what to do."""
    start, rounds = f"coterie peer --config {config.path}", config.federation.rounds
    if not folder.exists:
        return f"{config.name} does not run, and never has in {folder.path}: start it with {start}"
    if folder.finished:
        return f"{config.name} does not run any more, as all {rounds} rounds are over: coterie report {folder.path}"
    return f"{config.name} does not run, and has {len(folder.rows())} of {rounds} rounds: go on with {start}"


def _print(config: Config, status: PeerStatus, writer: str) -> None:
    """Print what the peer does, and a table of the others."""
    console, now = wide_console(), time.time()
    for line in _lines(config, status, writer, now):
        console.print(in_one_line(line), soft_wrap=True)
    made = table(
        "member", "neighbor", "there", ">last answer", ">round", "state", ">missed", "refused", "refused by it"
    )
    for name, m in status["members"].items():
        words = ["yes" if m["neighbor"] else "", "yes" if m["there"] else "no", _ago(m["last_answer"], now)]
        standing = ["-" if m["round"] is None else str(m["round"]), in_one_line(m["state"] or "-"), str(m["missed"])]
        made.add_row(name, *words, *standing, _counts(m["refused"]), _counts(m["refused_by"]))
    if status["strangers"]:
        made.add_row("strangers", "", "", "", "", "", "", _counts(status["strangers"]), "")
    console.print(made)


def _lines(config: Config, s: PeerStatus, writer: str, now: float) -> Iterator[str]:
    """Yield what the peer itself does."""
    age = now - s["time"]
    who = f"{s['name']} of the federation {s['federation']} runs {s['method']} ({writer})"
    yield f"{who}: {s['state']}, round {s['round']} of {s['rounds']}"
    if age > OLD:
        yield f"this is {clock(age)} old: it hangs, or it cannot write its folder (see log.jsonl there)"
    missing = [name for name, m in s["members"].items() if not m["there"]]
    waited = f"; this round has waited for {', '.join(s['missing'])} in vain" if s["missing"] else ""
    yield f"missing: {', '.join(missing) or 'nobody'}{waited}; an exchange waits {s['deadline']:.3g} s at most"
    yield _measured(config, s)
    if s["kept"] is not None:
        yield f"kept: the model of round {s['kept']}, the best on {s['name']}'s validation samples"
    yield f"saved: {_ago(s['saved'], now)}, {counted(s['done'], 'round')} done"
    for way, size, messages in (
        ("received", s["bytes_in"], s["messages_in"]),
        ("sent", s["bytes_out"], s["messages_out"]),
    ):
        yield f"{way}: {scaled(size, 'B')}, {counted(sum(messages.values()), 'message')} taken"
    if s["mass"] is not None:
        own, outbox, inbox = (f"{s['mass'][place]:.6g}" for place in ("own", "outbox", "inbox"))
        yield f"mass: {own} its own, {outbox} on its way to others, {inbox} arrived and not saved yet"


def _measured(config: Config, s: PeerStatus) -> str:
    """Say how good the peer's own model is."""
    loss = "" if s["train_loss"] is None else f", training loss {s['train_loss']:.4g}"
    told = [
        f"{words(m)} {', '.join(f'{with_unit(m, value)} {POINTS[p]}' for p, value in each.items())}"
        for m in metrics_of(config)
        if (each := s["metrics"].get(m["column"]))
    ]
    return f"after round {s['measured']}: personal {'; '.join(told)}{loss}" if told else f"measured: nothing yet{loss}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items())) or "-"


def _ago(when: float | None, now: float) -> str:
    if when is None:
        return "never"
    seconds = max(0.0, now - when)
    return f"{seconds:.1f} s ago" if seconds < SOON else f"{clock(seconds)} ago"
