"""The methods. Each is a value composed from the parts; this table of names is all the registration there is."""

from collections.abc import Callable
from typing import Any

from ..errors import unknown
from .base import Algorithm
from .dfedalt import dfedalt
from .dispfl import dispfl
from .ditto import ditto
from .fedbabu import fedbabu
from .fedrod import fedrod
from .gossip import dfedavg, dfedavgm, dpsgd, local
from .partial import dfedavgm_p, fedavg_p, fedrep
from .pushsum import dfedpgp, osgp
from .scaffold import scaffold, scaffold_p
from .server import fedavg, fedper
from .sharpness import dfedsalt, dfedsam, dfedsam_mgs, fedsam

BUILDERS: dict[str, Callable[..., Algorithm]] = {
    "local": local,
    "fedavg": fedavg,
    "fedper": fedper,
    "dpsgd": dpsgd,
    "dfedavg": dfedavg,
    "dfedavgm": dfedavgm,
    "dfedalt": dfedalt,
    "dfedsalt": dfedsalt,
    "dfedpgp": dfedpgp,
    "dfedsam": dfedsam,
    "dfedsam-mgs": dfedsam_mgs,
    "fedavg-p": fedavg_p,
    "scaffold-p": scaffold_p,
    "fedsam": fedsam,
    "scaffold": scaffold,
    "fedrep": fedrep,
    "fedbabu": fedbabu,
    "ditto": ditto,
    "fedrod": fedrod,
    "dfedavgm-p": dfedavgm_p,
    "osgp": osgp,
    "dispfl": dispfl,
}


def known(name: str) -> bool:
    """Whether this is a method; ``-`` and ``_`` are the same."""
    return name.replace("_", "-") in BUILDERS


def builder(name: str) -> Callable[..., Algorithm]:
    """The builder of that name; ``-`` and ``_`` are the same.

    >>> builder("dfedalt") is dfedalt
    True
    """
    if not known(name):
        raise unknown("method", name, BUILDERS)
    return BUILDERS[name.replace("_", "-")]


def build(name: str, **settings: Any) -> Algorithm:
    """The method of that name with these settings.

    >>> build("fedavg", lr=0.05).settings["lr"]
    0.05
    """
    return builder(name)(**settings)


__all__ = [
    "BUILDERS",
    "Algorithm",
    "build",
    "builder",
    "dfedalt",
    "dfedavg",
    "dfedavgm",
    "dfedavgm_p",
    "dfedpgp",
    "dfedsalt",
    "dfedsam",
    "dfedsam_mgs",
    "dispfl",
    "ditto",
    "dpsgd",
    "fedavg",
    "fedavg_p",
    "fedbabu",
    "fedper",
    "fedrep",
    "fedrod",
    "fedsam",
    "known",
    "local",
    "osgp",
    "scaffold",
    "scaffold_p",
]
