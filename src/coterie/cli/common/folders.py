"""The folder that a command makes several runs in, and the command itself."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import UserError
from ...study.folders import check_free, fresh_folder
from .options import TrainingOptions

NOT_REPEATED = ("--out", "--format", "--for")  # the folder exists by then; the others change no result
NOT_REPEATED_FLAGS = ("--resume", "--quiet", "-q")


def folder_of_several(options: TrainingOptions, name: str, what: str) -> Path:
    """Return the folder for the runs of one command; refuse one that exists, unless it is to be continued."""
    if options.resume and options.out is None:
        raise UserError(f"--resume needs to know which {what}: add --out FOLDER")
    folder = options.out or fresh_folder(name)
    if not options.resume:
        check_free(folder)
    return folder


def typed_command() -> str:
    """Return the command as it was typed, without what is of no use to repeat it."""
    return shlex.join(["coterie", *repeating(sys.argv[1:])])


def repeating(typed: Sequence[str]) -> list[str]:
    """Return the words that do the same once more, in a folder of its own.

    >>> repeating(["compare", "local", "fedavg", "--out", "a", "--resume", "--seeds", "2"])
    ['compare', 'local', 'fedavg', '--seeds', '2']
    """
    words, given = [], iter(typed)
    for word in given:
        if word in NOT_REPEATED:
            next(given, None)
        elif word not in NOT_REPEATED_FLAGS and not word.startswith(tuple(f"{option}=" for option in NOT_REPEATED)):
            words.append(word)
    return words
