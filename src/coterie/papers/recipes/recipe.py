"""A recipe: one experiment of a paper, complete, with the readings of paper and released code."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.arguments import checked
from ...core.custom import display_name
from ...core.errors import UserError, unknown
from ...core.schema import Init, MeasureName
from ...core.spec import whole_number
from .reading import READINGS, Reading, ReadingName, Statement, merge
from .sources import source

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from ...algorithms import Algorithm
    from ...data import Federation

_FILES = files(__package__).joinpath("files")


class Protocol(NamedTuple):
    """The number that an experiment reports."""

    metric: str
    over_rounds: str  # best, final, steady (its last fifth), first (that reaches a target), smallest, best-validation
    clients: str  # mean over which
    also: Sequence[str] = ()  # further metrics of the same runs

    def metrics(self, target: int | None) -> list[str]:
        """Return all metrics of an experiment, with the rounds until a target accuracy where it has one.

        >>> Protocol("global_accuracy", "final", "all clients").metrics(target=70)
        ['global_accuracy', 'rounds_to_70']
        """
        counted = [] if target is None else [f"rounds_to_{target}"]
        return [*([] if self.metric == "rounds_to" else [self.metric]), *self.also, *counted]


class RecipeMethod(NamedTuple):
    """One method of an experiment."""

    printed: str  # its name in the paper
    builder: str  # a name of ``coterie.algorithms``
    point: str  # after_mix, after_train or after_finetune: where its accuracy is taken
    settings: Mapping[str, Any]  # complete, as we choose
    differs: str | None  # what cannot be run as it was published


@dataclass(frozen=True)
class Case:
    """One column of a table: the clients, their data and their model."""

    label: str
    data: str
    partition: str
    model: str
    clients: int
    rounds: int
    target: int | None  # an accuracy in %, where rounds until it are counted
    transform: Mapping[str, Any] | None  # of images; None: the source's own
    methods: Sequence[str]  # those that were run
    settings: Mapping[str, Mapping[str, Any]]  # by method, instead of its own
    note: str | None
    estimates: Mapping[str, Mapping[str, float]]  # by method: flops and bytes of one seed
    init: Init = "common"  # what clients begin with who have no server: one model, or "per-client" draws
    validation: float = 0.0  # the part of every client's training samples that is kept out of training, as in ``fit``


@dataclass(frozen=True)
class Recipe:
    """An experiment; cases are counted from 1, as they are shown."""

    name: str
    paper: str
    where: str  # the table or figure
    about: str
    seeds: int
    protocol: Protocol
    record: Sequence[MeasureName]  # further measures it needs
    cases: Sequence[Case]
    methods: Mapping[str, RecipeMethod]
    readings: Sequence[Reading]
    assumed: Sequence[str]  # what nobody states and we fill in
    differs: Sequence[str]  # what cannot be run as it was published
    claims: Sequence[str]  # what the paper concludes
    published: Sequence[str]  # the tables of numbers that belong to it
    changed: Sequence[str] = ()  # what we run otherwise than the paper prints, so that a claim can show
    draws: str = ""  # what the paper draws and no single run shows: splits, grid, landscape, exchanges

    @property
    def trains(self) -> bool:
        """Whether there is anything to train; a drawing of splits or a table of sizes trains nothing."""
        return any(case.rounds and case.methods for case in self.cases)

    def entry(self, method: str) -> RecipeMethod:
        """Return the method of that name; ``-`` and ``_`` are the same."""
        key = display_name(method)
        if key not in self.methods:
            if not self.methods:
                raise UserError(f"{self.name} trains nothing: {self.differs[0]}")
            raise unknown(f"method of {self.name}", method, self.methods)
        return self.methods[key]

    def find(self, which: int | str | None = None) -> list[int]:
        """Return the numbers of the cases that a number or a part of their labels chooses; None: all."""
        if which is None:
            return list(range(1, len(self.cases) + 1))
        text = str(which).strip()
        if not text:
            raise UserError(
                f"an empty text chooses no case of {self.name}: choose 1 to {len(self.cases)}, or a part of a label"
            )
        number = whole_number(text)
        if number is not None:
            if not 1 <= number <= len(self.cases):
                raise UserError(f"{self.name} has no case {text}: choose 1 to {len(self.cases)}, or a part of a label")
            return [number]
        labels = {i: case.label.lower() for i, case in enumerate(self.cases, 1)}
        exact = [i for i, label in labels.items() if label == text.lower()]
        matches = exact or [i for i, label in labels.items() if text.lower() in label]
        if not matches:
            raise unknown(f"case of {self.name}", text, (case.label for case in self.cases))
        return matches

    def case(self, which: int | str | Case = 1) -> Case:
        """Return the first case that a number or a part of a label chooses."""
        return which if isinstance(which, Case) else self.cases[self.find(which)[0] - 1]

    def read(self, reading: ReadingName | None) -> "Recipe":
        """Return the recipe as the paper or the released code has it; None: our choice between them.

        Where a reading says nothing, our choice stays; where it says something, that also replaces what a case varies.
        The paper's reading undoes all that we changed.

        >>> load("dfedalt-t1").read("paper").settings("dfedalt")["weight_decay"]
        0.005
        """
        if reading is None:
            return self
        if reading not in READINGS:
            raise unknown("reading", reading, READINGS)
        cases, protocol = list(self.cases), self.protocol
        for statement in (s for row in self.readings for s in row.says.get(reading, ())):
            cases = [self._apply(statement, c) if statement.applies_to_case(c.label) else c for c in cases]
            protocol = protocol._replace(**statement.protocol)
        changed = () if reading == "paper" else self.changed
        return replace(self, cases=tuple(cases), protocol=protocol, readings=(), changed=changed)

    def warnings(self, reading: ReadingName | None, methods: Collection[str], run: "Recipe | None" = None) -> list[str]:
        """Return what a reading is known to do to some of these methods, each warning with the methods it is about.

        ``run`` is the recipe in that reading where some of its settings were changed.

        >>> [warning[:9] for warning in load("dfedalt-t1").warnings("paper", ["dfedalt", "dfedsalt"])]
        ['dfedsalt:']
        """
        if reading is None:
            return []
        statements = [s for row in self.readings for s in row.says.get(reading, ()) if s.warning]
        played = run or self.read(reading)
        about = [
            (s, [m for m in methods if s.applies_to_method(m, self.entry(m).settings) and played._has(m, s.settings)])
            for s in statements
        ]
        return [f"{', '.join(names)}: {s.warning}" for s, names in about if names]

    def _has(self, method: str, settings: Mapping[str, Any]) -> bool:
        """Return whether a method has these settings in any case."""
        cases = (case for case in self.cases if method in case.methods)
        return any(settings.items() <= self.settings(method, case).items() for case in cases)

    def _apply(self, statement: Statement, case: Case) -> Case:
        settings = dict(case.settings)
        for method in case.methods:
            if statement.applies_to_method(method, self.methods[method].settings):
                settings[method] = {**settings.get(method, {}), **statement.settings}
        return replace(case, settings=settings, **{k: merge(getattr(case, k), v) for k, v in statement.case.items()})

    def settings(self, method: str, case: int | str | Case = 1) -> dict[str, Any]:
        """Return the settings of a method in a case.

        >>> load("dfedalt-t1").settings("dfedalt")["weight_decay"]
        0.0005
        """
        entry = self.entry(method)
        return {**entry.settings, **self.case(case).settings.get(display_name(method), {})}

    def algorithm(self, method: str, case: int | str | Case = 1) -> "Algorithm":
        """Return the method, ready for ``fit``.

        >>> load("dfedalt-t1").algorithm("dfedsalt").settings["rho"]
        0.7
        """
        from ... import algorithms

        return algorithms.build(self.entry(method).builder, **self.settings(method, case))

    def init(self, method: str, case: int | str | Case = 1) -> Init:
        """Return what the clients begin with; those that have a server begin with its model.

        >>> paper = load("dfedalt-t1").read("paper")
        >>> paper.init("dfedalt"), paper.init("fedavg")
        ('per-client', 'common')
        """
        return self.case(case).init if self.settings(method, case).get("topology") else "common"

    def federation(self, case: int | str | Case = 1, seed: int = 0, data_dir: "Path | None" = None) -> "Federation":
        """Return the clients' data, with the images transformed as in the experiment."""
        from ...data import Transform, federate

        chosen = self.case(case)
        federation = federate(chosen.data, chosen.clients, chosen.partition, seed, data_dir)
        if chosen.transform is None or federation.transform is None:
            return federation
        return replace(federation, transform=Transform(**chosen.transform))

    def model(self, case: int | str | Case = 1, federation: "Federation | None" = None, seed: int = 0) -> "nn.Module":
        """Return the model that all clients start from; without a federation, for data of the published shape.

        >>> sum(p.numel() for p in load("dfedalt-t1").model(1).parameters())
        11173962
        """
        from ... import models

        chosen = self.case(case)
        if federation is not None:
            return models.build(chosen.model, federation, seed=seed)
        known = source(chosen.data)
        return models.build(chosen.model, classes=known.classes, input_shape=known.shape, seed=seed)


