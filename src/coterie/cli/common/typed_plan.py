"""From what was typed to the plan of a study: texts become values here, and nowhere below."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import algorithms, topology
from ...algorithms.settings import parse_settings, settings_of, split_setting
from ...algorithms.variation import variation
from ...core.annotations import MOST
from ...core.custom import display_name, is_own
from ...core.errors import UserError
from ...core.schema_several import Tuned
from ...core.spec import spelled
from ...local.parse import OPTIMIZERS
from ...study.grids import Grids, Tried, grids_of
from ...study.methods import PlannedMethod
from ...study.plan import StudyPlan
from ...study.settings import StudySettings
from ...training.settings import Cluster
from .fields import flag
from .options import RunOptions

FLAGS = ("topology", "capacities", "optimizer")  # settings with an option of their own
LOWERED = ("engine", "device", "precision", "select", "init", "loss")  # options of a few names in small letters


def typed_plan(texts: Sequence[str], options: RunOptions) -> StudyPlan:
    """Return the plan of these methods with these options."""
    return StudyPlan.of(typed_methods(texts, options), options.given("data"), study_settings(options))


def study_settings(options: RunOptions) -> StudySettings:
    """Return the options of a study as values."""
    lowered = {k: v.lower() for k in LOWERED if (v := getattr(options, k)) is not None}
    named = {**lowered, "record": [name.lower() for name in options.record]}
    typed = {**replace(options, **named).typed, "metric": tuple(options.metric), "holdout_clients": _holdout(options)}
    same = {k: getattr(options, k) for k in ("model", "partition", "clients", "data_dir", "resume")}
    return StudySettings(**{**typed, **same, "time_limit": options.for_, "cluster": cluster(options)})


def typed_methods(texts: Sequence[str], options: RunOptions) -> list[PlannedMethod]:
    """Return the methods, each with the settings of a file, and those that are typed, which win over it."""
    typed = [variation(text) for text in texts]
    builders = {v.method: algorithms.builder(v.method) for v in typed}
    common, filed = parse_settings(options.set, builders), settings_from_file(options, list(builders))
    _check_file(list(builders), filed, options)
    flags = {k: text for k in FLAGS if (text := _spelled_flag(k, getattr(options, k))) is not None}
    known = {name: settings_of(builder) for name, builder in builders.items()}
    for key in flags:
        if not any(key in settings for settings in known.values()):
            raise UserError(f"{', '.join(v.typed for v in typed)} has no {key}: leave {flag(key)} out")
    if len({v.typed for v in typed}) < len(typed):
        raise UserError(f"a method is named twice: name each once, or with other settings, as {typed[0].typed}@lr=0.1")
    methods = []
    for v in typed:
        beside = {k: value for k, value in flags.items() if k in known[v.method]}
        layers = filed[v.method], common[v.method] | beside, v.values
        methods.append(PlannedMethod.named(v.typed, v.method, *layers, tuned=_tuned(filed[v.method], options)))
    return methods


def _spelled_flag(name: str, text: str | None) -> str | None:
    """Return a typed setting with the name of its table, whatever its case was."""
    tables: dict[str, Iterable[str]] = {"topology": topology.BUILDERS, "optimizer": OPTIMIZERS}
    return text if text is None or name not in tables else spelled(text, tables[name])


def _tuned(filed: Mapping[str, Any], options: RunOptions) -> Tuned | None:
    """Return how the settings of a file were chosen, if `coterie tune` wrote it."""
    if options.settings is None or not options.settings.tuned or not filed:
        return None
    return {"settings": list(filed), "how": str(options.settings.path)}


def _check_file(names: Sequence[str], filed: Mapping[str, Mapping[str, Any]], options: RunOptions) -> None:
    """Refuse a file without settings for any method, and trust that nothing needs."""
    if options.settings is None and options.trust:
        raise UserError(
            f"--trust {options.trust[0]} is for code that a saved configuration or a file of settings names, and "
            f"{', '.join(names)} is typed already: leave it out"
        )
    if options.settings is not None and not any(filed.values()):
        tables = ", ".join(options.settings.tables)
        raise UserError(f"{options.settings.path} has settings for {tables} and none for {', '.join(names)}: add them")


def settings_from_file(options: RunOptions, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what a file sets for each method of the command; the tables of other methods are checked as well."""
    if options.settings is None:
        return {name: {} for name in names}
    found = algorithms.settings_in(options.settings, [name for name in names if is_own(name)], options.trust)
    return {name: found.get(name, {}) for name in names}


