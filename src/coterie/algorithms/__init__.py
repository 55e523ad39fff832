"""The methods. Each is a value composed from the parts; this table of names is all the registration there is."""

from collections.abc import Callable, Collection
from typing import Any

from ..errors import unknown
from ..own import is_own
from . import own
from .base import Algorithm
from .depths import depthfl, progfed
from .dfedalt import dfedalt
from .dispfl import dispfl
from .ditto import ditto
from .fedbabu import fedbabu
from .fedhm import fedhm, fedhmv2
from .fedrod import fedrod
from .flanc import flanc
from .gossip import dfedavg, dfedavgm, dpsgd, local
from .lowrank import fedlmt, pfedlmt
from .partial import dfedavgm_p, fedavg_p, fedrep
from .pushsum import dfedpgp, osgp
from .scaffold import scaffold, scaffold_p
from .server import fedavg, fedper
from .sharpness import dfedsalt, dfedsam, dfedsam_mgs, fedsam
from .widths import feddropout, fedrolex, heterofl

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
    "fedlmt": fedlmt,
    "pfedlmt": pfedlmt,
    "feddropout": feddropout,
    "heterofl": heterofl,
    "fedrolex": fedrolex,
    "fedhm": fedhm,
    "fedhmv2": fedhmv2,
    "flanc": flanc,
    "depthfl": depthfl,
    "progfed": progfed,
}


def known(name: str) -> bool:
    """Whether this is one of these methods; ``-`` and ``_`` are the same."""
    return name.replace("_", "-") in BUILDERS


def builder(name: str) -> Callable[..., Algorithm]:
    """The builder of that name; ``-`` and ``_`` are the same.

    ``module:function`` names a function of your own that returns an ``Algorithm``.

    >>> builder("dfedalt") is dfedalt
    True
    """
    if is_own(name):
        return own.builder(name)
    if not known(name):
        raise unknown("method", name, BUILDERS)
    return BUILDERS[name.replace("_", "-")]


def build(name: str, **settings: Any) -> Algorithm:
    """The method of that name with these settings.

    >>> build("fedavg", lr=0.05).settings["lr"]
    0.05
    """
    return builder(name)(**settings)


def again(name: str, trusted: Collection[str] = (), **settings: Any) -> Algorithm:
    """The method that a file names: one of these, or code of one's own that the person has typed as well."""
    if not known(name) and name not in trusted:
        raise unknown("method", name, BUILDERS)
    return build(name, **settings)


__all__ = [
    "BUILDERS",
    "Algorithm",
    "again",
    "build",
    "builder",
    "depthfl",
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
    "feddropout",
    "fedhm",
    "fedhmv2",
    "fedlmt",
    "fedper",
    "fedrep",
    "fedrod",
    "fedrolex",
    "fedsam",
    "flanc",
    "heterofl",
    "known",
    "local",
    "osgp",
    "pfedlmt",
    "progfed",
    "scaffold",
    "scaffold_p",
]
