"""What both sides of a connection agree on: the words of a heartbeat, of an acknowledgement, and of a failure."""

import json
import os
import ssl
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import aiohttp

from .message import Header, Reason, Refused, shorten
from .tls import reason

MESSAGE, BEAT, HELLO = "/v1/message", "/v1/beat", "/v1/hello"
SENDER = "Coterie-Sender"  # a field of the request that says who sends it where no certificate does
LONGEST_BEAT = 2**12  # bytes
LONGEST_ANSWER = 2**20
LONGEST_WHY = 400  # characters
LATEST = 1e12  # seconds since 1970 that a clock may show: JSON has numbers that no float can hold
STATUS: dict[Reason, int] = {
    "early": 425,
    "late": 410,
    "duplicate": 409,
    "sender": 403,
    "federation": 403,
    "settings": 409,
    "shapes": 422,
    "values": 422,
    "size": 413,
    "format": 400,
    "certificate": 403,
    "revoked": 403,
    "cut": 408,
    "disk": 507,
    "error": 500,
}


class Beat(NamedTuple):
    """What a member says of itself."""

    round: int
    state: str  # "waiting", "training", "leaving", "done", ...
    clock: float  # seconds since 1970, by its own clock
    digest: str  # of its method and settings


class Timing(NamedTuple):
    """Seconds after which something is done again, or is not waited for any longer."""

    heartbeat: float = 1.0
    alive: float = 4.5  # since the latest heartbeat of a member that still counts as being there
    beat: float = 3.0  # for the answer to a heartbeat: TCP alone does not notice that a link is cut
    connect: float = 10.0  # for a connection with all of TLS
    stalled: float = 30.0  # without a single byte of a message
    answer: float = 60.0  # for the acknowledgement, once all of a message is sent
    idle: float = 60.0  # for the next request on a connection
    longest_pause: float = 10.0  # between two attempts to send the same message


class Receiver(Protocol):
    """Whoever takes messages; called in threads, for one message of a sender at a time."""

    def admit(self, header: Header, size: int) -> Path:
        """Return the file that a message of this size is written to, or refuse it before it is read."""

    def take(self, header: Header, path: Path) -> None:
        """Take a message, all of which is in the file; returning acknowledges it. A file that is refused is removed."""


def is_clock(value: Any) -> bool:
    """Tell whether it is a number of seconds since 1970, as any clock may show it.

    >>> [is_clock(value) for value in (0, 1.7e9, True, float("nan"), 10**400)]
    [True, True, False, False, False]
    """
    return type(value) in (int, float) and abs(value) < LATEST


def beat_of(value: Any) -> Beat:
    """Return what a member says of itself, from JSON that it has sent."""
    if not isinstance(value, dict) or set(value) != set(Beat._fields):
        raise Refused("format", f"a heartbeat is not {', '.join(Beat._fields)}")
    beat = Beat(**value)
    if type(beat.round) is not int or not -1 <= beat.round < 10**10:
        raise Refused("format", "the round of a heartbeat is no number of a round")
    if not is_clock(beat.clock):
        raise Refused("format", "the clock of a heartbeat is no number of seconds")
    for word in (beat.state, beat.digest):
        if not isinstance(word, str) or len(word) > 128 or not word.isprintable():
            raise Refused("format", "the state or the digest of a heartbeat is no short text")
    return beat


async def read_json(content: aiohttp.StreamReader, most: int) -> Any:
    """Return what a body of at most so many bytes says."""
    parts: list[bytes] = []
    while part := await content.readany():
        parts.append(part)
        if sum(map(len, parts)) > most:
            raise Refused("size", f"it has more than {most:,} bytes")
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        raise Refused("format", "it is no JSON") from None


def refusal_in(answer: Any) -> tuple[Reason, str]:
    """Return the reason that an answer gives, in a word and in words; it may have been written by anybody."""
    if not isinstance(answer, dict) or answer.get("refused") not in get_args(Reason):
        return "error", "its answer has no reason"
    return answer["refused"], shorten(str(answer.get("why", "")), LONGEST_WHY)


def in_words(error: BaseException) -> str:
    """Say why a member could not be reached."""
    cause = _cause(error)
    if isinstance(cause, Refused):
        return str(cause)
    if isinstance(cause, ssl.SSLError):
        return reason(cause)
    if isinstance(cause, TimeoutError):
        return "it did not answer in time"
    if isinstance(cause, aiohttp.ServerDisconnectedError):
        return "it closed the connection"
    if isinstance(cause, OSError) and cause.errno and cause.errno > 0:  # asyncio adds addresses to what errors say
        return os.strerror(cause.errno).lower()
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return type(cause).__name__


def _cause(error: BaseException) -> BaseException:
    """Return what lies below the errors of aiohttp."""
    if isinstance(error, TimeoutError):
        return error
    for name in ("certificate_error", "os_error", "__cause__"):
        below = getattr(error, name, None)
        if isinstance(below, BaseException) and below is not error:
            return _cause(below)
    return error