def file_text(methods: Mapping[str, PlannedMethod], options: RunOptions) -> list[str]:
    """Return what to say of a file of settings: which of its tables are used, and which are not."""
    file = options.settings
    if file is None:
        return []
    filed = settings_from_file(options, [m.name for m in methods.values()])
    used = [label for label, method in methods.items() if filed[method.name]]
    named = [display_name(methods[label].name) for label in used]
    idle = [name for name in file.tables if display_name(name) not in named]
    rest = f"; its tables for {', '.join(idle)} are not used here" if idle else ""
    return [f"settings of {', '.join(used)} from {file.path}{rest}"]


def typed_grids(
    items: Sequence[str], option: str, methods: Mapping[str, PlannedMethod], options: RunOptions
) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the values to try by method, as in KEY=VALUE,VALUE for all methods and METHOD.KEY=VALUE,VALUE for one."""
    builders = {label: method.builder for label, method in methods.items()}
    return grids_of([tried(item, option) for item in items], builders, option, fixed_settings(options.set))


def fixed_settings(items: Sequence[str]) -> set[tuple[str, str]]:
    """Return the method, which is empty for all, and the key of every typed setting."""
    return {split_setting(item)[:2] for item in items}


def tried(item: str, option: str) -> Tried:
    """Take METHOD.KEY=VALUE,VALUE apart; values that have commas themselves are separated by semicolons.

    >>> tried("lr=0.1,0.2", "--tune"), tried("fedavg.epochs=1,2;3", "--tune")
    (('', 'lr', {'0.1': '0.1', '0.2': '0.2'}), ('fedavg', 'epochs', {'1,2': '1,2', '3': '3'}))
    """
    left, equals, text = (part.strip() for part in item.partition("="))
    method, _, key = left.rpartition(".")
    values = [value.strip() for value in text.split(";" if ";" in text else ",") if value.strip()]
    if not equals or not values:
        raise UserError(f"{option} {item} has no values: write {option} KEY=VALUE,VALUE, as in {option} lr=0.01,0.1")
    if len(set(values)) < len(values):
        raise UserError(f"{option} {item} has a value twice: leave one out")
    return display_name(method), key, {value: value for value in values}


def check_not_in_file(grids: Grids, option: str, methods: Mapping[str, PlannedMethod], options: RunOptions) -> None:
    """Refuse to try values of a setting that a file of settings has for any method."""
    if options.settings is None:
        return
    filed = settings_from_file(options, [method.name for method in methods.values()])
    for key in dict.fromkeys(key for grid in grids.values() for key in grid):
        if any(key in settings for settings in filed.values()):
            raise UserError(f"{options.settings.path} and {option} both have {key}: leave it out of one of them")


def _holdout(options: RunOptions) -> float | int:
    """Return the clients that come after training: a fraction of all, or their number."""
    asked: float = options.given("holdout_clients")
    if asked >= 1 and (asked > MOST or asked != int(asked)):  # infinity is no int
        raise UserError(f"--holdout-clients {asked:g} is no number of clients: give a whole one, or a fraction")
    return asked if asked < 1 else int(asked)


def cluster(options: RunOptions) -> Cluster | None:
    """Return the cluster that was typed, if any."""
    typed = Cluster(options.workers, options.ray_address, options.given("gpus_per_worker"))
    return None if typed == Cluster() else typed
