"""A recipe made smaller, put on other data or set otherwise: such numbers are not the published experiment."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.custom import is_own
from ..core.spec import parse, written
from .recipe import Case, Recipe
from .sources import SOURCES

_COUNTS = ("rounds", "clients")
_TEXTS = ("data", "model", "partition")


@dataclass(frozen=True)
class Changes:
    """What is asked for instead of the published set-up; None: nothing."""

    rounds: int | None = None
    clients: int | None = None
    data: str | None = None
    model: str | None = None
    partition: str | None = None
    set: Sequence[str] = ()  # KEY=VALUE for all methods that have it, METHOD.KEY=VALUE for one


def changed(recipe: Recipe, changes: Changes, methods: Iterable[str] | None = None) -> Recipe:
    """The recipe with the changes in all its cases, and data and graphs that fit so few clients.

    ``methods``: whom the settings are for; None: all of the recipe.

    >>> from .recipe import load
    >>> small = changed(load("dfedalt-t1"), Changes(clients=5, rounds=2, set=["lr=0.05", "dfedsalt.rho=0.1"]))
    >>> settings = small.settings("dfedsalt")
    >>> small.cases[0].clients, settings["topology"], settings["lr"], settings["rho"]
    (5, 'random-pull:4', 0.05, 0.1)
    """
    asked: Mapping[str, Mapping[str, Any]] = {}
    if changes.set:
        from ..algorithms import builder
        from ..algorithms.settings import meant

        chosen = recipe.methods if methods is None else methods
        asked = meant(changes.set, {m: builder(recipe.entry(m).builder) for m in chosen})
    return replace(recipe, cases=tuple(_case(recipe, case, changes, asked) for case in recipe.cases))


def _case(recipe: Recipe, case: Case, changes: Changes, asked: Mapping[str, Mapping[str, Any]]) -> Case:
    clients = changes.clients or case.clients
    settings = {k: dict(v) for k, v in case.settings.items()}
    for method in case.methods:
        graph = recipe.settings(method, case).get("topology")
        if graph and clients < case.clients:
            settings.setdefault(method, {})["topology"] = fitting(graph, clients)
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
        settings=settings,
    )


def _model(published: str, asked: str) -> str:
    """Another model in the form of the case: narrow or shallow where the published one is.

    >>> _model("resnet18-bn:rate=0.25", "resnet8-bn"), _model("resnet18-gn", "small-cnn")
    ('resnet8-bn:rate=0.25', 'small-cnn')
    """
    call, form = parse(asked), parse(published).options
    return asked if not form else written(call._replace(options={**form, **call.options}))


def _data(data: str, clients: int) -> str:
    """Texts are cut into as many rows as there are clients: everybody holds one.

    >>> _data("wikitext2:rows=100", 10), _data("cifar10", 10)
    ('wikitext2:rows=10', 'cifar10')
    """
    call = parse(data)
    return written(call._replace(options={**call.options, "rows": clients})) if "rows" in call.options else data


def _partition(partition: str, data: str, clients: int) -> str:
    """So few clients hold as many classes each as it takes to hold all.

    >>> _partition("pathological:2", "cifar10", 4), _partition("pathological:2", "cifar10", 5)
    ('pathological:3', 'pathological:2')
    """
    call, known = parse(partition), SOURCES.get(parse(data).name)
    if call.name != "pathological" or known is None or "rows" in parse(data).options:
        return partition
    held = max(int(call.args[0]), -(-known.classes // clients))
    return written(call._replace(args=(held, *call.args[1:])))


def fitting(graph: str, clients: int) -> str:
    """A graph with as many neighbors as so few clients allow.

    >>> fitting("random-pull:10", 5), fitting("random:10", 7), fitting("clique:10,turns=4", 20), fitting("ring", 5)
    ('random-pull:4', 'random:6', 'clique:5,turns=4', 'ring')
    """
    call = parse(graph)
    if call.name.startswith("random"):
        wanted = min(int(call.args[0]), clients - 1)
        wanted -= call.name == "random" and wanted % 2 and clients % 2  # an odd number of both makes no such graph
        return f"{call.name}:{wanted}" if wanted > 0 else "none"
    if call.name == "clique":
        several = {k: min(int(v), clients) for k, v in call.options.items()}
        fits = max(1, min(int(call.args[0]), clients // math.prod(several.values())))
        return written(call._replace(args=(fits,), options=several))
    if "apart" in call.options and clients <= 2 * int(call.options["apart"]):
        return call.name
    return graph


def shortenings(published: Recipe, small: Recipe, cells: Sequence[tuple[int, str]], seeds: int) -> list[str]:
    """What is smaller or other than published in some cases (counted from 1) and methods, in words, each once.

    More seeds are no other experiment.

    >>> from .recipe import load
    >>> recipe = load("dfedalt-t1")
    >>> shortenings(recipe, changed(recipe, Changes(rounds=2, clients=200, data="digits")), [(1, "fedavg")], seeds=1)
    ['2 of 500 rounds', '200 clients instead of 100', '1 of 3 seeds', 'data digits instead of cifar10']
    """
    numbers = dict.fromkeys(number for number, _ in cells)
    theirs = [(number, method) for number, method in cells if not is_own(method)]
    return [*shorter_cases(published, small, numbers, seeds), *_settings(published, small, theirs)]


def shorter_cases(published: Recipe, small: Recipe, numbers: Iterable[int], seeds: int) -> list[str]:
    """The same of the cases alone, whatever methods they have."""
    pairs = [(vars(small.cases[n - 1]), vars(published.cases[n - 1])) for n in numbers]
    words = [_counted(ours[k], theirs[k], k) for k in _COUNTS for ours, theirs in pairs if ours[k] != theirs[k]]
    words += [_counted(seeds, published.seeds, "seeds")] if seeds < published.seeds else []
    words += [f"{k} {ours[k]} instead of {theirs[k]}" for k in _TEXTS for ours, theirs in pairs if ours[k] != theirs[k]]
    return [*dict.fromkeys(words)]


def _counted(ours: int, published: int, what: str) -> str:
    return f"{ours} of {published} {what}" if ours < published else f"{ours} {what} instead of {published}"


def _settings(published: Recipe, small: Recipe, cells: Sequence[tuple[int, str]]) -> list[str]:
    """The settings that differ, each with the methods that have it unless all do.

    >>> from .recipe import load
    >>> recipe = load("dfedalt-t1")
    >>> small = changed(recipe, Changes(clients=6, set=["fedavg.lr=0.05"]))
    >>> _settings(recipe, small, [(1, "fedavg"), (1, "dfedalt")])
    ['lr 0.05 instead of 0.1 (fedavg)', 'topology random-pull:5 instead of random-pull:10']
    """
    who: dict[tuple[str, str], list[str]] = {}
    for number, method in cells:
        ours, theirs = (recipe.settings(method, number) for recipe in (small, published))
        for key in (k for k in ours if ours[k] != theirs[k]):
            who.setdefault((key, f"{key} {ours[key]} instead of {theirs[key]}"), []).append(method)
    having = {key: {m for _, m in cells if key in published.methods[m].settings} for key, _ in who}
    return [t if set(m) == having[k] else f"{t} ({', '.join(dict.fromkeys(m))})" for (k, t), m in who.items()]
