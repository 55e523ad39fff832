"""One real round of every method, and what it shows: who holds, sends and keeps what.

The pictures are drawn from this and from nothing else, so they cannot say what the program does not do.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie import algorithms
from coterie.algorithms.base import Trained
from coterie.algorithms.settings import settings_of
from coterie.algorithms.traffic import Traffic
from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.core.tensors import Tensors
from coterie.engines import Serial
from coterie.models.model import Model, cross_entropy
from coterie.submodels import factor_pairs
from coterie.training.experiment import Experiment
from probe import probe_round

CLIENTS, ROUNDS, AT = 6, 12, 3  # the number of clients and rounds, and the round that is shown
MODEL, STAGES = "resnet8-bn", 3
ROWS = ("stem", *(f"stage {s + 1}" for s in range(STAGES)), "head")
CELLS = 24  # of a sparse layer
MOST = 1.4  # the largest rank there is, as a part of the channels


class Bar(NamedTuple):
    """A layer of one client's model, or a part of it."""

    row: int  # of ROWS
    kind: str  # shared, personal, group (shared among equals only) or drawn (as it was drawn, never trained)
    held: tuple[tuple[float, float], ...]  # which channels, as stretches between 0 and 1
    factors: bool = False  # a product of two thin matrices; what is held is its rank
    beside: bool = False  # a further head on this stage


class MethodRound(NamedTuple):
    """What one round of a method shows."""

    towers: tuple[tuple[tuple[Bar, ...], ...], ...]  # by client: its models, each of bars
    W: Tensor | None  # who hears whom; None with a server
    cohort: tuple[int, ...]
    traffic: Traffic
    exchanges: int  # over the graph of the round
    gradients: float  # per sample and step
    slots: tuple[str, ...]  # of the method's state
    tuned: bool  # measured after fine-tuning
    unequal: bool  # whether clients may train models of unequal size, or one that is made to fit them


@cache
def method_round(method: str) -> MethodRound:
    """Run one round of a method with the settings of ``coterie run``, six clients and few samples."""
    e = experiment(method)
    state, r, trained, sent = probe_round(e, AT)
    models = who_trains_what(e, trained, r.cohort)
    seen = sum(count for _, count in trained.passes)
    once = float((trained.steps * 4).sum())  # batches of 4
    return MethodRound(
        tuple(towers(e, trained, models, i, tuple(r.cohort)) for i in range(CLIENTS)),
        r.Ws[0] if r.Ws else None,
        tuple(int(i) for i in r.cohort),
        sent,
        max(1, len(r.Ws)),
        seen / once,
        tuple(type(state)._fields),
        algorithms.build(method).settings["finetune_epochs"] > 0,
        e.program.submodels is not None or "capacities" in algorithms.build(method).settings,
    )


def experiment(method: str) -> Experiment:
    """Return what ``coterie run METHOD`` would train, small."""
    known = settings_of(algorithms.builder(method))
    wanted = ["steps=1", "batch_size=4"]
    wanted += ["personal_steps=1"] if "personal_steps" in known and "schedule" not in known else []  # jointly: none
    wanted += ["finetune_epochs=0"]
    neighbors = graph(method, known)
    served = neighbors is None and "participation" in known
    wanted += ["participation=0.5"] if served and "capacities" not in known else []
    wishes = RunOptions(model=MODEL, clients=CLIENTS, rounds=ROUNDS, set=wanted, topology=neighbors)
    plan = typed_plan([method], wishes)
    federation = plan.federation(0)
    model = Model(plan.module(federation, 0), cross_entropy)
    return Experiment.of(model, federation, plan.algorithms[method], Serial(), 0, ROUNDS)


def graph(method: str, known: Mapping[str, Any]) -> str | None:
    """Return a graph of the method's own kind with two neighbors, so that a drawing can be read."""
    if NoneType in known.get("topology", ("topology" not in known and NoneType,)):
        return None
    own = algorithms.build(method).settings["topology"]
    return f"{own.partition(':')[0]}:2"


