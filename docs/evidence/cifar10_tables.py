"""What cifar10.py writes: a table for every case of a paper that was run at its size, claims, and one picture."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import Any, NamedTuple

import cifar10_small
import matplotlib
import verdicts
from cifar10_text import ABOUT, BETWEEN, CANDIDATES, CLAIMED, DIFFERS
from matplotlib.figure import Figure

from coterie.papers.recipes import Recipe, load
from coterie.papers.recipes.metrics import POINTS, WHEN, comes_from_one_run
from coterie.papers.recipes.published import published_numbers

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "cifar10"  # the same runs make the same file
HERE = Path(__file__).parent
TARGET = 0.8
SETTLED = 0.98  # of the rounds, after which a run is compared with what is published
SEED = "seed="
ROUNDS = ("method", "published", "ours")

Run = Mapping[str, Any]
Runs = Mapping[str, Run]  # by row: the method, and what was set otherwise than in the recipe


class Claim(NamedTuple):
    """One method is above others, or passes the target before them."""

    says: str
    high: str
    lows: Sequence[str]
    measure: str = "accuracy"  # or rounds, gap


class Table(NamedTuple):
    """A case of a recipe."""

    recipe: str
    case: int
    file: str  # of its runs
    metric: str  # the published number that is compared
    curve: str | None  # what is drawn and compared, among the kept curves; None: where the paper measures each method
    title: str
    claims: Sequence[Claim]

    @property
    def loaded(self) -> Recipe:
        """The recipe."""
        return load(self.recipe)

    @property
    def rounds(self) -> int:
        """How many it has."""
        return self.loaded.cases[self.case - 1].rounds

    def published(self, metric: str) -> dict[str, float | None]:
        """What the paper prints, by method."""
        return {p.method: p.value for p in published_numbers(self.recipe) if (p.case, p.metric) == (self.case, metric)}

    def points(self, run: Run) -> list[tuple[int, float]]:
        """(round, value in %) of the rounds in which the compared accuracy was measured."""
        return [(t, 100 * v) for t, v in enumerate(run[self.curve or run["point"]], 1) if v is not None]

    def accuracy(self, run: Run) -> float:
        """The accuracy in % of the round that the paper reports."""
        values = [v for _, v in self.points(run)]
        return max(values) if self.loaded.protocol.over_rounds == "best" else values[-1]

    def settled(self, run: Run) -> bool:
        """Whether it has run long enough."""
        return played(run) >= SETTLED * self.rounds


SCRIPT = "lr_decay=0.998, momentum=0.0"  # the rate of DisPFL's script, in the name of a row
SERVER = ("fedavg", "fedper", "fedrep", "fedbabu", "fedrod", "ditto")
NARROW = ("feddropout", "heterofl", "fedhm", "fedrolex", "depthfl", "flanc")
PERSONAL = Table(
    *("dfedalt-t1", 2, "cifar10.json", "personal_accuracy", None),
    "Dirichlet 0.3, ResNet-18-GN",
    (
        Claim("DFedAlt ends above all others", "dfedalt", (*SERVER, "dfedavgm", "dispfl", "dfedsam")),
        Claim("Fed-RoD ends above all others with a server", "fedrod", tuple(m for m in SERVER if m != "fedrod")),
        Claim("DFedAvgM, without a server, ends above FedAvg", "dfedavgm", ("fedavg",)),
        Claim("DFedAlt passes 80 % before all others", "dfedalt", (*SERVER, "dfedavgm"), "rounds"),
        Claim("updating in turns is faster: DFedAlt passes 80 % before DFedAvgM", "dfedalt", ("dfedavgm",), "rounds"),
        Claim("sharpness-aware steps help: DFedSalt ends above DFedAlt", "dfedsalt", ("dfedalt",)),
        Claim("DFedAlt passes 80 % before DFedSalt", "dfedalt", ("dfedsalt",), "rounds"),
    ),
)
CAPACITY = Table(
    *("fedlmt-t2-image", 1, "cifar10-fedlmt-t2-image.json", "global_accuracy", "global_local"),
    "three capacities, ResNet-18-BN",
    (
        Claim("FedLMT ends above all others that train on three capacities", "fedlmt", NARROW),
        Claim("FedAvg with full models ends above FedLMT", "fedavg", ("fedlmt",)),
        Claim("FedRolex ends above HeteroFL", "fedrolex", ("heterofl",)),
    ),
)
CONSENSUS = Table(
    *("dfedsam-t1", 1, "cifar10-dfedsam-t1.json", "global_accuracy_val", "global"),
    "Dirichlet 0.3, mean model, VGG-11-GN",
    (
        Claim("DFedSAM ends above all others without a server", "dfedsam", ("dpsgd", "dfedavg", "dfedavgm", "dispfl")),
        Claim("several gossip steps help: DFedSAM-MGS ends above DFedSAM", "dfedsam-mgs", ("dfedsam",)),
        Claim("DFedSAM-MGS ends above FedSAM, which has a server", "dfedsam-mgs", ("fedsam",)),
        Claim("DFedSAM's gap from training to test is below FedAvg's", "fedavg", ("dfedsam",), "gap"),
    ),
)
DIRECTED = Table(
    *("dfedpgp-t1", 2, "cifar10-dfedpgp-t1.json", "personal_accuracy", None),
    "directed graphs, Dirichlet 0.3, ResNet-18-GN",
    (Claim("DFedPGP ends above OSGP, which has no personal part", "dfedpgp", ("osgp",)),),
)
TABLES = (PERSONAL, CAPACITY, CONSENSUS, DIRECTED)
FASTER = {  # the same runs, by the rounds that they need
    table: Table(recipe, 1, table.file, "rounds_to_80", None, table.title, ())
    for table, recipe in ((PERSONAL, "dfedalt-t2"), (DIRECTED, "dfedpgp-t2"))
}


def kept(table: Table) -> dict[str, dict[str, Any]]:
    """The runs that were gathered, in the order of the paper."""
    path = HERE / table.file
    runs = json.loads(path.read_text()) if path.exists() else {}
    order = list(table.loaded.methods)
    return {row: runs[row] for row in sorted(runs, key=lambda row: order.index(method_of(row)))}


def method_of(row: str) -> str:
    """Whose row it is.

    >>> method_of("fedbabu, stepped rate"), method_of("ditto")
    ('fedbabu', 'ditto')
    """
    return row.partition(", ")[0]


def played(run: Run) -> int:
    """How many rounds a run has."""
    return len(run[run["point"]])


def markdown(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    heads = tuple(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def number(value: float | None, digits: int = 2) -> str:
    """A number, or that there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def compared(table: Table, runs: Runs) -> str:
    """Theirs, ours, the difference and the rounds, and whatever else the paper prints of one run."""
    when = WHEN[table.loaded.protocol.over_rounds]
    further = [m for m in dict.fromkeys(p.metric for p in published_numbers(table.recipe)) if _told(m, table)]
    personal = table.curve is None
    heads = ["method", *(["measured"] if personal else []), "published", f"ours, {when}", "difference"]
    heads += [f"rounds of {table.rounds:,}", *(f"{m.replace('_', ' ')}, published / ours" for m in further)]
    heads += ["last round", "worst client", "of the mean model"] if personal else ["best round", "seconds a round"]
    return markdown(heads, (_row(table, row, run, further) for row, run in runs.items()))


