"""A federation on one machine: its certificates, each member's data and peer.toml, and what the members have left."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from coterie.data import Federation, federate
from coterie.net.certificates.authority import Authority
from coterie.net.peer.outbox import Entry, Outbox
from coterie.net.peer.peer import APPLIED, INBOX, OUTBOX

LOG = "log.jsonl"  # in a member's folder


@dataclass(frozen=True)
class FederationFiles:
    """The files of all members in one folder."""

    folder: Path
    addresses: Mapping[str, str]  # of all members
    method: str
    rounds: int
    settings: Mapping[str, Any]
    model: str = "mlp:width=32"
    own: Mapping[str, Any] = field(default_factory=dict)  # more of [peer], the same for all
    data: str = "digits"
    partition: str = "dirichlet:0.3"
    listen: Mapping[str, str] = field(default_factory=dict)  # where members listen, if not where others reach them

    @property
    def names(self) -> Sequence[str]:
        """All members."""
        return list(self.addresses)

    def config(self, name: str) -> Path:
        """The peer.toml of a member."""
        return self.folder / f"{name}.toml"

    def run(self, name: str) -> Path:
        """The folder of a member."""
        return self.folder / f"run-{name}"

    @cached_property
    def authority(self) -> Authority:
        """Whoever certifies the members."""
        return Authority.create(self.folder / "certs")

    @cached_property
    def federation(self) -> Federation:
        """The data of all members."""
        return federate(self.data, clients=len(self.names), partition=self.partition, seed=0)

    def write(self) -> "FederationFiles":
        """Write all of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fed = self.federation
        for i, name in enumerate(self.names):
            self.authority.issue(name)
            train, test = fed.train[i], fed.test[i]
            arrays = {"x": fed.x[train], "y": fed.y[train], "test_x": fed.test_x[test], "test_y": fed.test_y[test]}
            np.savez(self.folder / f"{name}.npz", **{key: value.numpy() for key, value in arrays.items()})
            self.config(name).write_text(self._toml(name))
        return self

    def _toml(self, name: str) -> str:
        own = {"name": name, "folder": f"run-{name}", "data": f"npz:{name}.npz", "listen": self.addresses[name]}
        own |= {"listen": self.listen[name]} if name in self.listen else {}
        certificates = {"authority": "authority.pem", "certificate": f"{name}.pem", "key": f"{name}.key"}
        tables = {
            "federation": {
                "id": "clinics", "method": self.method, "rounds": self.rounds, "model": self.model, "classes": 10,
            },
            "federation.settings": self.settings,
            "federation.members": self.addresses,
            "peer": own | dict(self.own),
            "peer.certificates": {k: f"certs/{v}" for k, v in {**certificates, "revoked": "revoked.pem"}.items()},
        }  # fmt: skip
        return "\n".join(f"[{table}]\n" + _lines(values) for table, values in tables.items())

    def events(self, name: str, event: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """What a member's log tells, of one kind where ``event`` says which."""
        path = self.run(name) / LOG
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        wanted = {**({} if event is None else {"event": event}), **fields}
        return [one for one in found if wanted.items() <= one.items()]

    def accuracy(self, names: Sequence[str]) -> float:
        """The mean personal accuracy of some members at the end, in percent."""
        summaries = [json.loads((self.run(name) / "summary.json").read_text()) for name in names]
        return 100 * float(np.mean([each["personal_accuracy"]["after_mix"]["final"] for each in summaries]))

    def mass(self) -> Fraction:
        """All mass of push-sum: in the states, in the inboxes, and in the outboxes if it has not arrived."""
        total, last = Fraction(0), {}
        for name in self.names:
            checkpoints = sorted((self.run(name) / "checkpoint").glob("*.safetensors"))
            rounds = int(checkpoints[-1].stem.removeprefix("round-")) if checkpoints else 0
            total -= self._unsaved(name, rounds)
            if not checkpoints:  # nobody has given it any, and it began with its own
                total, last = total + 1, last | {(name, other): (-1, -1) for other in self.names}
                continue
            tensors = load_file(checkpoints[-1])
            total += Fraction(tensors["mu"].item())
            last |= {(name, k): tuple(at) for k, at in zip(self.names, tensors[APPLIED].tolist(), strict=True)}
            for path in sorted((self.run(name) / INBOX).glob("transfer-*")):
                _, round, step, sender = path.stem.split("-", 3)
                if (int(round), int(step)) > last[name, sender]:
                    total += Fraction(load_file(path)["mass"].item())
                    last[name, sender] = int(round), int(step)
        return total + sum(self._waiting(name, last) for name in self.names)

    def _unsaved(self, name: str, rounds: int) -> Fraction:
        """The mass that a member has handed over since it saved the state after so many rounds, which still has it."""
        entries = self._entries(name).items()
        return sum(
            (Fraction(share.mass) for (at, _), e in entries if at >= rounds for share in e.shares.values()), Fraction(0)
        )

    def _entries(self, name: str) -> Mapping[tuple[int, int], Entry]:
        """What is in a member's outbox, by round and step."""
        outbox = self.run(name) / OUTBOX
        return Outbox(outbox).entries if outbox.exists() else {}

    def _waiting(self, name: str, last: Mapping[tuple[str, str], tuple[int, ...]]) -> Fraction:
        """The mass that a member has sent and nobody has."""
        shares = [(at, to, share) for at, entry in self._entries(name).items() for to, share in entry.shares.items()]
        return sum((Fraction(share.mass) for at, to, share in shares if at > last[to, name]), Fraction(0))


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
