"""Personalized federated learning, with a server or between peers: every client ends with its own model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.extensions import EXTENSIONS
from .core.openmp import keep_from_spinning

__version__ = "0.1.0"

keep_from_spinning()

if TYPE_CHECKING:
    from . import (
        algorithms,
        data,
        engines,
        export,
        measure,
        method,
        models,
        report,
        submodels,
        topology,
        track,
    )
    from .core.errors import UserError
    from .papers import recipes, theory
    from .study.compare import compare
    from .study.compared import Compared
    from .study.tune import TuneResult, tune
    from .training.client import Client
    from .training.prepare import fit
    from .training.run import Run, load
    from .training.settings import Cluster
    from .training.time_limit import OutOfTime, TimeLimit

__all__ = [
    "Client",
    "Cluster",
    "Compared",
    "OutOfTime",
    "Run",
    "TimeLimit",
    "TuneResult",
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
    "tune",
]

_PACKAGES = {"recipes": "papers.recipes", "theory": "papers.theory"}  # that do not lie at the top
_HOME = {
    "Compared": "study.compared",
    "compare": "study.compare",
    "TuneResult": "study.tune",
    "tune": "study.tune",
    "UserError": "core.errors",
    "Cluster": "training.settings",
    "fit": "training.prepare",
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
    return import_module(f".{_PACKAGES.get(name, name)}", __name__)


def __dir__() -> list[str]:
    """Return the public names, so that a notebook completes them before they are imported."""
    return [*__all__, "__version__"]


# The papers stand above the command line and the pages, which find their part by this name when they need it.
EXTENSIONS.append(f"{__name__}.papers")
