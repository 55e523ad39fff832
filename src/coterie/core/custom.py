"""Code of one's own, typed as ``module:function`` or ``./file.py:function`` in a command.

Only a name that a person types is imported. A configuration may come from anybody, so code that it names is not
imported unless the person types that name, too (``--trust``).
"""

import re
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import UserError, unknown

LONGEST = 100  # characters of a file name that are a method's
CODE = ("topology", "optimizer", "personal_optimizer", "lr_schedule")  # settings that may name code of one's own
_NAME = re.compile(r"([^\W\d]\w*(\.[^\W\d]\w*)*|[^:,]*\.py):[^\W\d]\w*")


def is_own(name: str) -> bool:
    """Return whether a text names a function of one's own.

    >>> [is_own(name) for name in ("mine:fedfoo", "lab.methods:fedfoo", "./lab/mine.py:fedfoo", "fedavg", "random:5")]
    [True, True, True, False, False]
    """
    return _NAME.fullmatch(name) is not None


def own_name(text: object) -> str | None:
    """Return the function of one's own that a typed text with options names, None where it names none.

    >>> own_name("mine:teams,size=3"), own_name("random:5"), own_name(None)
    ('mine:teams', None, None)
    """
    name = text.split(",")[0].strip() if isinstance(text, str) else ""
    return name if is_own(name) else None


def display_name(method: str) -> str:
    """Return a method's name as tables have it: small letters, and ``-`` for ``_``, except in names of Python.

    >>> display_name("DFedSAM_MGS"), display_name("mine:fed_foo")
    ('dfedsam-mgs', 'mine:fed_foo')
    """
    return method if is_own(method) else method.replace("_", "-").lower()


def folder_name(method: str) -> str:
    """Return what a method is called as a part of a file name, which has no colon on Windows and no slash anywhere.

    >>> folder_name("mine:fedfoo"), folder_name("./lab/mine.py:fedfoo"), folder_name("FedPer (lr 0.1)")
    ('mine.fedfoo', 'lab_mine.py.fedfoo', 'FedPer_lr_0.1_')
    """
    name = re.sub(r"[^\w.=@+-]+", "_", method.replace(":", ".")).lstrip("._")
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{_digest(method)}"


def folder_names(methods: Sequence[str]) -> list[str]:
    """Return what each of several methods is called in file names, no two of them alike.

    >>> folder_names(["local", "FedPer (1)", "FedPer [1]"])
    ['local', 'FedPer_1_-6ec02241', 'FedPer_1_-6a48176b']
    """
    names = [folder_name(method) for method in methods]
    return [n if names.count(n) == 1 else f"{n}-{_digest(m)}" for n, m in zip(names, methods, strict=True)]


def _digest(method: str) -> str:
    """Return what tells a method from others whose names look alike in a file name."""
    return blake2b(method.encode(), digest_size=4).hexdigest()


def import_function(name: str, kind: str) -> Callable[..., Any]:
    """Return the function (or class) of that name, from its file, or wherever Python finds the module.

    A file is imported as the module of its name, as if it had been looked for in its folder.
    """
    module, _, function = name.partition(":")
    folder = Path.cwd()
    if module.endswith(".py"):
        file = Path(module).expanduser()
        if not file.is_file():
            raise UserError(f"there is no file {module} for the {kind} {name}: name one that is there")
        folder, module = file.absolute().parent, file.stem
    home = _imported(module, name, kind, folder)
    if folder != Path.cwd():
        _check_hidden(home, module, folder)
    found = getattr(home, function, None)
    if found is None:
        _check_hidden(home, module, folder)
        defined = [k for k, v in vars(home).items() if callable(v) and getattr(v, "__module__", None) == module]
        if not defined:
            raise UserError(f"module {module!r} has no function: write {function} in it, or name another module")
        raise unknown(f"function of {module}", function, defined)
    if not callable(found):
        raise UserError(f"{name} is a {type(found).__name__}: name a function that returns the {kind}")
    return found  # type: ignore[no-any-return]


def _check_hidden(home: ModuleType, module: str, folder: Path) -> None:
    """Refuse a file of a folder whose name another module has taken."""
    file = folder.joinpath(*module.split(".")).with_suffix(".py")
    if file.exists() and not (home.__file__ and file.samefile(home.__file__)):
        where = "this folder" if folder == Path.cwd() else str(folder)
        raise UserError(f"Python has another module {module!r} than {file.name} of {where}: rename your file")


def _imported(module: str, name: str, kind: str, folder: Path) -> ModuleType:
    here = str(folder)
    if here not in sys.path:
        sys.path.append(here)  # last: a file of the folder must not hide a library's
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from error  # the missing module is one that this module imports
        raise UserError(
            f"there is no module {module!r} for the {kind} {name}: go to the folder of "
            f"{module.replace('.', '/')}.py, or install it"
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(module, error) from error


def _broken(module: str, error: BaseException) -> UserError:
    """Return the error for a module that cannot be imported, with its last line that led to the mistake."""
    frames = traceback.extract_tb(error.__traceback__)
    file, line = next(
        ((f.filename, f.lineno) for f in reversed(frames) if Path(f.filename).stem == module.rpartition(".")[2]),
        (getattr(error, "filename", None) or frames[-1].filename, getattr(error, "lineno", frames[-1].lineno)),
    )
    where = f"{Path(file).name}, line {line}"
    said = " ".join(str(getattr(error, "msg", error)).split())
    return UserError(f"module {module!r} cannot be imported ({type(error).__name__}: {said}; {where}): mend it first")


def own_code(config: Mapping[str, Any]) -> list[str]:
    """Return the functions of one's own that a configuration names.

    >>> own_code({"method": "mine:fedfoo", "model": {"module": "mine:net", "classes": 10}})
    ['mine:fedfoo', 'mine:net']
    """
    metrics = [dict(metric).get("name") for metric in config.get("metrics") or ()]
    settings, data = dict(config.get("settings") or {}), dict(config.get("data") or {})
    texts = *(settings.get(name) for name in CODE), data.get("partition"), data.get("source")
    typed = (own_name(text) for text in texts)
    named = config.get("method"), dict(config.get("model") or {}).get("module"), *metrics, *typed
    return [name for name in named if isinstance(name, str) and is_own(name)]


def trust_options(config: Mapping[str, Any]) -> list[str]:
    """Return the words that must be typed beside such a configuration.

    >>> trust_options({"method": "mine:fedfoo", "model": {"name": "mlp"}})
    ['--trust', 'mine:fedfoo']
    """
    return trust_words(own_code(config))


def trust_words(named: Sequence[str]) -> list[str]:
    """Return the words that allow code of one's own that a file names."""
    return [word for name in dict.fromkeys(named) for word in ("--trust", name)]


def check_trusted(config: Mapping[str, Any], trusted: Collection[str]) -> None:
    """Refuse to run code that only a configuration names, and trust that nothing needs."""
    check_named(own_code(config), trusted, "this configuration")


def check_named(named: Sequence[str], trusted: Collection[str], file: str) -> None:
    """Refuse to run code that only a file names, and trust that nothing needs; ``file``: what names the code."""
    if not set(named) <= set(trusted):
        raise UserError(
            f"{file} would run {' and '.join(dict.fromkeys(named))}, and a file does not decide what code runs here: "
            f"if you know that code, add {shlex.join(trust_words(named))}"
        )
    for name in trusted:
        if name not in named:
            raise UserError(f"--trust {name} is not what {file} runs: leave it out")
