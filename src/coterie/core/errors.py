"""Errors that the person at the keyboard can mend.

Every message is one sentence that names the fix. The command line prints it without a traceback and exits with 2;
in Python it is an ordinary ``ValueError``.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

LONGEST = 100  # characters of a name that a sentence repeats


class UserError(ValueError):
    """A request that cannot be carried out as it stands; the message says what to change."""


class DivergedError(UserError):
    """A loss or a model that is not finite any more in some round."""


class FolderError(UserError):
    """A folder that cannot be written or read; the message names it."""


class DamagedFileError(FolderError):
    """A file of a run that is not as a run writes it."""

    def __init__(self, where: object, why: str) -> None:
        self.found = f"{where} is damaged, because {why}"
        super().__init__(f"{self.found}: restore the file, or start the run again")


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return an error that offers the nearest names, or all of them when none is near.

    >>> print(unknown("method", "dfedatl", ["dfedalt", "local"]))
    unknown method 'dfedatl': did you mean dfedalt?
    >>> print(unknown("topology", "moebius", ["ring", "full"]))
    unknown topology 'moebius': choose one of full, ring
    """
    names = sorted(known)
    shown = name if len(name) <= LONGEST else f"{name[:20]}..."
    return UserError(f"unknown {kind} {shown!r}: {did_you_mean(name, names) or 'choose one of ' + ', '.join(names)}")


def in_one_line(text: str) -> str:
    """Write a text in one line, with whatever a terminal would act on spelled out.

    >>> in_one_line("a\\nb \\x1b[31mred")
    'a b \\\\x1b[31mred'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.splitlines()))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the names that somebody may have meant, or nothing when none is near."""
    near = get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""


def no_option(subject: str, key: str, known: Iterable[str]) -> UserError:
    """Return the error for an option that something does not have."""
    near = did_you_mean(key, known)
    return UserError(
        f"{subject} has no option {key!r}{near and f' ({near})'}: it takes {', '.join(known) or 'no options'}"
    )


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Say where it happened, in a note below whatever is raised meanwhile; the error itself passes as it is.

    A ``UserError`` has none: its sentence names what is to be mended.

    >>> try:
    ...     with noted("It happened in round 3."):
    ...         raise KeyError("mine")
    ... except KeyError as error:
    ...     error.__notes__
    ['It happened in round 3.']
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError):
            error.add_note(note)
        raise