@cache
def names() -> tuple[str, ...]:
    """Return the names of all recipes, in the order of papers, tables and figures.

    >>> len(names())
    46
    """
    every = sorted(path.name.removesuffix(".json") for path in _FILES.iterdir() if path.name.endswith(".json"))
    return tuple(name for paper in papers() for name in every if name.startswith(f"{paper}-"))


@checked("function")
@cache
def load(name: str) -> Recipe:
    """Return the recipe of that name, such as dfedalt-t1; the paper's number does as well: 000-T1.

    >>> load("dfedalt-t1").where
    'Table 1, Figure 3'
    """
    key = name.lower().replace("_", "-")
    for paper, facts in papers().items():
        if key.startswith(f"{facts['number']}-"):
            key = paper + key.removeprefix(facts["number"])
    if key not in names():
        raise unknown("recipe", key, names())
    raw = json.loads(_FILES.joinpath(f"{key}.json").read_text(encoding="utf-8"))
    return Recipe(
        **{
            **raw,
            "protocol": Protocol(**raw["protocol"]),
            "cases": tuple(Case(**case) for case in raw["cases"]),
            "methods": {k: RecipeMethod(**v) for k, v in raw["methods"].items()},
            "readings": tuple(map(Reading.of, raw["readings"])),
        }
    )


@cache
def papers() -> dict[str, dict[str, str]]:
    """Return number, title, authors and public code of every paper, by the name its recipes begin with."""
    every: dict[str, dict[str, str]] = json.loads(_FILES.joinpath("papers.json").read_text(encoding="utf-8"))
    return every