def who_trains_what(e: Experiment, trained: Trained, cohort: np.ndarray) -> dict[int, Model]:
    """Return the form of the model that every member of the cohort trains."""
    forms = list(dict.fromkeys(model for model, _ in trained.passes))
    if len(forms) == 1:  # whoever is not asked in this round has the same
        return dict.fromkeys(range(CLIENTS), forms[0])
    if trained.groups:
        return {int(cohort[p]): group.model for group in trained.groups for p in group.places}
    each = len(cohort) // len(forms)  # capacities are in equal shares, and everybody takes part
    return {int(i): forms[place // each] for place, i in enumerate(cohort)}


def towers(
    e: Experiment, trained: Trained, models: Mapping[int, Model], client: int, cohort: Sequence[int]
) -> tuple[tuple[Bar, ...], ...]:
    """Return a client's model, or its two: the one that is sent and one of its own."""
    model = models[client]
    place = cohort.index(client) if client in cohort else None
    held = None if trained.mass is None or place is None else {k: v[place] for k, v in trained.mass.items()}
    sent = frozenset(trained.sent)
    if sent and not e.program.shared:  # Ditto: what is sent is another model than what is deployed
        return tuple(bars(e, model, held, trained, shared) for shared in (sent, frozenset()))
    return (bars(e, model, held, trained, sent),)


def bars(
    e: Experiment, model: Model, held: Tensors | None, trained: Trained, shared: frozenset[str]
) -> tuple[Bar, ...]:
    """Return the layers of one model from below, one bar for what is shared and one for what is not."""
    common, ranks = e.model.start, ranks_of(model)
    own = {k: v for k, v in model.start.items() if v.dim() > 1 and not k.endswith((".U", ".V"))}
    groups = {k.split(".", 2)[2] for k in trained.sent if k.startswith("others.")}
    layers: dict[tuple[int, bool, str], list[str]] = {}
    for name in (*own, *ranks):
        place = (row_of(name), name.startswith("heads."), kind_of(name, shared, groups, e, trained))
        layers.setdefault(place, []).append(name)
    out = []
    for (row, beside, kind), names in sorted(layers.items()):
        products = [k for k in names if k in ranks]
        name = max(products or names, key=lambda k: common[k].numel() if k in common else 0)
        stretch = ((0.0, ranks[name] / MOST),) if products else stretch_of(name, common, own, held, kind)
        out.append(Bar(row, kind, stretch, bool(products), beside))
    return tuple(out)


def ranks_of(model: Model) -> dict[str, float]:
    """Return the rank of every product in a model, as a part of its channels, by the weight it stands for."""
    shapes = {pair.weight: model.start[pair.U].shape for pair in factor_pairs(model.module)}
    return {name: shape[1] / shape[0] for name, shape in shapes.items()}


def kind_of(name: str, shared: frozenset[str], groups: set[str], e: Experiment, trained: Trained) -> str:
    """Return whether a layer is shared, personal, of a group, or as it was drawn."""
    layer = name.rpartition(".")[0]
    if name in groups:
        return "group"
    if name in shared or {f"{layer}.U", f"{layer}.V"} & shared:
        return "shared"
    unchanged = name in trained.models and bool((trained.models[name] == e.model.start[name]).all())
    return "drawn" if unchanged and shared else "personal"


def stretch_of(
    name: str, common: Tensors, own: Tensors, held: Tensors | None, kind: str
) -> tuple[tuple[float, float], ...]:
    """Return which channels of a layer a client holds; of a sparse one, which of its first entries."""
    if held is not None and name in held and kind != "group":
        mask = held[name]
        return stretches((mask.flatten()[:CELLS] if has_scattered_zeros(mask) else mask.flatten(1).amax(1)) > 0)
    share = own[name].shape[0] / common[name].shape[0] if name in common else 1.0
    return ((0.0, min(1.0, share)),)


def has_scattered_zeros(mask: Tensor) -> bool:
    """Return whether single entries are missing, not whole channels."""
    rows = mask.flatten(1).mean(1)
    columns = mask.transpose(0, 1).flatten(1).mean(1)
    return bool(((rows > 0) & (rows < 1)).any()) and bool(((columns > 0) & (columns < 1)).all())


def stretches(there: Tensor) -> tuple[tuple[float, float], ...]:
    """Return where a row of yes and no says yes, as parts of its length."""
    edge = torch.diff(torch.cat([torch.zeros(1), there.float(), torch.zeros(1)]))
    starts, ends = (edge > 0).nonzero().flatten(), (edge < 0).nonzero().flatten()
    return tuple((float(a) / len(there), float(b) / len(there)) for a, b in zip(starts, ends, strict=True))


def row_of(name: str) -> int:
    """Return the row of a tower that a tensor belongs to, by its name."""
    parts = name.split(".")
    if parts[0] in ("stages", "heads"):
        return int(parts[1]) + 1
    return len(ROWS) - 1 if parts[0] == "linear" else 0
