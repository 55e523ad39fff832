"""A recipe with fewer clients, other data, other settings or further methods: no longer the published experiment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from ...core.annotations import PositiveInt, Range
from ...core.arguments import checked, checked_class
from ...core.custom import is_own
from ...core.spec import parse
from .recipe import Case, Recipe, RecipeMethod
from .sources import SOURCES

_COUNTS = ("rounds", "clients")
_TEXTS = ("data", "model", "partition")


@checked_class("class")
@dataclass(frozen=True)
class Changes:
    """What somebody asks for instead of the published set-up; None: nothing."""

    rounds: PositiveInt | None = None
    clients: PositiveInt | None = None
    data: str | None = None
    model: str | None = None
    partition: str | None = None
    validation: Annotated[float, Range(0, 1)] | None = None
    set: Sequence[str] = ()  # KEY=VALUE for all methods that have it, METHOD.KEY=VALUE for one


@checked("function")
def apply_changes(recipe: Recipe, changes: Changes, methods: Sequence[str] | None = None) -> Recipe:
    """Return the recipe with the changes in all its cases, and with data and graphs that fit so few clients.

    The settings are for ``methods``; None: all of the recipe.

    >>> from .recipe import load
    >>> small = apply_changes(load("dfedalt-t1"), Changes(clients=5, rounds=2, set=["lr=0.05", "dfedsalt.rho=0.1"]))
    >>> settings = small.settings("dfedsalt")
    >>> small.cases[0].clients, settings["topology"], settings["lr"], settings["rho"]
    (5, 'random-pull:4', 0.05, 0.1)
    """
    asked: Mapping[str, Mapping[str, Any]] = {}
    if changes.set:
        from ...algorithms import builder
        from ...algorithms.settings import parse_settings

        chosen = recipe.methods if methods is None else methods
        asked = parse_settings(changes.set, {m: builder(recipe.entry(m).builder) for m in chosen})
    return replace(recipe, cases=tuple(_case(recipe, case, changes, asked) for case in recipe.cases))


def _case(recipe: Recipe, case: Case, changes: Changes, asked: Mapping[str, Mapping[str, Any]]) -> Case:
    from ...topology.parse import fit_topology

    clients = changes.clients or case.clients
    settings = {k: dict(v) for k, v in case.settings.items()}
    for method in case.methods:
        graph = recipe.settings(method, case).get("topology")
        if graph and clients < case.clients:
            settings.setdefault(method, {})["topology"] = fit_topology(graph, clients)
        settings[method] = {**settings.get(method, {}), **asked.get(method, {})}
    data = changes.data or _data(case.data, clients)
    return replace(
        case,
        clients=clients,
        rounds=changes.rounds or case.rounds,
        data=data,
        transform=case.transform if changes.data in (None, case.data) else None,
        model=case.model if changes.model is None else _model(case.model, changes.model),
        partition=changes.partition or _partition(case.partition, data, clients),
        validation=case.validation if changes.validation is None else changes.validation,
        settings=settings,
    )


def _model(published: str, asked: str) -> str:
    """Return another model in the form of the case: narrow or shallow where the published one is.

    >>> _model("resnet18-bn:rate=0.25", "resnet8-bn"), _model("resnet18-gn", "small-cnn")
    ('resnet8-bn:rate=0.25', 'small-cnn')
    """
    spec, form = parse(asked), parse(published).options
    return asked if not form else str(spec._replace(options={**form, **spec.options}))


def _data(data: str, clients: int) -> str:
    """Return data in which a text has one row per client.

    >>> _data("wikitext2:rows=100", 10), _data("cifar10", 10)
    ('wikitext2:rows=10', 'cifar10')
    """
    spec = parse(data)
    return str(spec._replace(options={**spec.options, "rows": clients})) if "rows" in spec.options else data


def _partition(partition: str, data: str, clients: int) -> str:
    """Return a partition in which so few clients hold all classes together.

    >>> _partition("pathological:2", "cifar10", 4), _partition("pathological:2", "cifar10", 5)
    ('pathological:3', 'pathological:2')
    """
    spec, known = parse(partition), SOURCES.get(parse(data).name)
    if spec.name != "pathological" or known is None or "rows" in parse(data).options:
        return partition
    held = max(int(spec.args[0]), -(-known.classes // clients))
    return str(spec._replace(args=(str(held), *spec.args[1:])))


def shortenings(published: Recipe, small: Recipe, cells: Sequence[tuple[int, str]], seeds: int) -> list[str]:
    """Say what is smaller or other than published in some cases (counted from 1) and methods, each once.

    More seeds do not count as another experiment.

    >>> from .recipe import load
    >>> recipe = load("dfedalt-t1")
    >>> small = apply_changes(recipe, Changes(rounds=2, clients=200, data="digits"))
    >>> shortenings(recipe, small, [(1, "fedavg")], seeds=1)
    ['2 of 500 rounds', '200 clients instead of 100', '1 of 3 seeds', 'data digits instead of cifar10']
    """
    numbers = dict.fromkeys(number for number, _ in cells)
    theirs = [(number, method) for number, method in cells if not is_own(method)]
    return [*case_shortenings(published, small, numbers, seeds), *_setting_changes(published, small, theirs)]


def case_shortenings(published: Recipe, small: Recipe, numbers: Iterable[int], seeds: int) -> list[str]:
    """Say the same of the cases alone, whatever methods they have."""
    pairs = [(vars(small.cases[n - 1]), vars(published.cases[n - 1])) for n in numbers]
    words = [_count(ours[k], theirs[k], k) for k in _COUNTS for ours, theirs in pairs if ours[k] != theirs[k]]
    words += [_count(seeds, published.seeds, "seeds")] if seeds < published.seeds else []
    words += [
        f"{ours['validation']:g} of the training samples held back instead of {theirs['validation']:g}"
        for ours, theirs in pairs
        if ours["validation"] != theirs["validation"]
    ]
    words += [f"{k} {ours[k]} instead of {theirs[k]}" for k in _TEXTS for ours, theirs in pairs if ours[k] != theirs[k]]
    return [*dict.fromkeys(words)]


def _count(ours: int, published: int, what: str) -> str:
    return f"{ours} of {published} {what}" if ours < published else f"{ours} {what} instead of {published}"


def _setting_changes(published: Recipe, small: Recipe, cells: Sequence[tuple[int, str]]) -> list[str]:
    """Say which settings differ, each with the methods that have it unless all do.

    >>> from .recipe import load
    >>> recipe = load("dfedalt-t1")
    >>> small = apply_changes(recipe, Changes(clients=6, set=["fedavg.lr=0.05"]))
    >>> _setting_changes(recipe, small, [(1, "fedavg"), (1, "dfedalt")])
    ['lr 0.05 instead of 0.1 (fedavg)', 'topology random-pull:5 instead of random-pull:10']
    """
    who: dict[tuple[str, str], list[str]] = {}
    for number, method in cells:
        ours, theirs = (recipe.settings(method, number) for recipe in (small, published))
        for key in (k for k in ours if ours[k] != theirs[k]):
            who.setdefault((key, f"{key} {ours[key]} instead of {theirs[key]}"), []).append(method)
    having = {key: {m for _, m in cells if key in published.methods[m].settings} for key, _ in who}
    return [t if set(m) == having[k] else f"{t} ({', '.join(dict.fromkeys(m))})" for (k, t), m in who.items()]


def add_own_methods(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """Return the recipe with methods of one's own, ``module:function``, in all its cases."""
    from ...algorithms import build

    def add(case: Case) -> Case:
        settings = {name: build(name, **_common_settings(recipe, case, name)).settings for name in names}
        return replace(case, methods=(*case.methods, *names), settings={**case.settings, **settings})

    entries = {name: RecipeMethod(name, name, "after_mix", build(name).settings, None) for name in names}
    return replace(recipe, methods={**recipe.methods, **entries}, cases=tuple(map(add, recipe.cases)))


def _common_settings(recipe: Recipe, case: Case, name: str) -> dict[str, Any]:
    """Return the values on which all methods of a case agree, of the settings that belong to a set-up."""
    from ...algorithms import builder
    from ...algorithms.custom import suitable
    from ...algorithms.settings import settings_of

    theirs = [recipe.settings(method, case) for method in case.methods]
    wanted = [key for key in settings_of(builder(name)) if suitable(name, key)]
    values = {key: [s[key] for s in theirs if key in s] for key in wanted}
    return {key: each[0] for key, each in values.items() if each and all(v == each[0] for v in each)}
