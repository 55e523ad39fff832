"""What goes wrong in a way the person at the keyboard can mend.

Every message is one sentence that names the fix. The command line prints it without a traceback and exits with 2;
in Python it is an ordinary ``ValueError``.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """The request cannot be carried out as it stands; the message says what to change."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error that offers the nearest names, or all of them when none is near.

    >>> print(unknown("method", "dfedatl", ["dfedalt", "local"]))
    unknown method 'dfedatl': did you mean dfedalt?
    >>> print(unknown("topology", "moebius", ["ring", "full"]))
    unknown topology 'moebius': choose one of full, ring
    """
    return UserError(f"unknown {kind} {name!r}: {nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The names that somebody may have meant, or all there are when none is near."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(names)}"
