"""A command in a file that a person writes, TOML: ``coterie run exp.toml``, ``coterie compare exp.toml``.

Its keys are the options of the command, its tables settings of methods. It becomes the words that would be typed, so
that nothing is checked twice; what is typed beside it comes first.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ... import algorithms, data
from ...algorithms.settings import settings_of
from ...algorithms.variation import variation
from ...core.annotations import shown
from ...core.custom import display_name, own_name
from ...core.errors import UserError, did_you_mean
from ...core.settings_file import read_toml
from ...core.spec import parse, spelled

SUFFIX = ".toml"
SET, SWEEP = "set", "sweep"  # tables that are for all methods
TYPED = (SET, "help", "resume", "trust")  # options that a file has not, or has as a table


@dataclass(frozen=True)
class ExperimentFile:
    """What a file says, for one command."""

    path: Path
    content: Mapping[str, Any]
    options: Mapping[str, Any]  # the command's own, by the key that names each

    @classmethod
    def read(cls, path: str, params: Sequence[Any]) -> "ExperimentFile":
        """Read a file for a command with these parameters; refuse keys that it has no use for."""
        options = {p.opts[0].lstrip("-"): p for p in params if p.param_type_name == "option"}
        file = cls(Path(path), {k.replace("_", "-"): v for k, v in read_toml(Path(path)).items()}, options)
        if not file.methods:
            raise UserError(f'{path} names no method: write methods = ["local", "dfedalt"], or method = "dfedalt"')
        if any(p.name == "method" for p in params) and (len(file.methods) > 1 or SWEEP in file.content):
            raise UserError(f"{path} is for several runs, and this command makes one: type coterie compare {path}")
        for key, value in file.content.items():
            file._check_key(key, isinstance(value, dict))
        return file

    def words(self, typed: Sequence[str]) -> list[str]:
        """Return the words that the file stands for, without what is ``typed`` beside it."""
        named = {word.partition("=")[0] for word in typed if word.startswith("--")}
        kept = {_typed_setting(word) for word in typed if "=" in word}
        words = [*self._methods(kept)]
        for key, value in self.content.items():
            if not isinstance(value, dict) and key not in ("method", "methods") and f"--{key}" not in named:
                words += self._option(key, value)
        for method, key, text in self._settings():
            if not kept & {(method, key), ("", key)}:
                words += [f"--{SET}", f"{method}.{key}={text}" if method else f"{key}={text}"]
        return words

    @property
    def methods(self) -> list[str]:
        """The methods as they are written."""
        if "method" in self.content and "methods" in self.content:
            raise UserError(f"{self.path} has both method and methods: keep one of them")
        found = self.content.get("methods", self.content.get("method", []))
        return [variation(self._text("methods", one)).typed for one in (found if isinstance(found, list) else [found])]

    def _methods(self, kept: Set[tuple[str, str]]) -> Iterator[str]:
        """Yield the methods, each with all values of a sweep but those of settings that are ``kept`` as typed."""
        for method in self.methods:
            name, own = variation(method)
            known = {k for k in settings_of(algorithms.builder(name)) if not kept & {(name, k), ("", k)}}
            grid = {key: values for key, values in self._sweep(name).items() if key in known}
            for values in product(*grid.values()):
                settings = [*own, *(f"{key}={value}" for key, value in zip(grid, values, strict=True))]
                yield f"{name}@{','.join(settings)}" if settings else name

    def _sweep(self, method: str) -> dict[str, list[str]]:
        """Return the values of every setting that a sweep goes through for a method."""
        table = self.content.get(SWEEP, {})
        grid = {k: v for k, v in table.items() if not isinstance(v, dict)}
        for name, own in table.items():
            if isinstance(own, dict):
                self._check_method(f"{SWEEP}.{name}", name)
                grid |= own if variation(name).method == method else {}
        for key, values in grid.items():
            if not isinstance(values, list) or not values:
                raise UserError(f"{self.path}, [{SWEEP}]: {key}={shown(values)} is no list: write {key} = [0.01, 0.1]")
        return {key: [self._text(key, value) for value in values] for key, values in grid.items()}

    def _settings(self) -> Iterator[tuple[str, str, str]]:
        """Yield the method, which is empty for all of them, the key and the value of what stands behind --set."""
        for name, table in self.content.items():
            if isinstance(table, dict) and name != SWEEP:
                method = "" if name == SET else variation(name).method
                yield from ((method, key, self._text(key, value)) for key, value in table.items())

    def _option(self, key: str, value: Any) -> Iterator[str]:
        """Yield the words of an option."""
        if self.options[key].is_flag:
            if not isinstance(value, bool):
                raise UserError(f"{self.path}: {key}={shown(value)} is no switch: write {key} = true")
            yield from [f"--{key}"] if value else []
            return
        for one in value if isinstance(value, list) else [value]:
            yield from (f"--{key}", self._text(key, one))

    def _text(self, key: str, value: Any) -> str:
        """Return a value as it is typed; refuse code of one's own, which a file does not choose."""
        text = ",".join(self._text(key, v) for v in value) if isinstance(value, list) else str(value)
        text = text.lower() if isinstance(value, bool) else text
        if isinstance(value, dict) or not text.strip():
            raise UserError(f"{self.path}: {key}={shown(value)} cannot be typed: give a number or a string")
        name = own_name(text) or own_name(text.partition("@")[0])  # of a method, with settings behind it
        built_in = key == "data" and parse(spelled(text, data.SOURCES)).name in data.SOURCES  # as csv:patients is
        if isinstance(value, str) and name is not None and not built_in:
            raise UserError(
                f"{self.path} names {name}, and a file does not decide what code runs here: type it beside the file"
            )
        return text

    def _check_key(self, key: str, is_table: bool) -> None:
        """Refuse a key or a table that means nothing here."""
        if is_table:
            return None if key in (SET, SWEEP) else self._check_method(key, key)
        known = [*(k for k in self.options if k not in TYPED), "method", "methods"]
        if key not in known:
            near = did_you_mean(key, known) or f"it may have {', '.join(sorted(known))}"
            raise UserError(f"{self.path} has {key!r}, which is no option here: {near}")
        return None

    def _check_method(self, table: str, name: str) -> None:
        """Refuse the table of a method that does not take part."""
        if variation(name).method not in {variation(m).method for m in self.methods}:
            near = did_you_mean(name, [SET, SWEEP, *self.methods]) or "name it in methods, or leave the table out"
            raise UserError(f"{self.path}, [{table}] is for none of its methods, {', '.join(self.methods)}: {near}")


def _typed_setting(word: str) -> tuple[str, str]:
    """Return the method, which is empty for all of them, and the key that a typed word sets."""
    method, _, key = word.removeprefix(f"--{SET}=").partition("=")[0].strip().rpartition(".")
    return display_name(method), key


def expanded(args: Sequence[str], params: Sequence[Any]) -> list[str]:
    """Return the words of a command with a file of its own replaced by what it says."""
    takes = {name for p in params if p.param_type_name == "option" and not p.is_flag for name in p.opts}
    places = [i for i, word in enumerate(args) if word.endswith(SUFFIX) and (not i or args[i - 1] not in takes)]
    places = [i for i in places if not args[i].startswith("-")]
    if not places:
        return list(args)
    if len(places) > 1:
        raise UserError(f"{args[places[0]]} and {args[places[1]]} both say what to train: name one of them")
    rest = [word for i, word in enumerate(args) if i not in places]
    return [*ExperimentFile.read(args[places[0]], params).words(rest), *rest]
