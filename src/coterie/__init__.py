"""Personalized federated learning, with a server or between peers: every client ends with its own model."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .training import render

__version__ = "0.1.0"

if "OMP_WAIT_POLICY" not in os.environ:
    # It has an effect if torch is imported later. Training goes on for long beside other work; OpenMP threads that spin
    # while they wait gain little on an empty machine and are ruinous on a busy one: 3 rounds on the digits took 5 to
    # 50 s beside two other torch processes, 3 s this way.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from . import (
        algorithms,
        data,
        engines,
        export,
        measure,
        method,
        models,
        recipes,
        report,
        submodels,
        theory,
        topology,
        track,
    )
    from .cli.compared import Compared
    from .cli.python import compare
    from .core.errors import UserError
    from .training.client import Client
    from .training.cluster import Cluster
    from .training.fit import fit
    from .training.run import Run, load
    from .training.time_limit import OutOfTime, TimeLimit

__all__ = [
    "Client",
    "Cluster",
    "Compared",
    "OutOfTime",
    "Run",
    "TimeLimit",
    "UserError",
    "algorithms",
    "compare",
    "data",
    "engines",
    "export",
    "fit",
    "load",
    "measure",
    "method",
    "models",
    "recipes",
    "report",
    "submodels",
    "theory",
    "topology",
    "track",
]

_HOME = {
    "Compared": "cli.compared",
    "compare": "cli.python",
    "UserError": "core.errors",
    "Cluster": "training.cluster",
    "fit": "training.fit",
    "Client": "training.client",
    "Run": "training.run",
    "load": "training.run",
    "OutOfTime": "training.time_limit",
    "TimeLimit": "training.time_limit",
}


def __getattr__(name: str) -> Any:
    """Import on first use: asking the command line for help must not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    """Return the public names, so that a notebook completes them before they are imported."""
    return [*__all__, "__version__"]


# A run shows itself by a report, which stands above it and takes a while to import.
render.write = lambda runs, path: import_module(".report", __name__).write(runs, path)
render.card = lambda run: import_module(".report.card", __name__).card(run)
