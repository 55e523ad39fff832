"""Whether a run that goes on is still the run that was begun."""

from typing import Any

from ..core.annotations import shown

# These may differ between a run and its continuation: they do not change what is computed. The fingerprint of the data
# says more than the shape of a sample, which older folders do not have.
_FREE = ("versions", "engine", "engine_reason", "machine", "sample_shape")


def differences(there: Any, here: Any, at: str = "") -> list[str]:
    """Return where two configurations differ, as ``key: value there, value here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = sorted((there.keys() | here.keys()) - set(_FREE))
        return [d for k in keys for d in differences(there.get(k), here.get(k), f"{at}.{k}".lstrip("."))]
    return [] if there == here else [f"{at}: {shown(there)} there, {shown(here)} here"]