def _told(metric: str, table: Table) -> bool:
    return metric != table.metric and comes_from_one_run(metric) and any(table.published(metric).values())


def _row(table: Table, row: str, run: Run, further: Iterable[str]) -> Sequence[str]:
    ours, values = table.accuracy(run), [v for _, v in table.points(run)]
    printed, settled = table.published(table.metric)[method_of(row)], table.settled(run)
    pairs = ((table.published(m).get(method_of(row)), run["told"].get(m) if settled else None) for m in further)
    last = [[v for v in run.get(k, [None]) if v is not None] for k in ("worst", "global")]
    own = [number(values[-1]), *(number(100 * v[-1], 1) if v else "-" for v in last)]
    return (
        row,
        *([POINTS[run["point"]]] if table.curve is None else []),
        number(printed),
        number(ours),
        f"{ours - printed:+.2f}" if printed is not None and settled else "-",
        f"{played(run):,}",
        *(f"{number(theirs)} / {number(mine)}" for theirs, mine in pairs),
        *(own if table.curve is None else [number(max(values)), number(median(run["seconds"]))]),
    )


def first_round(table: Table, run: Run) -> int | None:
    """The first round that was measured at the target or above it."""
    return next((t for t, v in table.points(run) if v >= 100 * TARGET), None)


