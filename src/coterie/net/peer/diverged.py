"""What is said where a peer's loss is not finite any more: the cause may be what others have sent."""

from collections.abc import Collection

from ...algorithms.base import Round, Trained
from ...core.errors import DivergedError


def check_finite(trained: Trained, r: Round, mixed: bool, heard: Collection[str]) -> None:
    """Stop a peer that diverges; ``mixed``: whether it may have models of others, ``heard``: whose it had last."""
    try:
        trained.check_finite(r)
    except DivergedError as error:
        if not mixed:
            raise
        raise DivergedError(after_mix(str(error), heard)) from error


def after_mix(text: str, heard: Collection[str]) -> str:
    """Return what is said of a loss that is not finite after a mix.

    >>> after_mix("the loss of beta is not finite any more in round 3: lower lr", {"gamma", "alpha"})
    'the loss of beta is not finite any more in round 3, after models of alpha, gamma were mixed in: if one of those
    was wrong, set robust or revoke its sender, and begin with an empty folder; if not, lower lr'
    """
    what, _, fix = text.partition(": ")
    mixed = f"after models of {', '.join(sorted(heard)) or 'others'} were mixed in"
    wrong = "if one of those was wrong, set robust or revoke its sender, and begin with an empty folder"
    return f"{what}, {mixed}: {wrong}; if not, {fix}"
