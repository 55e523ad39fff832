"""The options of a member's run, and what its own model may be chosen by."""

from typing import TYPE_CHECKING

from ...core.errors import UserError
from ...measure.selection import BEST_TEST, by_validation, rule_of
from ...training.settings import RunSettings, options

if TYPE_CHECKING:
    from .config import PeerConfig


def run_settings(config: "PeerConfig") -> RunSettings:
    """Return the options of a member's run: those that all members have agreed on, and its own."""
    shared, own = config.federation, {f.name: vars(config.peer).get(f.name, f.default) for f in options()}
    return RunSettings(
        **{**own, "rounds": shared.rounds, "seed": shared.seed, "loss": shared.loss, "metric": config.metric}
    )


def check_kept(config: "PeerConfig") -> None:
    """Refuse a choice without samples for it, or by test samples."""
    settings, where = run_settings(config), f"{config.path}, [peer]"
    if rule_of(settings.saved) == BEST_TEST:
        raise UserError(
            f"{where}: select={BEST_TEST} chooses the model by the samples that measure it, and it would be deployed: "
            'write validation = 0.2 and select = "best-validation"'
        )
    for key in by_validation(settings.saved) if not settings.validation else ():
        raise UserError(f"{where}: {key} looks at validation samples, and there are none: write validation = 0.2")
