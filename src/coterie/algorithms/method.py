"""A method is a function from a problem to a program; its signature says which settings it has, and their ranges.

@method(Training(momentum=0.0))
def fedfoo(p: Problem, t: Training, *, mu: Rate = 0.1, **options: Unpack[Options]) -> Program[Server]:
    phase = Phase(p.parameters, t.amount, t.lr, proximal(mu))
    return federated(p, [phase], t, p.names)

fedfoo(mu=0.5, lr=0.01)     # an Algorithm with complete settings, checked
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, cast, get_type_hints

from ..core.errors import UserError, unknown
from ..models.model import Model
from .base import Algorithm, Problem, Program, unchanged
from .facts import Facts, Presets
from .options import Options, Training, check_hint

S = ParamSpec("S")
Settings = dict[str, Any]


def method(
    training: Training | Callable[..., Training] = Training(),  # noqa: B008 - a value
    *,
    check: Callable[..., None] | None = None,
    complete: Callable[..., Mapping[str, Any]] | None = None,
    adapt: Callable[..., Model] | None = None,
    presets: Presets | None = None,
    staged: bool = False,
    theorem: str | None = None,
    form: str | None = None,
) -> Callable[[Callable[Concatenate[Problem, Training, S], Program[Any]]], Callable[S, Algorithm]]:
    """Makes a method of a function ``(p, t, *, its settings, **options) -> Program``, which is called to bind it.

    What people call takes the settings alone and gives an ``Algorithm`` named as the function, with ``-`` for ``_``.
    Choices (``Literal``) and ranges (``Annotated[float, Range(0, 1)]``) are those of the annotations. ``t`` is
    ``training`` with the options of the call.

    Args:
        training: The method's own defaults of the common options; a function where they depend on its settings.
        check: Refuses settings that do not go together, once each is right by itself.
        complete: Gives settings that follow from others, as a dictionary.
        adapt: Makes the module that the method trains of the one it is given: its first argument.
        presets: Settings for the set-ups of ``coterie.cli.presets`` that the common ones do not suit, by kind: "small",
            "text" (on top of those), "papers".
        staged: Whether it trains only networks that are built in stages, so that the commands choose one.
        theorem: The theorem of ``coterie.theory`` that speaks of it, by its name there.
        form: The smaller form of a model that its clients hold, by its name in ``coterie capacity``.

    Each of the functions takes the settings it looks at as arguments of their names; ``t`` has the options.
    """

    def made(f: Callable[Concatenate[Problem, Training, S], Program[Any]]) -> Callable[S, Algorithm]:
        name = f.__name__.replace("_", "-")
        signature = inspect.signature(f)
        defaults = {k: v.default for k, v in signature.parameters.items() if v.kind is v.KEYWORD_ONLY}

        def build(**given: Any) -> Algorithm:
            hints = get_type_hints(f, include_extras=True)
            for k in sorted(given.keys() - defaults.keys() - set(Training._fields)):
                raise unknown(f"setting of {name}", k, [*defaults, *Training._fields])
            own = steps_or_epochs({k: given.get(k, default) for k, default in defaults.items()}, defaults)
            for k, v in own.items():
                check_hint(k, v, hints[k])
            usual = training if isinstance(training, Training) else asked(training, own)
            t = usual.given(cast(Options, {k: v for k, v in given.items() if k not in own}))
            if check is not None:
                asked(check, {**own, "t": t})
            if complete is not None:
                own |= asked(complete, {**own, "t": t})
            bind = functools.partial(cast(Callable[..., Program[Any]], f), t=t, **own)
            changed = unchanged if adapt is None else lambda model: asked(adapt, {**own, "t": t}, model)
            return Algorithm(name, {**own, **t._asdict()}, bind, changed)

        public = [v for v in signature.parameters.values() if v.kind in (v.KEYWORD_ONLY, v.VAR_KEYWORD)]
        builder = functools.wraps(f)(build)
        builder.__signature__ = signature.replace(parameters=public, return_annotation=Algorithm)  # type: ignore[attr-defined]
        builder.method = name  # type: ignore[attr-defined]
        builder.facts = Facts(presets or {}, staged, theorem, form)  # type: ignore[attr-defined]
        return cast(Callable[S, Algorithm], builder)

    return made


def steps_or_epochs(own: Settings, defaults: Settings) -> Settings:
    """The settings with one length of a personal phase: steps that are given take the place of the usual epochs."""
    if own.get("personal_steps") is None or own.get("personal_epochs") is None:
        return own
    if own["personal_epochs"] != defaults["personal_epochs"]:
        raise UserError("personal_epochs and personal_steps both say how long the personal phase is: give one")
    return {**own, "personal_epochs": None}


def asked(f: Callable[..., Any], known: Settings, *first: Any) -> Any:
    """``f`` of what it asks for by name."""
    names = list(inspect.signature(f).parameters)[len(first) :]
    return f(*first, **{k: known[k] for k in names})
