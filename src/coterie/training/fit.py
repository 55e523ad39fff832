"""``fit``: one run from a model, data, a method and the options of the run."""

from collections.abc import Callable
from inspect import Parameter, cleandoc, signature
from textwrap import fill
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from ..algorithms.base import Algorithm
from ..core.annotations import Example
from ..core.arguments import checked
from ..data import Federation
from .prepare import ModelLike, prepare
from .run import Run
from .settings import RunSettings, options, types_of_options

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
WIDTH = 120


def takes_options(kind: type[RunSettings]) -> Callable[[F], F]:
    """Give a function of ``**options`` the signature of a kind of options, and their help in place of ``{options}``."""

    def decorate(function: F) -> F:
        named = [p for p in signature(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        types = get_type_hints(kind, None, dict(types_of_options()), include_extras=True)
        parameters = [*named, *(p.replace(annotation=types[p.name]) for p in signature(kind).parameters.values())]
        entries = (f"{f.name}: {f.metadata['help']}" for f in options(kind=kind))
        listed = "\n".join(fill(e, WIDTH, initial_indent=4 * " ", subsequent_indent=8 * " ") for e in entries)
        function.__signature__ = signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__annotations__ |= types
        function.__doc__ = cleandoc(function.__doc__ or "").replace("    {options}", listed)
        return function

    return decorate


def _like_settings(
    kind: Callable[P, RunSettings],
) -> Callable[[Callable[..., Run]], Callable[Concatenate[ModelLike, Federation, Algorithm, P], Run]]:
    """Tell type checkers that a function of ``**options`` takes the options of a kind."""
    return lambda function: cast(Callable[Concatenate[ModelLike, Federation, Algorithm, P], Run], function)


@_like_settings(RunSettings)
@takes_options(RunSettings)
@checked("function")
def fit(
    model: ModelLike,
    federation: Annotated[Federation, Example('coterie.data.federate("digits")')],
    algorithm: Annotated[Algorithm, Example("coterie.algorithms.fedavg()")],
    **options: Any,
) -> Run:
    """Train one model per client and return them with everything that was measured.

    Args:
        model: A module, or a function without arguments that builds one.
        federation: The clients' data.
        algorithm: The method with its settings.
        {options}

    >>> import coterie as ct
    >>> fed = ct.data.federate("synthetic", clients=4, partition="iid", seed=0)
    >>> run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.dfedavg(topology="ring", epochs=1),
    ...              rounds=2, progress=False)
    >>> len(run.history), len(run.clients), sorted(run.clients[0].shared)
    (2, 4, ['1.bias', '1.weight'])
    """
    return prepare(model, federation, algorithm, RunSettings(**options)).run()
