"""The methods of a study, each taken once from its name or its algorithm."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Self

from .. import algorithms
from ..algorithms import Algorithm
from ..algorithms.custom import suitable
from ..algorithms.method import facts
from ..algorithms.options import EXCLUSIVE
from ..algorithms.settings import Builder, settings_of
from ..algorithms.used import unused
from ..core.errors import UserError
from ..core.schema_several import Tuned
from ..topology.parse import fit_topology
from .presets import Preset


@dataclass(frozen=True)
class PlannedMethod:
    """A method with the settings that a person chose for it; a preset adds others when it is built."""

    label: str  # what tables and folders call it
    name: str  # what its runs record
    builder: Builder
    chosen: Mapping[str, Any] = field(default_factory=dict)
    ready: Algorithm | None = None  # handed over with all of its settings, so that nothing is added
    tuned: Tuned | None = None  # how trials chose settings of it before this study

    @classmethod
    def named(cls, label: str, name: str, *layers: Mapping[str, Any], tuned: Tuned | None = None) -> Self:
        """Return a method by name; ``layers``: settings that were chosen for it, the last one wins."""
        method = cls(label, name, algorithms.builder(name), tuned=tuned)
        for layer in layers:
            method = method.having(layer)
        return method

    @classmethod
    def of(cls, label: str, algorithm: Algorithm) -> Self:
        """Return a method that is handed over as an algorithm."""
        name = algorithm.name
        builder = algorithms.builder(name) if algorithms.is_method(name) else lambda: algorithm
        return cls(label, name, builder, ready=algorithm)

    def having(self, settings: Mapping[str, Any]) -> Self:
        """Return the method with further settings, in place of those that they exclude."""
        kept = {k: v for k, v in self.chosen.items() if not displaced(k, settings)}
        return replace(self, chosen=kept | dict(settings))

    @property
    def known(self) -> Collection[str]:
        """The names of its settings."""
        return settings_of(self.builder).keys() if self.ready is None else self.ready.settings.keys()

    @property
    def staged(self) -> bool:
        """Whether it trains only networks that are built in stages."""
        return facts(self.builder).staged

    def built(self, preset: Preset, clients: int) -> Algorithm:
        """Return the algorithm: the preset's settings where they suit, and the chosen ones."""
        if self.ready is not None:
            return self.ready
        known = settings_of(self.builder)
        suited = {k: v for k, v in preset.settings.items() if k in known and suitable(self.name, k)}
        suited |= own_settings(preset, self.builder)
        if NoneType in known.get("topology", ()):  # with a server unless asked
            suited.pop("topology", None)
        if "topology" in suited:
            suited["topology"] = fit_topology(suited["topology"], clients)
        settings = {k: v for k, v in suited.items() if not displaced(k, self.chosen)} | dict(self.chosen)
        idle = unused(self.name, self.builder(**settings).settings).keys() - self.chosen.keys()
        return self.builder(**{k: v for k, v in settings.items() if k not in idle})


def own_settings(preset: Preset, builder: Builder) -> dict[str, Any]:
    """Return what a method itself asks for in such a set-up."""
    asked = facts(builder).presets
    return {name: value for kind in preset.kinds for name, value in asked.get(kind, {}).items()}


def displaced(suggested: str, chosen: Mapping[str, Any]) -> bool:
    """Whether a chosen setting takes the place of one that is suggested."""
    others = [set(pair) - {suggested} for pair in EXCLUSIVE if suggested in pair]
    return any(chosen.get(k) is not None for other in others for k in other)


def check_different(methods: Sequence[PlannedMethod], built: Mapping[str, Algorithm]) -> None:
    """Refuse a method that is named twice with the same settings, because its rows would be the same run."""
    settings = [(method.name, dict(built[method.label].settings)) for method in methods]
    for pair, method in zip(settings, methods, strict=True):
        if settings.count(pair) > 1:
            raise UserError(
                f"{method.label} is named twice with the same settings: name it once, or change one, as in "
                f"{method.name}@lr=0.1"
            )
