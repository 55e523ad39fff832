"""A command that trains, and what it answers to those who type an option as other programs have it."""

from collections.abc import Iterator, Sequence
from typing import Any

from ...core.errors import UserError
from .typed import Command


class TrainingCommand(Command):
    """A command that trains. Its help has the settings of the methods beside it, and a file may say what to train."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Answer what is no option here in a sentence that names what is, then parse."""
        known = {name for one in self.get_params(ctx) for name in (*one.opts, *one.secondary_opts)}
        for word, following in zip(args, (*args[1:], ""), strict=False):
            name, _, value = word.partition("=")
            if name.startswith("--") and len(name) > 2 and name not in known:
                _refuse(name, value or following)
        if "--help" in args and (named := list(_methods(args))):
            from ..show.methods import show_settings

            print(ctx.get_help())
            for method in named:
                show_settings(method)
            ctx.exit()
        takes_methods = any(p.param_type_name == "argument" and p.name in ("method", "methods") for p in self.params)
        if takes_methods and any(word.endswith(".toml") for word in args):
            from .experiment_file import expanded

            args = expanded(args, self.get_params(ctx))
        return super().parse_args(ctx, args)


def _refuse(name: str, value: str) -> None:
    """Refuse a setting of methods that is typed as an option."""
    from ...algorithms import BUILDERS
    from ...algorithms.settings import settings_of

    key = name[2:].replace("-", "_")
    if any(key in settings_of(builder) for builder in BUILDERS.values()):
        typed = "VALUE" if not value or value.startswith("-") else value
        raise UserError(f"there is no {name}: it is a setting of methods, so type --set {key}={typed}")


def _methods(words: Sequence[str]) -> Iterator[str]:
    """Yield the methods among the words; the value of an option that has the name of one is none."""
    from ...algorithms import is_method
    from ...core.custom import is_own

    for before, word in zip(("", *words), words, strict=False):
        if not before.startswith("-") and (is_method(word) or is_own(word)):
            yield word
