"""The loss around models after the last round: the one that all clients agree on, or their own.

The common model is drawn on request, and where a paper draws it; the clients' own models where some method looks for
flat places. The loss is computed when the page is made, from the saved models and the data of the configuration, on as
many samples as fit a budget; where one of these is missing, a sentence says so.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, floor, log10
from statistics import fmean
from typing import NamedTuple

import torch

from ...core.custom import own_code
from ...core.errors import UserError
from ...core.tensors import Tensors, replicate, stack
from ...data import Federation
from ...data.batches import Samples
from ...engines import Serial
from ...measure.sharpness import loss_slice
from ...models.cost import cost
from ...models.losses import loss_named
from ...models.model import Model
from ...report.charts import INK, SCALE, Chart, Figure, Section, axis, color_bar
from ...report.groups import Setup
from ...report.record import Record
from ...store.checkpoint import Checkpoint
from ...training.checks import find_device
from ...training.config import rebuild
from ...training.experiment import Experiment
from ...training.prepare import prepare
from ...training.run import shapes
from ...training.settings import RunSettings

SIDE = 11  # places along each direction
GRID = [2 * i / (SIDE - 1) - 1 for i in range(SIDE)]
BUDGET = {"cpu": 3e10, "cuda": 5e13}  # multiply-adds for all slices together: some seconds
TINY = 1e-12  # below it a loss has no logarithm worth drawing
LEAST = 4  # samples per client, below which a loss says nothing


class Slice(NamedTuple):
    """F(x + a d + b e) for a and b in GRID."""

    losses: list[list[float]]
    samples: int  # per client at most


class Kind(NamedTuple):
    """Whose loss is drawn."""

    name: str  # of the charts
    title: str
    what: str  # the model and the samples, in words
    models: Callable[[Experiment, Record], Tensors]  # stacked
    pooled: bool  # whether all samples belong to one client


def landscapes(setup: Setup, say: Callable[[str], object], together: bool) -> list[Section]:
    """Draw the loss around the common model on request, and around the clients' own for sharpness-aware methods."""
    # The settings tell, because a page is made of run folders alone: nothing is bound, one's own method cannot be.
    sharpness_aware = any(m.first.config["settings"].get("rho") for m in setup.methods)
    kinds = [*([TOGETHER] if together else []), *([OWN] if sharpness_aware else [])]
    if not kinds:
        return []
    say(f"computing the loss around the models of {len(setup.methods)} methods for the report")
    budget = BUDGET[find_device("auto").type] / len(setup.methods) / len(kinds)
    return [_landscape(setup, kind, budget) for kind in kinds]


def _landscape(setup: Setup, kind: Kind, budget: float) -> Section:
    try:
        slices = {method: slice_of(method.first, kind, budget) for method in setup.methods}
    except UserError as error:
        return Section(title=kind.title, about=f"It is left out: {error}.")
    tops = [max(map(max, s.losses)) for s in slices.values()]
    lows = [min(map(min, s.losses)) for s in slices.values()]
    charts = [
        Chart(f"{kind.name}-{i}", method.label, _rise(s), {"": _contours(s, min(lows), max(tops))}, height=320)
        for i, (method, s) in enumerate(slices.items())
    ]
    samples = max(s.samples for s in slices.values())
    about = (
        "The training loss F(x + a d + b e) along two random directions whose filters are as long as the model's, for "
        f"a and b from -1 to 1: {kind.what} (at most {samples} per client), seed {setup.methods[0].first.seed}. All "
        "colors are on one scale, a logarithmic one; from line to line the loss grows by a quarter."
    )
    return Section(charts, kind.title, about)


def slice_of(record: Record, kind: Kind, budget: float) -> Slice:
    """Compute the slice of a run's models, with so many multiply-adds."""
    if not record.finished:
        raise UserError("a run is not finished")
    device = find_device("auto")
    model, federation, experiment = _problem(record, device)
    samples, most = _some_samples(federation, model, budget)  # before all models are loaded
    if kind.pooled:
        samples = replace(samples, owned=(torch.cat(samples.owned),))
    stacked = {k: v.to(device) for k, v in kind.models(experiment, record).items()}
    mean = torch.nanmean(loss_slice(Serial(), model, stacked, samples, GRID, seed=record.seed), 0)
    if not bool(mean.isfinite().all()):
        raise UserError("around some models it is not finite")
    return Slice(mean.tolist(), most)