def rounds(table: Table, runs: Runs) -> Iterable[Sequence[str]]:
    """When each method first reached the target; a method that is evaluated every tenth round may be told nine late.

    A run that was stopped early says so: it could still have reached the target.
    """
    printed = FASTER[table].published(FASTER[table].metric)
    for row, run in runs.items():
        points, first = table.points(run), first_round(table, run)
        every = points[1][0] - points[0][0] if len(points) > 1 else points[0][0]
        never = "not reached" if table.settled(run) else f"not in the first {played(run)}"
        said = printed.get(method_of(row))
        yield (
            row,
            "not reached" if said is None else f"{said:.0f}",
            never if first is None else str(first) if every == 1 else f"{first - every + 1} to {first}",
        )


def readings(table: Table, runs: Runs) -> Iterable[Sequence[str]]:
    """Rounds to the target and accuracy of the methods that ran at both rates: published, the script's, the texts'."""
    reached = {row: (said, ours) for row, said, ours in rounds(table, runs)}
    for row in (row for row in runs if SCRIPT in row):
        method, both = method_of(row), (row, method_of(row))
        accuracies = (number(table.accuracy(runs[each])) for each in both)
        yield (
            *(method, reached[row][0], *(reached[each][1] for each in both)),
            *(number(table.published(table.metric)[method]), *accuracies),
        )


def unchanged(runs: Runs, method: str) -> dict[int, Run]:
    """The runs of a method by seed, without those that were set otherwise than in the recipe."""
    mine = {row.partition(", ")[2]: run for row, run in runs.items() if method_of(row) == method}
    return {run["config"]["seed"]: run for said, run in mine.items() if not said or said.startswith(SEED)}


def measured(table: Table, runs: Runs, method: str, measure: str) -> dict[int, float]:
    """What a claim is about, by seed; rounds count as negative, because fewer are better. A stopped run has none.

    A run that never passed the target counts as passing it after its last round.
    """
    every = unchanged(runs, method).items()
    if measure == "rounds":
        return {seed: -float(first_round(table, run) or played(run) + 1) for seed, run in every}
    if measure == "gap":
        return {seed: run["told"]["global_generalization_gap"] for seed, run in every if table.settled(run)}
    return {seed: table.accuracy(run) for seed, run in every if table.settled(run)}


def judged(table: Table, claim: Claim, runs: Runs) -> Sequence[str] | None:
    """The claim, who was run, the difference in the paper and in ours, and the word; None: no rows of it."""
    started = [m for m in claim.lows if unchanged(runs, m)]
    if not started or not unchanged(runs, claim.high):
        return None
    ours = {m: measured(table, runs, m, claim.measure) for m in (claim.high, *started)}
    lows = [m for m in started if ours[m]] or started  # who was stopped is not compared
    ours = {m: ours[m] for m in (claim.high, *lows)}
    seeds = set.intersection(*(set(values) for values in ours.values()))
    if claim.measure == "rounds":
        seeds = {s for s in seeds if _decided(table, *(unchanged(runs, m)[s] for m in (claim.high, *lows)))}
    best = {seed: max(ours[m][seed] for m in lows) for seed in seeds}
    found = verdicts.differences(best, {seed: ours[claim.high][seed] for seed in seeds})
    unit = "rounds" if claim.measure == "rounds" else "points"
    stopped = [m for m in ours if not any(table.settled(run) for run in unchanged(runs, m).values())]
    said = f"{'+' * (fmean(found) > 0)}{verdicts.spread(found)} {unit}" if found else f"stopped: {', '.join(stopped)}"
    return claim.says, ", ".join(lows), _printed(table, claim, lows), said, str(len(found)), verdicts.verdict(found)


def _decided(table: Table, high: Run, *lows: Run) -> bool:
    """Whether it is known who passed the target first."""
    first = first_round(table, high)
    return first is not None and all(first_round(table, low) or played(low) >= first for low in lows)


