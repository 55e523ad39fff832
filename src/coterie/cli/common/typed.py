"""What is typed, checked before a command begins: nothing empty, texts in UTF-8, paths that a system takes."""

import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ...core.errors import UserError
from ...core.files import path_problem

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_EMPTY = re.compile(r"(--[a-z-]+)=\s*")


class Command(TyperCommand):
    """A command whose help shows arguments in capital letters, and no value behind an option that takes none."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with what the help writes behind their names."""
        found: list[Any] = super().get_params(ctx)
        for one in found:
            if one.param_type_name == "argument":
                one.metavar = one.metavar or one.name.upper()
            elif one.is_flag:
                one.metavar = ""
        return found

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the line of the usage: braces would look like a choice."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class CommandGroup(TyperGroup):
    """Commands under one name, whose help shows no value behind an option that takes none."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with what the help writes behind their names."""
        found: list[Any] = super().get_params(ctx)
        for one in found:
            one.metavar = ""
        return found


class Commands(typer.Typer):
    """Commands whose arguments are checked, all in the same words."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=CommandGroup, **settings)

    def command(  # type: ignore[override]  # Typer's own names all settings
        self, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a function as ``typer.Typer.command`` does, with its arguments checked."""
        register = super().command(name, **{"cls": Command, **settings})

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            register(_checked(function))
            return function

        return decorate


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(**typed: Any) -> Any:
        for value in typed.values():
            for one in value if isinstance(value, list) else (value,):
                check_typed(one)
        try:
            return function(**typed)
        except KeyboardInterrupt:  # where nothing is to be continued; Typer's own status would be that of a defect
            print("\ninterrupted", file=sys.stderr)
            sys.exit(INTERRUPTED)

    return called


def check_typed(value: Any) -> None:
    """Refuse a text that is no Unicode, and a path that no system takes."""
    if isinstance(value, str | Path):
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise UserError(f"{str(value)!r} is no text in UTF-8: type it in that encoding, or rename it") from None
    if isinstance(value, Path) and (problem := path_problem(value)):
        raise UserError(f"{problem}: name another file or folder")


def refuse_empty(words: Sequence[str]) -> None:
    """Refuse an empty text anywhere in a command: it would stand for the default, or for this folder."""
    for before, word in zip(("", *words), words, strict=False):
        empty = _EMPTY.fullmatch(word)
        if empty or not word.strip():
            option = empty[1] if empty else before
            where = f" behind {option}" if option.startswith("-") else ""
            raise UserError(f"there is an empty text{where}: give it a value, or leave it out")
