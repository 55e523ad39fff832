"""Options of commands as fields of dataclasses: each is declared once, and a command gets all of them as one value."""

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args

import typer

from ...core.annotations import MOST, is_list, plain_types
from ...training.settings import options


def option(
    help: str,
    *names: str,
    default: Any = None,
    usual: Any = None,
    shows: str | None = None,
    read: Callable[[str], Any] | None = None,
    **more: Any,
) -> Any:
    """Return a field with its help; ``names``: how it is typed, where its own name and a value is not all.

    ``usual``: what holds where nothing is typed, which ``TrainingOptions.given`` returns and the help shows; ``shows``:
    the words for it there, where it is no single value. ``read`` makes the value of the text that was typed, as soon as
    the command begins.
    """
    shown = shows or ("" if usual is None else f"{usual:g}" if isinstance(usual, float) else str(usual))
    made = typer.Option(*names, help=help, show_default=shown or False, **more)
    return field(default=default, metadata={"option": made, "read": read, "usual": usual})


def typed_options(name: str, names: Collection[str], **shows: str) -> type:
    """Return a dataclass of options of a run as they are typed: None, or an empty list, where nothing was said.

    ``shows``: defaults that depend on the command, in the words of the help.
    """
    return make_dataclass(
        name, [_typed_option(f, shows.get(f.name)) for f in options() if f.name in names], frozen=True
    )


def _typed_option(f: "Field[Any]", shows: str | None) -> tuple[str, Any, Any]:
    """Return the name, the type and the field of an option as it is typed."""
    several, kind = is_list(f.type) or "list[" in str(f.type), _typed_as(f.type)
    limits: Any = {"min": 1, "max": MOST} if kind is int and f.name != "seed" else {}
    shows = shows or f.metadata["shows"]
    usual = None if shows or f.default in (MISSING, None, ()) else f.default
    made = option(f.metadata["help"], usual=usual, shows=shows, **limits)
    if several:
        return f.name, list[str], field(default_factory=list, metadata=made.metadata)
    return f.name, kind | None, made


def _typed_as(hint: Any) -> type:
    """Return the type that Typer reads a text as; a name that is not a choice is refused later, by the run."""
    plain = () if isinstance(hint, str) else plain_types(hint)
    return float if float in plain else int if int in plain else str


def flag(name: str) -> str:
    """Return the option of a field as it is typed.

    >>> flag("evaluate_every"), flag("for_")
    ('--evaluate-every', '--for')
    """
    return "--" + name.rstrip("_").replace("_", "-")


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per field of each dataclass among its parameters, and hand it those dataclasses."""
    parameters = signature(command).parameters
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters.values() if is_dataclass(p.annotation)}

    @wraps(command)
    def called(**typed: Any) -> None:
        values = {n: kind(**{f.name: _value(f, typed.pop(f.name)) for f in fields(kind)}) for n, kind in groups.items()}
        command(**typed, **values)

    each = (
        [_parameter(f, groups[n]) for f in _in_order(groups[n])] if n in groups else [p] for n, p in parameters.items()
    )
    named = [p.replace(kind=Parameter.KEYWORD_ONLY) for some in each for p in some]
    called.__signature__ = Signature(named)  # type: ignore[attr-defined]  # which Typer reads
    return called


def _in_order(kind: Any) -> "list[Field[Any]]":
    """Return the options as the help lists them: first what a command has beside the options of a run."""
    of_runs = {f.name for f in options("typed")}
    return sorted(fields(kind), key=lambda f: f.name in of_runs)


def _value(f: "Field[Any]", typed: Any) -> Any:
    read = f.metadata.get("read")
    return typed if read is None or typed is None else read(typed)


def _parameter(f: "Field[Any]", kind: Any) -> Parameter:
    default = f.default if f.default_factory is MISSING else f.default_factory()
    typed = str | None if f.metadata.get("read") else f.type
    typed, made = (typed, f.metadata["option"]) if "option" in f.metadata else get_args(typed)
    made = copy(made)
    made.show_default = getattr(kind, "shows", {}).get(f.name, made.show_default)
    return Parameter(f.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[typed, made])
