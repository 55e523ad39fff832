"""A recipe made smaller, or put on other data, and what that changes: such numbers are not the published experiment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .recipe import Case, Recipe


@dataclass(frozen=True)
class Changes:
    """What is asked for instead of the published set-up; None: nothing."""

    rounds: int | None = None
    clients: int | None = None
    data: str | None = None
    model: str | None = None
    partition: str | None = None

    def given(self) -> dict[str, Any]:
        """Those that were asked for."""
        return {k: v for k, v in vars(self).items() if v is not None}


def changed(recipe: Recipe, changes: Changes) -> Recipe:
    """The recipe with the changes in all its cases, and graphs that fit so few clients.

    >>> from .recipe import load
    >>> small = changed(load("dfedalt-t1"), Changes(clients=5, rounds=2))
    >>> small.cases[0].clients, small.settings("dfedalt")["topology"]
    (5, 'random-pull:4')
    """
    return replace(recipe, cases=tuple(_case(recipe, case, changes) for case in recipe.cases))


def _case(recipe: Recipe, case: Case, changes: Changes) -> Case:
    given = changes.given()
    if changes.data is not None:
        given["preparation"] = None
    settings = {k: dict(v) for k, v in case.settings.items()}
    if changes.clients is not None and changes.clients < case.clients:
        for method in case.methods:
            graph = recipe.settings(method, case).get("topology")
            if graph:
                settings.setdefault(method, {})["topology"] = fitting(graph, changes.clients)
    return replace(case, **given, settings=settings)


def fitting(graph: str, clients: int) -> str:
    """A graph with as many neighbours as so few clients allow.

    >>> fitting("random-pull:10", 5), fitting("random:10", 7), fitting("clique:10,count=4", 20), fitting("ring", 5)
    ('random-pull:4', 'random:6', 'clique:10,count=2', 'ring')
    """
    name, _, rest = graph.partition(":")
    if name.startswith("random"):
        wanted = min(int(rest), clients - 1)
        wanted -= name == "random" and wanted % 2 and clients % 2  # an odd number of both makes no such graph
        return f"{name}:{wanted}" if wanted > 0 else "none"
    if name == "clique":
        size, _, count = rest.partition(",count=")
        fits = min(int(size), clients)
        return f"clique:{fits}" + (f",count={max(1, min(int(count), clients // fits))}" if count else "")
    return graph


def shortenings(recipe: Recipe, case: Case, changes: Changes, seeds: int) -> list[str]:
    """What is smaller or other than published in one case, in words; more seeds are no other experiment.

    >>> from .recipe import load
    >>> recipe = load("dfedalt-t1")
    >>> shortenings(recipe, recipe.cases[0], Changes(rounds=2, clients=200, data="digits"), seeds=1)
    ['2 of 500 rounds', '200 clients instead of 100', '1 of 3 seeds', 'data digits instead of cifar10']
    """
    published: Mapping[str, Any] = vars(case)
    counts = {"rounds": changes.rounds, "clients": changes.clients}
    words = [_counted(n, published[k], k) for k, n in counts.items() if n not in (None, published[k])]
    words += [_counted(seeds, recipe.seeds, "seeds")] if seeds < recipe.seeds else []
    other = {"data": changes.data, "model": changes.model, "partition": changes.partition}
    return words + [f"{k} {v} instead of {published[k]}" for k, v in other.items() if v not in (None, published[k])]


def _counted(ours: int | None, published: int, what: str) -> str:
    assert ours is not None
    return f"{ours} of {published} {what}" if ours < published else f"{ours} {what} instead of {published}"


def other_graphs(published: Recipe, small: Recipe, cells: Iterable[tuple[int, str]]) -> list[str]:
    """The graphs that fewer clients ask for, in words.

    >>> from .recipe import load
    >>> recipe = load("dfedalt-t1")
    >>> other_graphs(recipe, changed(recipe, Changes(clients=6)), [(1, "dfedalt"), (1, "fedavg")])
    ['topology random-pull:5 instead of random-pull:10']
    """
    pairs = ((r.settings(m, n).get("topology") for r in (small, published)) for n, m in cells)
    return list(dict.fromkeys(f"topology {ours} instead of {theirs}" for ours, theirs in pairs if ours != theirs))
