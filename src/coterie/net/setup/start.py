"""A participant as its file describes it, with its certificates and its transport."""

import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ...training.prepare import model_of
from ..certificates.validity import SOON, key_problem
from ..peer.mailbox import Mailbox
from ..peer.peer import MakeTransport
from ..wire.address import LOOPBACK, Address
from ..wire.tls import Credentials, client_context, name_of, revoked, serial_of, server_context
from ..wire.transport import Beat, Transport
from .agreement import agreed, algorithm, digest, module
from .config import PeerConfig
from .own_data import own_data
from .prepare import Participant, experiments

DAY = 86400.0  # seconds


def participant(config: PeerConfig) -> Participant:
    """Return what the file asks for, ready to run."""
    own, settings = own_data(config), config.run_settings
    found = agreed(config, own)
    given, members = model_of(module(config, own), settings), tuple(config.members)
    whole, alone, reason = experiments(given, own, members, config.client, algorithm(config), settings)
    return Participant(
        federation=config.federation.id,
        members=members,
        client=config.client,
        experiment=whole,
        alone=alone,
        given=given,
        reason=reason,
        agreed=found,
        digest=digest(found),
        folder=config.folder,
        deadline=config.deadline,
        wait=config.wait,
    )


def transport_of(config: PeerConfig, insecure: bool, on_event: Callable[..., None]) -> MakeTransport:
    """Return what makes the transport of a participant; ``insecure``: without TLS, which stays on this machine."""
    credentials = None if insecure else config.credentials(lambda text: on_event("warning", text=text))
    if credentials is not None and (problem := key_problem(credentials.key)):
        on_event("warning", text=problem)

    def make(mailbox: Mailbox, beat: Callable[[], Beat], hello: Callable[[], dict[str, Any]]) -> Transport:
        transport = partial(
            Transport,
            config.name,
            config.members,
            receiver=mailbox,
            beat=beat,
            hello=hello,
            on_event=on_event,
        )
        if credentials is None:  # whatever the file says of listening everywhere
            return transport(listen=Address(LOOPBACK, config.listen.port))
        return transport(
            listen=config.listen,
            server_tls=server_context(credentials, lambda why: None),  # the transport tells it, with the address
            client_tls=client_context(credentials),
            certificate_ok=CertificateWatch(credentials, lambda text: on_event("warning", text=text)),
        )

    return make


class CertificateWatch:
    """Looks again at certificates while connections are open; who has one that ends soon is told of once a day."""

    def __init__(self, credentials: Credentials, warn: Callable[[str], object]) -> None:
        self._credentials, self._warn = credentials, warn
        self._own = credentials.standing
        self._told: dict[str, float] = {}  # when each member's was told of
        self._look(self._own.name, self._own.valid_until.timestamp())

    def __call__(self, certificate: dict[str, Any]) -> str | None:
        """Say why a certificate that was valid when its connection began is so no longer; None: it still is."""
        until = ssl.cert_time_to_seconds(certificate["notAfter"])
        self._look(self._own.name, self._own.valid_until.timestamp())
        self._look(name_of(certificate), until)
        if until <= time.time():
            return "its certificate has expired"
        return "it was revoked" if serial_of(certificate) in revoked(self._credentials) else None

    def _look(self, name: str, until: float) -> None:
        now = time.time()
        if until < now + SOON * DAY and now >= self._told.get(name, 0.0) + DAY:
            self._told[name] = now
            ends = f"{'ends' if until > now else 'has ended'} on {datetime.fromtimestamp(until, UTC):%Y-%m-%d}"
            fix = f"let the authority renew it (coterie certs issue {name} --renew), and start {name} again with it"
            self._warn(f"the certificate of {name} {ends}: {fix}")


def warned(on_event: Callable[..., None]) -> Callable[..., None]:
    """Return a function that also says after every round that nothing is encrypted."""

    def say(event: str, **fields: Any) -> None:
        on_event(event, **fields)
        if event in ("waiting", "round"):
            on_event("warning", text="--insecure-loopback: messages are neither encrypted nor signed")

    return say
