"""What a page is called: the data, who has them, and the question that its runs answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.schema import Config
from ..core.spec import parameters
from ..data.partition import IID, NATURAL
from ..data.sources import SOURCES

FEW = 4  # methods that a title has room for
_APART = ("source", "clients", "partition", "seed", "path", "target", "client")  # said otherwise, or not at all


def setup_title(config: Config) -> str:
    """Describe a set-up in words: its data, how they are divided, and the model."""
    data, model = config["data"], config["model"]
    division = {None: "", NATURAL: ", one client per site", IID: ", partitioned iid"}
    partition = data.get("partition")
    divided = division.get(partition, f", partition {partition}")
    return f"{data_title(data)}{divided}, model {model.get('name', model.get('module', '?'))}"


def data_title(data: Mapping[str, Any]) -> str:
    """Name the data, and say how many clients have them.

    >>> data_title({"source": "digits", "clients": 20, "noise": 0.0, "renamed": 4})
    'digits (renamed=4), 20 clients'
    >>> data_title({"source": "npz", "clients": 1, "path": "/files/sites.npz"})
    'sites.npz, 1 client'
    >>> data_title({"federation": "heart", "clients": 5})
    'federation heart, 5 clients'
    >>> data_title({"federation": "heart", "clients": 1, "member": "aachen"})
    'aachen of federation heart'
    """
    if "member" in data:
        return f"{data['member']} of {data_name(data)}"
    clients = data["clients"]
    return f"{data_name(data)}, {clients} client{'' if clients == 1 else 's'}"


def data_name(data: Mapping[str, Any]) -> str:
    """Name the data: the file, or the source with the options that are not as usual."""
    source = data.get("source")
    if "federation" in data:  # of peers, whose own data nobody else knows
        return f"federation {data['federation']}"
    name = Path(str(data["path"])).name if "path" in data else source or "data of its own"
    usual = {k: p.default for k, p in parameters(SOURCES[source]).items()} if source in SOURCES else {}
    given = [f"{k}={v}" for k, v in data.items() if k in usual and k not in _APART and v != usual[k] and _short(v)]
    return f"{name} ({', '.join(given)})" if given else str(name)


def _short(value: Any) -> bool:
    return isinstance(value, int | float | str) and len(str(value)) <= 20


def page_title(data: Sequence[str], methods: Sequence[str], alone: str | None) -> str:
    """Return the data and the question; ``alone``: the method by which every client trains alone.

    >>> page_title(["digits, 20 clients"], ["local", "fedper", "dfedalt"], "local")
    'digits, 20 clients: is fedper or dfedalt better than local?'
    """
    about = "; ".join(dict.fromkeys(data)) if len(set(data)) <= FEW else f"{len(set(data))} data sets"
    return f"{about}: {_question(methods, alone)}"


def _question(methods: Sequence[str], alone: str | None) -> str:
    others = [m for m in methods if m != alone]
    if len(methods) == 1:
        return f"how good is {methods[0]}?"
    if len(methods) > FEW + 1:
        return f"which of {len(methods)} methods is best?"
    if alone is not None:
        return f"is {_or(others)} better than {alone}?"
    return f"which is best, {_or(others)}?"


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
