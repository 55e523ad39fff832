"""What the studies of fashion.py write: a JSON file with every number, a Markdown page with a table and a verdict."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from fashion_studies import Claim, Study

import coterie as ct

Runs = Sequence[Mapping[str, Any]]
HOLDS, DOES_NOT = "holds", "does not show at this size"


def values(runs: Runs, arm: str, case: str, measure: str) -> dict[int, float]:
    """A measure of an arm by seed; a run that diverged has none."""
    mine = (run for run in runs if run["arm"] == arm and run["partition"] == case)
    return {run["seed"]: run[measure] for run in mine if measure in run}


def spread(numbers: Iterable[float]) -> str:
    """Mean and standard deviation over the seeds."""
    known = list(numbers)
    if len(known) < 2:
        return "-"
    digits = 1 if max(map(abs, known)) >= 0.5 else 3
    return f"{fmean(known):.{digits}f} ± {stdev(known):.{digits}f}"


def judged(claim: Claim, runs: Runs) -> dict[str, Any]:
    """The differences seed by seed, and whether they bear the claim out.

    It holds where every seed has the claimed sign and the mean difference exceeds the standard deviation of the
    differences. A pair of which a run diverged shows nothing.
    """
    low, high = (values(runs, arm, claim.case, claim.measure) for arm in (claim.low, claim.high))
    differences = [round(high[seed] - low[seed], 4) for seed in sorted(high.keys() & low.keys())]
    known = len(differences) > 1 and len(differences) == max(len(low), len(high))
    clear = known and min(differences) > 0 and fmean(differences) > stdev(differences)
    return {**claim._asdict(), "differences": differences, "verdict": HOLDS if clear else DOES_NOT}


def sentence(claims: Sequence[Mapping[str, Any]]) -> str:
    """The verdict in one sentence."""
    groups = {v: [ordering(c, claims) for c in claims if c["verdict"] == v] for v in (HOLDS, DOES_NOT)}
    found = [f"{verdict}: {', '.join(orderings)}" for verdict, orderings in groups.items() if orderings]
    text = "; ".join(found)
    return f"{text[0].upper()}{text[1:]}."


def ordering(claim: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> str:
    """One claim in words; its measure and its case where those of a study differ."""
    several = [k for k in ("measure", "case") if len({c[k] for c in claims}) > 1]
    where = ", ".join(str(claim[k]).replace("_", " ") for k in several)
    return f"{claim['low']} < {claim['high']}" + (f" ({where})" if where else "")


def table(study: Study, case: str, position: int, best: Mapping[str, float], runs: Runs) -> str:
    """One case: a row an arm."""
    lines = [
        f"| arm | {' | '.join(study.columns)} | lr | published |",
        f"|---|{'---|' * len(study.columns)}---|---|",
    ]
    for label, arm in study.arms.items():
        cells = [spread(values(runs, label, case, measure).values()) for measure in study.columns.values()]
        theirs = f"{arm.published[position]:.2f}" if arm.published else "-"
        lines.append(f"| {label} | {' | '.join(cells)} | {best[label]:g} | {theirs} |")
    return "\n".join(lines)


def claims_table(claims: Sequence[Mapping[str, Any]]) -> str:
    """A row a claim, with its difference in points."""
    lines = ["| claim | difference | seeds | verdict |", "|---|---|---|---|"]
    for claim in claims:
        found = claim["differences"]
        right = f"{sum(d > 0 for d in found)} of {len(found)}"
        lines.append(f"| {ordering(claim, claims)} | {spread(found)} | {right} | {claim['verdict']} |")
    return "\n".join(lines)


def page(name: str, study: Study, best: Mapping[str, float], claims: Sequence[Mapping[str, Any]], runs: Runs) -> str:
    """The Markdown of a study."""
    parts = [f"# {name}", study.about, f"**{sentence(claims)}**", f"    python docs/evidence/fashion.py {name}"]
    for position, case in enumerate(study.cases):
        parts += [f"## {case}", table(study, case, position, best, runs)]
    parts += ["## Claims", claims_table(claims)]
    seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for run in runs}))
    parts += [
        f"Mean ± standard deviation over seeds {seeds}, in % but for distances. {study.images:,} training images, "
        f"{study.rounds} rounds, means of the last three.",
        "Differences are taken seed by seed. What was run and how to read it: [fashion.md](fashion.md).",
    ]
    return "\n\n".join(parts) + "\n"


def written(
    folder: Path, name: str, study: Study, best: Mapping[str, float], trials: Runs, runs: Sequence[dict[str, Any]]
) -> str:
    """Writes both files; returns the page."""
    claims = [judged(claim, runs) for claim in study.claims]
    versions = {"coterie": ct.__version__, "torch": torch.__version__, "python": platform.python_version()}
    head = {
        "study": name,
        "about": study.about,
        "verdict": sentence(claims),
        "versions": versions,
        "machine": f"{platform.machine()}, one thread a run",
        "lr": best,
    }
    lists = {"tuning": trials, "claims": claims, "runs": runs}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    lines += [f" {json.dumps(k)}: [\n  {_lines(v)}\n ]" for k, v in lists.items()]
    (folder / f"fashion-{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    text = page(name, study, best, claims, runs)
    (folder / f"fashion-{name}.md").write_text(text)
    return text


def _lines(rows: Runs) -> str:
    """A line a run, so that a difference between two versions of the file can be read."""
    return ",\n  ".join(map(json.dumps, rows))
