"""Numbers of a peer for Prometheus: its text format, and a small server that hands it out."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any, NamedTuple

from ... import __version__
from ...core.errors import UserError
from ..wire.address import Address
from ..wire.http import in_words
from .status import PeerStatus, Serve, to_nobody

PATH, HEALTH = "/metrics", "/healthz"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
PATIENCE = 5.0  # seconds for one request, all of it
STATES = ("waiting", "training", "resting", "exchanging", "finishing", "leaving", "done")
Labels = Mapping[str, str]


class Series(NamedTuple):
    """The samples of one name."""

    name: str  # behind coterie_peer_
    kind: str  # "gauge" or "counter"
    help: str
    samples: list[tuple[Labels, float | None]]  # None: there is none


def prometheus(status: PeerStatus) -> str:
    """Return the numbers of a peer in Prometheus' text format 0.0.4."""
    lines = []
    for series in (*_own(status), *_others(status), *_carried(status)):
        known = [(labels, value) for labels, value in series.samples if value is not None]
        name = f"coterie_peer_{series.name}"
        lines += [f"# HELP {name} {series.help}", f"# TYPE {name} {series.kind}"] if known else []
        lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    """Write labels.

    >>> _labels({"member": 'a"b', "kind": "copy"})
    '{member="a\\\\"b",kind="copy"}'
    """
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    return "{" + ",".join(f'{k}="{v}"' for k, v in escaped.items()) + "}" if labels else ""


def _gauge(name: str, help: str, value: float | None) -> Series:
    return Series(name, "gauge", help, [({}, value)])


def _own(s: PeerStatus) -> Iterator[Series]:
    """Yield what the peer itself does."""
    about = {"federation": s["federation"], "member": s["name"], "method": s["method"], "version": __version__}
    yield Series("info", "gauge", "Who this is; always 1.", [(about, 1)])
    states = dict.fromkeys((*STATES, s["state"]))
    yield Series("state", "gauge", "1 for what the peer does.", [({"state": k}, int(k == s["state"])) for k in states])
    yield _gauge("round", "The round the peer is in, counted from 1.", s["round"])
    yield _gauge("rounds", "All rounds.", s["rounds"])
    yield _gauge("rounds_done", "The rounds that are over.", s["done"])
    yield _gauge("round_seconds", "Training and exchange of the latest round.", s["seconds"])
    yield _gauge("deadline_seconds", "How long an exchange waits for neighbors.", s["deadline"])
    yield _gauge("saved_timestamp_seconds", "When the state was last saved.", s["saved"])
    yield _gauge("train_loss", "The training loss of the latest round.", s["train_loss"])
    each = [({"metric": k, "protocol": p}, v) for k, by in s["metrics"].items() for p, v in by.items()]
    yield Series("metric", "gauge", "Of the peer's own model on its own test samples, as last measured.", [*each])
    mass: Mapping[str, Any] = s["mass"] or {}
    places = [({"place": place}, value) for place, value in mass.items()]
    yield Series("mass", "gauge", "Of push-sum: with the peer, on its way to others, arrived.", [*places])


def _others(s: PeerStatus) -> Iterator[Series]:
    """Yield what is known of the other members."""
    every = s["members"].items()

    def of(name: str, kind: str, help: str, key: str) -> Series:
        told: list[tuple[str, Mapping[str, Any]]] = [*every]
        each = [({"member": member}, None if m[key] is None else m[key] + 0) for member, m in told]
        return Series(name, kind, help, [*each])

    yield of("member_up", "gauge", "1 for a member that has answered lately.", "there")
    yield of(
        "member_neighbor", "gauge", "1 for a member that exchanges messages with the peer in this round.", "neighbor"
    )
    yield of("member_last_answer_timestamp_seconds", "gauge", "When a member last answered.", "last_answer")
    yield of("member_round", "gauge", "The round a member says it is in, counted from 1.", "round")
    yield of("member_missed_total", "counter", "Rounds that have waited for a member in vain.", "missed")


def _carried(s: PeerStatus) -> Iterator[Series]:
    """Yield what was received, sent and refused."""
    yield Series("received_bytes_total", "counter", "Bytes of messages that came.", [({}, s["bytes_in"])])
    yield Series("sent_bytes_total", "counter", "Bytes of messages that were sent.", [({}, s["bytes_out"])])
    taken, sent = ([({"kind": k}, n) for k, n in each.items()] for each in (s["messages_in"], s["messages_out"]))
    yield Series("received_messages_total", "counter", "Messages that were taken.", [*taken])
    yield Series("sent_messages_total", "counter", "Messages that others have taken.", [*sent])
    refused = {**{name: m["refused"] for name, m in s["members"].items()}, "unknown": s["strangers"]}
    refused_by = {name: m["refused_by"] for name, m in s["members"].items()}
    for name, help, by in (
        ("refused_total", "Messages and connections that the peer has refused.", refused),
        ("refused_by_total", "Messages of the peer that a member has refused.", refused_by),
    ):
        each = [({"member": k, "reason": why}, n) for k, reasons in by.items() for why, n in reasons.items()]
        yield Series(name, "counter", help, [*each])


class _Request(BaseHTTPRequestHandler):
    """One question. Nothing of what is asked is ever repeated or logged."""

    server: "MetricsServer"
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answer with the numbers."""
        if self.path == PATH:
            try:
                status, text = 200, self.server.text()
            except Exception as error:
                status, text = 500, f"the numbers cannot be read now ({type(error).__name__})\n"
            self._answer(status, text)
        elif self.path == HEALTH:
            self._answer(200, "ok\n")
        else:
            self._answer(404, f"there is only {PATH}\n")

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", TEXT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Return no more than who answers."""
        return "coterie"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class MetricsServer(TCPServer):
    """A server of one thread: one connection at a time, each for a few seconds at most, so that nobody can tie up more.

    It listens from the beginning, so that a taken port is known before anything starts, and answers while ``serving``.
    """

    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, where: Address) -> None:
        self.address_family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        self._latest: Callable[[], PeerStatus] | None = None
        try:
            super().__init__(where, _Request)
        except OSError as error:
            raise UserError(
                f"cannot show numbers at {where} ({in_words(error)}): choose another address in metrics, or end the "
                "program that has it"
            ) from error

    @contextmanager
    def serving(self, latest: Callable[[], PeerStatus]) -> Iterator[None]:
        """Answer meanwhile with what ``latest`` says of the peer."""
        self._latest = latest
        thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="coterie-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()

    def text(self) -> str:
        """Return the numbers as they are now."""
        assert self._latest is not None
        return prometheus(self._latest())

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one connection, and end it when its time is over: a timeout alone is one of every single byte."""

        def end() -> None:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(PATIENCE, end)
        timer.daemon = True
        timer.start()
        try:
            super().finish_request(request, client_address)
        finally:
            timer.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave whoever has gone."""


@contextmanager
def metrics_at(where: Address | None, on_event: Callable[..., None]) -> Iterator[Serve]:
    """Give what shows a peer's numbers at an address, where nobody else listens from now on; None: to nobody."""
    if where is None:
        yield to_nobody
        return
    with MetricsServer(where) as server:
        if not where.host.startswith("127.") and where.host not in ("localhost", "::1"):
            on_event("warning", text=f"whoever reaches {where} can read this peer's numbers: metrics have no TLS")
        yield server.serving
