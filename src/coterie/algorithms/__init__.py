"""The methods. Each is a value composed from the parts; this table, one line per method, is all the registration."""
# ruff: noqa: I001 - the order of the table is the one in which people read about the methods

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ..core.arguments import checked
from ..core.errors import UserError, did_you_mean, unknown
from ..core.custom import CODE, check_named, display_name, is_own, own_name
from ..core.settings_file import SettingsFile, read_settings
from .custom import custom_builder
from .settings import file_settings
from .base import Algorithm as Algorithm
from .local import local as local
from .pooled import pooled as pooled
from .fedavg import fedavg as fedavg
from .fedavg_ft import fedavg_ft as fedavg_ft
from .fedprox import fedprox as fedprox
from .fedper import fedper as fedper
from .dpsgd import dpsgd as dpsgd
from .dfedavg import dfedavg as dfedavg
from .dfedavgm import dfedavgm as dfedavgm
from .dfedalt import dfedalt as dfedalt
from .dfedsalt import dfedsalt as dfedsalt
from .dfedpgp import dfedpgp as dfedpgp
from .dfedsam import dfedsam as dfedsam
from .dfedsam_mgs import dfedsam_mgs as dfedsam_mgs
from .fedavg_p import fedavg_p as fedavg_p
from .scaffold_p import scaffold_p as scaffold_p
from .fedsam import fedsam as fedsam
from .scaffold import scaffold as scaffold
from .fedrep import fedrep as fedrep
from .fedbabu import fedbabu as fedbabu
from .ditto import ditto as ditto
from .pfedme import pfedme as pfedme
from .apfl import apfl as apfl
from .fedamp import fedamp as fedamp
from .fedrod import fedrod as fedrod
from .dfedavgm_p import dfedavgm_p as dfedavgm_p
from .osgp import osgp as osgp
from .dispfl import dispfl as dispfl
from .fedlmt import fedlmt as fedlmt
from .pfedlmt import pfedlmt as pfedlmt
from .feddropout import feddropout as feddropout
from .heterofl import heterofl as heterofl
from .fedrolex import fedrolex as fedrolex
from .fedhm import fedhm as fedhm
from .fedhmv2 import fedhmv2 as fedhmv2
from .flanc import flanc as flanc
from .depthfl import depthfl as depthfl
from .progfed import progfed as progfed

BUILDERS: dict[str, Callable[..., Algorithm]] = {
    f.method: f for f in list(globals().values()) if isinstance(getattr(f, "method", None), str)
}


def __dir__() -> list[str]:
    """List the methods and the functions that build one, without modules."""
    return [
        "Algorithm",
        "BUILDERS",
        "build",
        "builder",
        "is_method",
        "load_settings",
        "rebuild",
        *(f.__name__ for f in BUILDERS.values()),
    ]


def is_method(name: str) -> bool:
    """Tell whether this is one of these methods; case, ``-`` and ``_`` do not matter."""
    return display_name(name) in BUILDERS


@checked("function")
def builder(name: str) -> Callable[..., Algorithm]:
    """Return the builder of that name; case, ``-`` and ``_`` do not matter.

    ``module:function`` names a function of your own that returns an ``Algorithm``.

    >>> builder("DFedAlt") is dfedalt
    True
    """
    if is_own(name):
        return custom_builder(name)
    if not is_method(name):
        raise unknown("method", name, BUILDERS)
    return BUILDERS[display_name(name)]


@checked("function")
def build(name: str, **settings: Any) -> Algorithm:
    """Build the method of that name with these settings.

    >>> build("fedavg", lr=0.05).settings["lr"]
    0.05
    """
    return builder(name)(**settings)


@checked("function")
def load_settings(path: str | Path, trust: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the settings in a TOML file, one table per method; what no method could have is refused.

    ``trust``: the code that the file names and that may run here, such as ["mine:teams"] of ``topology``.

    ``build(name, **load_settings("settings.toml")[name])`` is the method with them. The table of a method of your own
    is returned as it is written, because a file runs no code.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.toml").write_text("[fedavg]\\nlr = 0.05\\nclip = 'none'")
    ...     load_settings(Path(folder, "a.toml"))
    {'fedavg': {'lr': 0.05, 'clip': None}}
    """
    return settings_in(read_settings(path), trusted=trust)


def settings_in(
    file: SettingsFile, own: Collection[str] = (), trusted: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return what a file sets, by method, all of it checked; ``own``: methods of one's own that may be imported.

    ``trusted``: the code that the values may name.
    """
    check_named(file.own_code, trusted, str(file.path))
    for name in file.tables:
        if not is_method(name) and not is_own(name):
            near = did_you_mean(name, BUILDERS) or "see `coterie list` for the methods there are"
            raise UserError(f"{file.path}, [{name}]: there is no method of that name: {near}")
    unchecked = {name: dict(table) for name, table in file.tables.items() if is_own(name) and name not in own}
    return unchecked | file_settings(file, BUILDERS | {name: builder(name) for name in own})


def rebuild(name: str, trusted: Collection[str] = (), /, **settings: Any) -> Algorithm:
    """Build the method that a file names: one of these, or code of one's own that the person has typed as well."""
    if not is_method(name) and name not in trusted:
        raise unknown("method", name, BUILDERS)
    for key in CODE:
        own = own_name(settings.get(key))
        if own is not None and own not in trusted:
            raise UserError(
                f"the {key} {own} is code of somebody's own, and a file does not decide what code runs here: if you "
                f"know that code, add --trust {own}"
            )
    return build(name, **settings)
