"""What a member's log tells of its rounds beside the rows: who was missing, when its process began, push-sum's mass."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..store.folder import LOG


@dataclass(frozen=True)
class MemberLog:
    """The rounds of one member, counted from 1; those of which the log was deleted are in none of it."""

    missed: dict[int, tuple[str, ...]] = field(default_factory=dict)  # whom a round went on without; (): nobody
    mass: dict[int, float] = field(default_factory=dict)  # after a round
    begun: list[int] = field(default_factory=list)  # the rounds that a process of it began with


def read_log(folder: Path | None) -> MemberLog:
    """Return what the logs in a folder tell; lines that are no events of rounds are passed over."""
    found = MemberLog()
    for event in () if folder is None else _events(folder):
        match event:
            case {"event": "begins", "round": int(round)}:
                found.begun.append(round)
            case {"event": "round", "round": int(round), "missed": [*names]}:
                found.missed[round] = tuple(map(str, names))
                if isinstance(event.get("mass"), float):
                    found.mass[round] = event["mass"]
    return found


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """Return all lines that are whole, the oldest first."""
    for path in (*sorted(folder.glob(f"{LOG}.[0-9]"), reverse=True), folder / LOG):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has just been renamed, or nobody may read it: the page does without
            continue
        for line in text.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event