def _printed(table: Table, claim: Claim, lows: Sequence[str]) -> str:
    """The same difference between the printed numbers; who never passed the target is left out."""
    named = FASTER[table] if claim.measure == "rounds" else table
    printed = named.published("generalization_gap" if claim.measure == "gap" else named.metric)
    sign = -1 if claim.measure == "rounds" else 1
    known = [sign * v for m in lows if (v := printed.get(m)) is not None]
    high = printed.get(claim.high)
    return "-" if high is None or not known else f"{sign * high - max(known):+.2f}"


def drawn(runs: Mapping[Table, Runs]) -> Figure:
    """Accuracy over rounds, each method where the paper measures it, and dots where the paper says that it ends.

    A method has one color, and another kind of line for each of its set-ups.
    """
    figure = Figure(figsize=(11, 4.5 * len(runs)), layout="constrained")
    axes = figure.subplots(len(runs), squeeze=False)[:, 0]
    for axis, (table, rows) in zip(axes, runs.items(), strict=True):
        printed, methods = table.published(table.metric), list(dict.fromkeys(map(method_of, rows)))
        for method in methods:
            color = f"C{methods.index(method)}"
            own = {row: run for row, run in rows.items() if method_of(row) == method}
            for kind, (row, run) in zip(cycle(("-", "--", ":", "-.")), own.items(), strict=False):
                where = f", {POINTS[run['point']]}" if table.curve is None else ""
                label = fill(f"{row}{where}", 38, subsequent_indent="   ", break_on_hyphens=False)
                axis.plot(*zip(*table.points(run), strict=True), kind, color=color, label=label, linewidth=1.2)
            axis.plot([1.016 * table.rounds], [printed[method]], marker="o", color=color, clip_on=False)
        if table in FASTER:
            axis.axhline(100 * TARGET, color="gray", linewidth=0.8)
        axis.set(
            xlabel=f"round (dots: published, {WHEN[table.loaded.protocol.over_rounds]})",
            ylabel=f"{'mean personal' if table.curve is None else 'global'} accuracy, %",
            title=f"CIFAR-10, 100 clients, {table.title} ({table.recipe})",
            xlim=(0, 1.02 * table.rounds),
        )
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.03, 1.0))
        axis.grid(alpha=0.3)
    return figure


def page(runs: Mapping[Table, Runs]) -> str:
    """The whole text; a table of which nothing was run is not there."""
    parts = [ABOUT, compared(PERSONAL, runs[PERSONAL]), BETWEEN]
    parts += [markdown(ROUNDS, rounds(PERSONAL, runs[PERSONAL]))]
    for table in (t for t in runs if t is not PERSONAL):
        recipe = table.loaded
        parts += [f"\n## {recipe.about.rstrip('.')} ({table.recipe}, {recipe.where}, case {table.case})\n\n"]
        parts += [f"Runs: [{table.file}]({table.file}).\n\n", compared(table, runs[table])]
        if table in FASTER:
            parts += [
                f"\nRounds until 80 % ({FASTER[table].recipe}):\n\n",
                markdown(ROUNDS, rounds(table, runs[table])),
            ]
    found = [line for table, rows in runs.items() for c in table.claims if (line := judged(table, c, rows))]
    tried = json.loads(cifar10_small.FILE.read_text())
    heads = ("claim", "others that were run", "in the paper", "ours", "seeds", "verdict")
    parts += [CLAIMED.format(rule=verdicts.RULE), markdown(heads, found)]
    candidates = markdown(("detail", "here", "elsewhere", "what it could do"), CANDIDATES)
    heads = ("method", "model", "rounds", "set-up", "personal", "global")
    ways = {"small": PERSONAL, "capacities": CAPACITY, "peers": CONSENSUS}
    details = {name: markdown(heads, cifar10_small.lines(tried, table.recipe)) for name, table in ways.items()}
    columns = ("method", "rounds to 80 %, published", "script", "texts", "accuracy, published", "script", "texts")
    script = markdown(columns, readings(PERSONAL, runs[PERSONAL]))
    return "".join([*parts, DIFFERS.format(candidates=candidates, script=script, **details)])
