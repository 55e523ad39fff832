"""Folders of several members of one federation, which ran as peers: together they are one run of as many clients."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.annotations import shown
from ..core.errors import UserError
from ..core.schema import PeerOrigin
from ..measure import summarize
from ..measure.selection import LAST, PER_CLIENT, rule_of
from .member_rows import ends, joined_clients, joined_rows
from .record import Record

AGREED = ("method", "rounds", "seed", "model", "loss", "metrics", "init", "precision")  # the same at all members
EACH_ITS_OWN = ("engine", "engine_reason", "device", "machine")  # shown side by side

Parts = Mapping[str, Record]
"""The runs of some members by name, in the order of the members."""


def join_members(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Return the records, those of one federation's members as one, and sentences on who is missing.

    A finished run of one client that is no peer's, such as one of ``local``, belongs to the member who has these very
    samples: such runs are joined as well, so that each member's gain can be told.
    """
    groups: dict[str, list[tuple[Record, PeerOrigin]]] = {}
    found, notes = list(records), list[str]()
    for record in records:
        if (origin := _origin(record, records)) is not None:
            groups.setdefault(_key(record, origin), []).append((record, origin))
    for group in groups.values():
        parts, (first, origin) = _by_member(group), group[0]
        if "peer" in first.config:
            _check_one_federation([record for record, _ in group])
            notes += _sentences(parts, origin)
        elif len(parts) < len(group):  # repetitions, which stand apart
            continue
        found[found.index(first)] = _joined(parts, origin)
        found = [record for record in found if record not in parts.values()]
    return found, notes


def _origin(record: Record, records: Sequence[Record]) -> PeerOrigin | None:
    """Return whose run it is, by what it says or by its samples; None: no member's."""
    if "peer" in record.config:
        return record.config["peer"]
    if record.config["data"]["clients"] != 1 or not record.finished:
        return None
    peers = [r.config for r in records if "peer" in r.config]
    same = [c["peer"] for c in peers if c["fingerprints"]["data"] == record.config["fingerprints"]["data"]]
    return same[0] if len({origin["name"] for origin in same}) == 1 else None


def _key(record: Record, origin: PeerOrigin) -> str:
    """Return what records have in common that make one."""
    return json.dumps([origin["federation"], None if "peer" in record.config else _agreed(record)], sort_keys=True)


def _by_member(group: Sequence[tuple[Record, PeerOrigin]]) -> Parts:
    ordered = sorted(group, key=lambda each: each[1]["number"])
    return {origin["name"]: record for record, origin in ordered}


def _check_one_federation(runs: Sequence[Record]) -> None:
    """Refuse two folders of one member, and folders of federations that have no more than the name in common."""
    seen: dict[str, Record] = {}
    for run in runs:
        origin = run.config["peer"]
        first = seen.setdefault(origin["name"], run)
        if first is not run:
            raise UserError(
                f"{_where(first)} and {_where(run)} are both of {origin['name']} in the federation "
                f"{origin['federation']}: give one of them"
            )
        if apart := list(_differences(_agreed(runs[0]), _agreed(run))):
            raise UserError(
                f"{_where(runs[0])} and {_where(run)} have not trained together, though both name the federation "
                f"{origin['federation']} ({'; '.join(apart)}): give folders of one federation"
            )


def _where(record: Record) -> str:
    return f"the run of {record.config['peer']['name']}" if record.folder is None else str(record.folder)


def _agreed(record: Record) -> dict[str, Any]:
    """Return what must be the same at all members."""
    config: Mapping[str, Any] = record.config
    settings = {f"settings.{k}": v for k, v in config["settings"].items()}
    prepared = {f"transform.{k}": (config["transform"] or {}).get(k) for k in ("mean", "std")}
    first = {"first model": config["fingerprints"]["model"]}
    members = {"members": config["peer"]["members"]} if "peer" in config else {}
    return {k: config.get(k) for k in AGREED} | settings | prepared | first | members


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*one, *other)):
        if one.get(key) != other.get(key):
            yield f"{key}: {shown(one.get(key))} and {shown(other.get(key))}"


def _joined(parts: Parts, origin: PeerOrigin) -> Record:
    """Return one run of as many clients as there are parts."""
    runs = list(parts.values())
    config: Any = {k: v for k, v in runs[0].config.items() if k != "peer"}
    config |= {k: " and ".join(dict.fromkeys(str(run.config.get(k)) for run in runs)) for k in EACH_ITS_OWN}
    alone = {"member": origin["name"]} if len(runs) == 1 else {}
    config["data"] = {"clients": len(runs), "federation": origin["federation"], **alone}
    config["fingerprints"] = {**config["fingerprints"], "data": _fingerprint(runs)}
    history, latest = joined_rows(runs)
    apart = None
    if any(rule_of(run.config) != LAST for run in runs):  # each member has chosen by itself
        config["select"] = PER_CLIENT
        latest, apart = ends(runs, latest)
    return replace(
        runs[0],
        config=config,
        history=history,
        summary=summarize(config, history, apart),
        client_summary=joined_clients(parts, origin, latest),
        finished=all(run.finished for run in runs),
        folder=None,
        loaded=None,
        parts=tuple(runs),
    )


def _fingerprint(runs: Sequence[Record]) -> str:
    """Return a short hash of all members' samples."""
    each = [run.config["fingerprints"]["data"] for run in runs]
    return each[0] if len(each) == 1 else hashlib.blake2b(" ".join(each).encode(), digest_size=8).hexdigest()


def _sentences(parts: Parts, origin: PeerOrigin) -> Iterator[str]:
    """Say whose folders are missing, and who has not run all rounds."""
    missing = [name for name in origin["members"] if name not in parts]
    if missing:
        lacking = "folder of {} is" if len(missing) == 1 else "folders of {} are"
        yield (
            f"Federation {origin['federation']}: all numbers are those of {_listed(list(parts))}; the "
            f"{lacking.format(_listed(missing))} not here."
        )
    behind = {name: run for name, run in parts.items() if not run.finished}
    if behind:
        rounds = _listed([f"{name} has {len(run.history)} of {run.config['rounds']}" for name, run in behind.items()])
        yield f"Federation {origin['federation']}: of the rounds, {rounds}; a member counts with its latest model."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