def _own_models(experiment: Experiment, record: Record) -> Tensors:
    """Return every client's model."""
    clients = list(record.run().clients)
    models = [c.shared | c.personal for c in clients]
    if not models:
        raise UserError("the models of a run were left out of its pack")
    if any(shapes(model) != shapes(experiment.model.start) for model in models):
        raise UserError("the clients of a method hold models of unequal size, or of another than the common one")
    alike = clients[0].same is not None and len({c.same for c in clients}) == 1
    once: Tensors = replicate(clients[0].shared, len(clients)) if alike else {}
    each: Tensors = stack([{k: v for k, v in model.items() if k not in once} for model in models])
    return {k: once[k] if k in once else each[k] for k in models[0]}


def _common_model(experiment: Experiment, record: Record) -> Tensors:
    """Return the model that global accuracy is of, from the last state of the run."""
    run = record.run()
    if not run.final:
        raise UserError("a run has no checkpoint")
    state = experiment.restored(Checkpoint(record.config["rounds"], run.final)).state
    return {k: v[None] for k, v in experiment.consensus_model(state).items()}


OWN = Kind(
    "landscape",
    "The loss around the clients' own models",
    "each client's own model after the last round on its own samples, mean over the clients",
    _own_models,
    pooled=False,
)
TOGETHER = Kind(
    "landscape-mean",
    "The loss around the one model that all clients agree on",
    "the averaged model after the last round, or the server's, on the samples of all clients together",
    _common_model,
    pooled=True,
)


def _problem(record: Record, device: torch.device) -> tuple[Model, Federation, Experiment]:
    """Return the model as the method trained it, and the clients' data; refuse code of one's own."""
    if code := own_code(record.config):  # somebody's runs do not say what runs here
        raise UserError(f"a report does not run {' and '.join(code)}, code that only a configuration names")
    if record.parts:
        raise UserError("the samples of a federation's members are with them alone")
    module, federation, algorithm = rebuild(record.config, data_dir=record.data_dir)
    if federation.fingerprint() != record.config["fingerprints"]["data"]:
        raise UserError("the data are not those of the run any more")
    settings = RunSettings(
        rounds=record.config["rounds"], seed=record.seed, loss=loss_named(record.config["loss"]), device=device
    )
    experiment = prepare(module, federation, algorithm, settings.having(engine="serial")).experiment
    return experiment.model, experiment.federation, experiment


def _some_samples(federation: Federation, model: Model, budget: float) -> tuple[Samples, int]:
    """Return as many training samples of every client as the budget allows."""
    one = max(1, cost(model.evaluation, federation.sample(2)).macs * SIDE**2 * federation.clients)
    most = min(int(federation.sizes.max()), int(budget / one))
    if most < LEAST:
        raise UserError(
            f"{LEAST} samples a client would take {LEAST * one:.1e} multiply-adds; "
            "coterie.measure.sharpness.loss_slice computes it in Python"
        )
    owned = tuple(part[:most] for part in federation.train)
    return Samples(federation.x, federation.y, owned, federation.transform), most


def _rise(s: Slice) -> str:
    """Say how steep the slice is."""
    middle = s.losses[SIDE // 2][SIDE // 2]
    near, far = SIDE // 4 + SIDE % 2, SIDE - 1 - SIDE // 4 - SIDE % 2
    places = range(near, far + 1)
    around = [s.losses[a][b] for a in places for b in places if near in (a, b) or far in (a, b)]
    return f"Loss {middle:.3g} in the middle, {fmean(around):.3g} on average half way to the edges."


def _contours(s: Slice, low: float, high: float) -> Figure:
    """Draw a slice on a logarithmic scale, as models beside each other may differ by orders of magnitude."""
    first, last = log10(max(low, TINY)), log10(max(high, TINY))
    ticks = [d * 10.0**e for e in range(floor(first), ceil(last) + 1) for d in (1, 2, 5)]
    shown = [t for t in ticks if first <= log10(t) <= last]
    trace = {
        "type": "contour",
        "x": GRID,
        "y": GRID,
        "z": [[log10(max(loss, TINY)) for loss in row] for row in s.losses],
        "customdata": s.losses,
        "zmin": first,
        "zmax": last,
        "autocontour": False,
        "colorscale": SCALE,
        "contours": {"coloring": "heatmap", "start": first, "end": last, "size": log10(1.25)},
        "line": {"width": 0.7, "color": INK},
        "colorbar": color_bar("loss", 10, tickvals=list(map(log10, shown)), ticktext=[f"{t:g}" for t in shown]),
        "hovertemplate": "a %{y:.2f}, b %{x:.2f}: loss %{customdata:.4~g}<extra></extra>",
    }
    plain = {"showgrid": False, "zeroline": False, "constrain": "domain", "dtick": 0.5}
    return {"data": [trace], "layout": {"xaxis": axis("b", **plain), "yaxis": axis("a", **plain, scaleanchor="x")}}
