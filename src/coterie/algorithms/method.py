"""A method is a function from a problem to a program; its signature says which settings it has, and their ranges.

@method(Training(momentum=0.0))
def fedfoo(p: Problem, t: Training, *, mu: Rate = 0.1, **options: Unpack[Options]) -> Program[Server]:
    phase = Phase(p.parameters, t.amount, t.lr, proximal(mu))
    return federated(p, [phase], t, p.names)

fedfoo(mu=0.5, lr=0.01)     # an Algorithm with complete settings, checked

The names that signatures of methods are made of are exported here as well.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Literal, ParamSpec, cast, get_args, get_type_hints

from ..core.arguments import accept
from ..core.errors import UserError, no_option, unknown
from ..local.personal import Patterns
from ..models.model import Model
from ..topology import TopologyLike
from .about import complete as complete_docstring
from .base import Algorithm, Problem, Program, Round, Trained, unchanged
from .options import (
    Count,
    Epochs,
    Fraction,
    OptimizerLike,
    Options,
    Participation,
    Positive,
    Range,
    Rate,
    SamForm,
    Training,
    Weighting,
    refuse_stateless,
)

__all__ = [
    "Count",
    "Epochs",
    "Facts",
    "Fraction",
    "OptimizerLike",
    "Options",
    "Participation",
    "Patterns",
    "Positive",
    "Problem",
    "Program",
    "Range",
    "Rate",
    "Round",
    "SamForm",
    "TopologyLike",
    "Trained",
    "Training",
    "Weighting",
    "facts",
    "method",
]

S = ParamSpec("S")
Settings = dict[str, Any]
Kind = Literal["small", "text", "papers"]
"""A kind of set-up that the commands assume: small data; text, which is small as well; the papers' own data sets."""
Presets = Mapping[Kind, Mapping[str, Any]]
"""Settings by kind of set-up."""


@dataclass(frozen=True)
class Facts:
    """The facts about a method that are needed before it is bound.

    Args:
        presets: By kind of set-up, settings in place of those that the commands suggest to every method.
        staged: Whether it trains only networks that are built in stages; the commands choose one then.
        theorem: The theorem of ``coterie.theory`` that speaks of it, by its name there.
        submodel: The kind of submodel that its clients hold, by its name in ``coterie capacity``.
        paced: Whether what it does in a round depends on how many rounds there are: then a run cannot get more.
        in_one_place: Whether all samples are in one place, which is not federated.
    """

    presets: Presets = field(default_factory=dict)
    staged: bool = False
    theorem: str | None = None
    submodel: str | None = None
    paced: bool = False
    in_one_place: bool = False

    def __post_init__(self) -> None:
        for kind in self.presets:
            if kind not in get_args(Kind):
                raise unknown("kind of set-up", kind, get_args(Kind))


def facts(builder: Callable[..., Any]) -> Facts:
    """Return the facts about a method; there are none about a function that ``method`` did not make.

    >>> from coterie.algorithms import dpsgd
    >>> facts(dpsgd).presets["small"]
    {'epochs': 1}
    """
    return cast(Facts, getattr(builder, "facts", Facts()))


def method(
    training: Training | Callable[..., Training] = Training(),  # noqa: B008 - a value
    *,
    check: Callable[..., None] | None = None,
    complete: Callable[..., Mapping[str, Any]] | None = None,
    adapt: Callable[..., Model] | None = None,
    presets: Presets | None = None,
    staged: bool = False,
    theorem: str | None = None,
    submodel: str | None = None,
    paced: bool = False,
    in_one_place: bool = False,
) -> Callable[[Callable[Concatenate[Problem, Training, S], Program[Any]]], Callable[S, Algorithm]]:
    """Make a method of a function ``(p, t, *, its settings, **options) -> Program``, which is called to bind it.

    What people call takes the settings alone and returns an ``Algorithm`` named as the function, with ``-`` for ``_``.
    Choices (``Literal``) and ranges (``Annotated[float, Range(0, 1)]``) are those of the annotations. ``t`` is
    ``training`` with the options of the call. Keywords that several methods have need no entry in the docstring: it is
    completed with the words of ``coterie.algorithms.about``.

    Args:
        training: The method's own defaults of the common options; a function where they depend on its settings.
        check: Refuses settings that do not go together, once each is right by itself.
        complete: Returns settings that follow from others, as a dictionary.
        adapt: Makes the module that the method trains of the one it is given: its first argument.
        presets: See ``Facts``, as for ``staged``, ``theorem``, ``submodel``, ``paced`` and ``in_one_place``.

    Each of these functions takes the settings that it looks at as arguments of their names; ``t`` has the options.
    """

    def decorate(f: Callable[Concatenate[Problem, Training, S], Program[Any]]) -> Callable[S, Algorithm]:
        name = f.__name__.replace("_", "-")
        signature = inspect.signature(f)
        defaults = {k: v.default for k, v in signature.parameters.items() if v.kind is v.KEYWORD_ONLY}

        def build(**settings: Any) -> Algorithm:
            hints = get_type_hints(f, include_extras=True)
            for k in sorted(settings.keys() - defaults.keys() - set(Training._fields)):
                raise no_option(f"method {name}", k, [*defaults, *Training._fields])
            given = {k: settings.get(k, default) for k, default in defaults.items()}
            accepted = {k: accept(f"method {name}", k, v, hints[k]) for k, v in given.items()}
            own = steps_or_epochs(accepted, defaults)
            usual = training if isinstance(training, Training) else call_by_name(training, own)
            t = usual.with_options(cast(Options, {k: v for k, v in settings.items() if k not in own}))
            refuse_stateless(t, own.get("personal_optimizer"))
            if check is not None:
                call_by_name(check, {**own, "t": t})
            if complete is not None:
                own |= call_by_name(complete, {**own, "t": t})
            bind = functools.partial(cast(Callable[..., Program[Any]], f), t=t, **own)
            changed = unchanged if adapt is None else lambda model: call_by_name(adapt, {**own, "t": t}, model)
            return Algorithm(name, {**own, **t._asdict()}, bind, changed)

        public = [v for v in signature.parameters.values() if v.kind in (v.KEYWORD_ONLY, v.VAR_KEYWORD)]
        builder: Any = functools.wraps(f)(build)
        builder.__signature__ = signature.replace(parameters=public, return_annotation=Algorithm)
        builder.__doc__ = f.__doc__ and complete_docstring(f.__doc__, defaults)
        builder.method = name
        builder.facts = Facts(presets or {}, staged, theorem, submodel, paced, in_one_place)
        return cast(Callable[S, Algorithm], builder)

    return decorate


def steps_or_epochs(own: Settings, defaults: Settings) -> Settings:
    """Return the settings with one length of a personal phase: steps take the place of the default epochs."""
    if own.get("personal_steps") is None or own.get("personal_epochs") is None:
        return own
    if own["personal_epochs"] != defaults["personal_epochs"]:
        raise UserError("personal_epochs and personal_steps both say how long the personal phase is: give one")
    return {**own, "personal_epochs": None}


def call_by_name(f: Callable[..., Any], values: Settings, *first: Any) -> Any:
    """Call ``f`` with those of the ``values`` that its further parameters name."""
    names = list(inspect.signature(f).parameters)[len(first) :]
    return f(*first, **{k: values[k] for k in names})
