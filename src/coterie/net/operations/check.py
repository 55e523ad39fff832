"""What is wrong with a member before anything starts: its certificate, data, folder and port, and its neighbors."""

import select
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, NamedTuple

from ...core.errors import UserError, in_one_line
from ...core.spec import counted, scaled
from ...core.tensors import size_in_bytes
from ...data import Federation
from ...data.inputs import shape_in_words
from ...models.losses import loss_named
from ...models.model import Model
from ...training.checks import check_model
from ..certificates.validity import SOON, key_problem
from ..setup.agreement import agreed, algorithm, differences, module
from ..setup.config import PeerConfig
from ..setup.own_data import own_data
from ..setup.start import transport_of
from ..wire.address import Address
from ..wire.http import is_clock
from .metrics import MetricsServer

APART = 300.0  # seconds that two clocks may differ: certificates bear a day, but nobody could compare two logs
KEPT = 4  # models for every member that a folder may hold at a time: checkpoints, what came, what waits to be sent
CONNECT = 3.0  # seconds for a connection to oneself
ANSWER = 5.0  # seconds for a member's answer

Ask = Callable[[str], dict[str, Any]]
"""member -> its hello; raises a UserError with the reason where it does not answer."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    subject: str
    problem: bool
    text: str

    def __str__(self) -> str:
        return in_one_line(f"{'problem' if self.problem else 'ok':<8} {self.subject}: {self.text}")


def asker(config: PeerConfig) -> Ask | None:
    """Return what asks a member for its hello; None where this one's certificate allows to ask nobody."""
    nobody: Any = None  # a transport that is not started neither takes messages nor says anything of itself
    try:
        transport = transport_of(config, False, lambda event, **fields: None)(nobody, nobody, nobody)
    except UserError:
        return None
    return lambda name: transport.ask(name, ANSWER)


def findings(config: PeerConfig, ask: Ask | None) -> Iterator[Finding]:
    """Look at everything; ``ask``: None where the certificates do not allow to ask anybody."""
    yield _tried("certificate", lambda: certificate(config))
    yield _tried("method", lambda: _method(config))
    own: list[Federation] = []
    yield _tried("data", lambda: _data(config, own))
    ours = None
    if own:
        yield _tried("model", lambda: _model(config, own[0]))
        with suppress(UserError):  # which was said above
            ours = agreed(config, own[0])
    yield _tried("folder", lambda: _folder(config, own[0] if own else None))
    yield _tried("port", lambda: port(config))
    if config.metrics is not None:
        yield _tried("metrics", lambda: _metrics(config))
    for name in config.members if ask is not None else ():
        if ask is not None and name != config.name:
            yield from neighbor(name, config, ask, ours)


def _tried(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, False, look())
    except UserError as error:
        return Finding(subject, True, str(error))


def certificate(config: PeerConfig) -> str:
    """Say until when the member's certificate is valid."""
    credentials = config.credentials()
    if problem := key_problem(credentials.key):
        raise UserError(problem)
    standing = credentials.standing
    left = counted(standing.days_left, "day")
    soon = ", so let it be renewed" if standing.days_left < SOON else ""
    certificates = config.certificates
    missing = "" if certificates and certificates.revoked else "; without a list of revoked ones nobody can be shut out"
    return f"{standing.name}'s, valid until {standing.valid_until:%Y-%m-%d} ({left} left{soon}){missing}"


def _method(config: PeerConfig) -> str:
    made = algorithm(config)
    graph = made.settings.get("topology", "a graph of its own")
    return f"{made.name} over {graph} between {counted(len(config.members), 'member')}"


def _data(config: PeerConfig, own: list[Federation]) -> str:
    """Read the data into ``own``, and say what they are."""
    found = own_data(config)
    own.append(found)
    samples, tests = counted(len(found.y), "training sample"), counted(len(found.test_y), "test sample")
    kinds = "numbers" if found.classes is None else f"{found.classes} classes"
    return f"{samples} and {tests} of shape {shape_in_words(found.input_shape)}, {kinds}"


def _model(config: PeerConfig, own: Federation) -> str:
    given = Model(module(config, own), loss_named(config.federation.loss))
    check_model(given, own)
    size = sum(value.numel() for value in given.start.values())
    return f"{config.federation.model} with {size:,} numbers takes these samples"


def _folder(config: PeerConfig, own: Federation | None) -> str:
    """Say how much room the folder has."""
    place = config.folder
    there = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except OSError as error:
        fix = "free its permissions, or name another folder"
        raise UserError(f"{there} cannot be written to ({error.strerror}): {fix}") from error
    need = 0
    if own is not None:
        start = Model(module(config, own), loss_named(config.federation.loss)).start
        need = KEPT * len(config.members) * size_in_bytes(start.values())
    if free < need:
        raise UserError(f"{place} has {scaled(free, 'B')} left and may need {scaled(need, 'B')}: free some of the disk")
    return f"{place} can be written to, {scaled(free, 'B')} are free"


def port(config: PeerConfig) -> str:
    """Say whether the member can listen, and whether its own address leads here."""
    listen, own = config.listen, config.members[config.name]
    try:
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        listening = socket.create_server(listen, family=family)
    except OSError as error:
        fix = "end the program that listens there, or change listen"
        raise UserError(f"cannot listen at {listen} ({error.strerror}): {fix}") from error
    with closing(listening):
        return f"{listen} is free, {_leads_here(own, listening)}"


def _metrics(config: PeerConfig) -> str:
    assert config.metrics is not None
    MetricsServer(config.metrics).server_close()
    return f"{config.metrics} is free"


def _leads_here(own: Address, listening: socket.socket) -> str:
    try:
        with socket.create_connection(own, CONNECT):
            if not select.select([listening], [], [], CONNECT)[0]:
                fix = "mend the member's address, or what forwards its port"
                raise UserError(f"{own} is answered by another program or machine: {fix}")
            return f"and {own} leads to it"
    except TimeoutError:  # many routers let nobody inside reach an address of the outside
        return f"but {own} does not answer from here: let another member check it"
    except OSError as error:
        fix = "mend the member's address, or open the firewall"
        raise UserError(f"{own} does not lead to this machine ({error.strerror}): {fix}") from error


def neighbor(name: str, config: PeerConfig, ask: Ask, ours: dict[str, Any] | None) -> Iterator[Finding]:
    """Ask another member what it is, and compare."""
    began = time.time()
    try:
        found = ask(name)
    except UserError as error:
        yield Finding(name, True, str(error))
        return
    yield _clock(name, found.get("clock"), began, time.time())
    if ours is None:
        return
    different = differences(ours, found.get("agreed"))
    for line in different:
        yield Finding(name, True, f"{line}: make [federation] of both alike")
    if not different:
        yield Finding(name, False, f"answers at {config.members[name]}, with the same model, method and settings")


def _clock(name: str, clock: Any, began: float, ended: float) -> Finding:
    """Compare another member's clock with this one, which read ``began`` and ``ended`` before and after the answer."""
    if not is_clock(clock):
        return Finding(name, True, "its answer is not that of a peer: name the address of a peer")
    apart = clock - ended if clock > ended else min(clock - began, 0.0)
    ahead = f"its clock is {abs(apart):,.0f} s {'ahead of' if apart > 0 else 'behind'} this one"
    if abs(apart) > APART:
        return Finding(name, True, f"{ahead}: set the wrong one, or let both follow a time server")
    return Finding(name, False, "its clock agrees with this one" if abs(apart) < 1 else ahead)
