"""pandas, which is an extra: what it shows is to be had without it."""

import warnings
from importlib.util import find_spec
from typing import Any

from .errors import UserError


def frames(instead: str) -> Any:
    """Return pandas; ``instead``: what has the same numbers without it."""
    try:
        import pandas
    except ImportError as error:
        raise UserError(f"a frame needs pandas: pip install 'coterie[tables]', or take {instead}") from error
    return pandas


def warn_without_frames(instead: str) -> None:
    """Warn before anything is trained that there will be no frames."""
    if find_spec("pandas") is None:
        said = f"pandas is not installed, so {instead}; pip install 'coterie[tables]' is for frames"
        warnings.warn(said, UserWarning, stacklevel=4)
