"""``coterie.compare``: several methods on the same clients, from Python."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from ..core.annotations import Example
from ..core.arguments import accept, checked
from ..core.clients import Clients
from ..core.errors import UserError
from ..core.extras import warn_without_frames
from ..data import Federation
from ..training.prepare import begun_folder, takes_options
from ..training.run import Run
from .compared import Compared
from .comparison import ComparisonPlan
from .folders import check_free
from .grids import Grids, grids_of, handed_values
from .handed import MethodLike, by_method, labeled, planned
from .methods import check_different
from .plan import StudyPlan
from .presets import DATA
from .remarks import Remarks
from .settings import ComparisonSettings


@takes_options(ComparisonSettings)
@checked("function")
def compare(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike],
    data: Annotated[str | Federation, Example('"digits" or coterie.data.federate("digits")')] = DATA,
    **options: Any,
) -> Compared:
    """Train several methods on the same clients, seed by seed, and return table, tests and runs.

    It is what ``coterie compare`` does, to the last digit: what is not given is the preset of the data, and methods by
    name have its settings. A seed draws data, first model and batches anew; data that are handed over as a
    ``Federation`` are the same for all seeds, and so is a module. Without ``out`` nothing is written, and the models of
    all runs stay in memory.

    Args:
        methods: Names, algorithms with their settings, or a dict of either by what each is called.
        data: A source as it is typed (see ``coterie.data.federate``), or a federation.
        {options}

    >>> import coterie as ct
    >>> found = ct.compare(["local", "fedavg"], "synthetic:size=200", clients=3, rounds=1, progress=False)
    >>> found
    Compared(local, fedavg: 1 seed)
    >>> found.frame()["sent"].tolist()[0], len(found.runs["fedavg"][0].clients)
    (0.0, 3)
    """
    settings = ComparisonSettings(**options)
    begun_folder(settings)  # refuses what needs a folder
    called = labeled(methods)
    plan = StudyPlan.of(planned(called, settings.settings), data, settings)
    if all(method == label for label, method in called.items()):
        check_different(list(plan.methods.values()), plan.algorithms)
    out = settings.folder
    if out is not None and not settings.resume:
        check_free(out)
    comparison = ComparisonPlan.of(plan, settings.seeds, out, settings.target, _grids(plan, settings))
    output = Remarks(quiet=not settings.progress)
    output.say(comparison.remarks)
    warn_without_frames("found.rows() has what found.frame() would have")
    runs: dict[str, list[Run]] = {label: [] for label in called}
    trained = comparison.train(output, settings.trackers, keep=lambda label, run: runs[label].append(_kept(run, out)))
    return Compared(trained, runs, out)


def _grids(plan: StudyPlan, settings: ComparisonSettings) -> Grids:
    """Return the values to choose among, which are for methods by name."""
    tune = settings.tune or {}
    if tune and any(m.ready is not None or m.label != m.name for m in plan.methods.values()):
        raise UserError("tune chooses settings of methods by name, and some of these have their own: leave tune out")
    tried = {k: accept("function compare", f"tune[{k!r}]", v, list | tuple) for k, v in tune.items()}
    items = [(*by_method(key), handed_values(f"tune[{key!r}]", values)) for key, values in tried.items()]
    builders = {label: method.builder for label, method in plan.methods.items()}
    return grids_of(items, builders, "tune", {by_method(key) for key in settings.settings or {}})


def _kept(run: Run, out: Path | None) -> Run:
    """Return a run without its models where these are in a folder, because those of all runs would fill the memory."""
    return run if out is None else replace(run, clients=Clients([]), final={}, constants={})
