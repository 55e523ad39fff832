"""What the studies of fashion.py write: a JSON file with every number, a Markdown page with a table and a verdict."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import verdicts
from fashion_studies import STUDIES, Claim, Study

import coterie as ct

Runs = Sequence[Mapping[str, Any]]


def values(runs: Runs, arm: str, case: str, measure: str) -> dict[int, float]:
    """A measure of an arm by seed; a run that diverged has none."""
    mine = (run for run in runs if run["arm"] == arm and run["partition"] == case)
    return {run["seed"]: run[measure] for run in mine if measure in run}


def spread(numbers: Iterable[float]) -> str:
    """Mean and standard deviation over the seeds; small numbers have more digits."""
    known = list(numbers)
    return verdicts.spread(known, 1 if max(map(abs, known), default=1) >= 0.5 else 3)


def judged(claim: Claim, runs: Runs) -> dict[str, Any]:
    """The differences seed by seed, and the word for them."""
    low, high = (values(runs, arm, claim.case, claim.measure) for arm in (claim.low, claim.high))
    found = [round(d, 4) for d in verdicts.differences(low, high)]
    return {**claim._asdict(), "differences": found, "verdict": verdicts.verdict(found)}


def sentence(claims: Sequence[Mapping[str, Any]]) -> str:
    """The verdict in one sentence."""
    groups = {v: [ordering(c, claims) for c in claims if c["verdict"] == v] for v in verdicts.WORDS}
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
        verdicts.RULE,
        "What was run and how to read it: [fashion.md](fashion.md).",
    ]
    return "\n\n".join(parts) + "\n"


def written(
    folder: Path, name: str, study: Study, best: Mapping[str, float], trials: Runs, runs: Sequence[dict[str, Any]]
) -> str:
    """Writes both files; returns the page."""
    versions = {"coterie": ct.__version__, "torch": torch.__version__, "python": platform.python_version()}
    made = {"versions": versions, "machine": f"{platform.machine()}, one thread a run", "lr": best}
    return _written(folder, name, study, made, trials, runs)


def rewritten(folder: Path, name: str) -> None:
    """Both files again, from the runs in the first."""
    old = json.loads((folder / f"fashion-{name}.json").read_text())
    made = {k: old[k] for k in ("versions", "machine", "lr")}
    _written(folder, name, STUDIES[name], made, old["tuning"], old["runs"])


def _written(
    folder: Path, name: str, study: Study, made: Mapping[str, Any], trials: Runs, runs: Sequence[Mapping[str, Any]]
) -> str:
    claims = [judged(claim, runs) for claim in study.claims]
    head = {"study": name, "about": study.about, "verdict": sentence(claims), **made}
    lists = {"tuning": trials, "claims": claims, "runs": runs}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    lines += [f" {json.dumps(k)}: [\n  {_lines(v)}\n ]" for k, v in lists.items()]
    (folder / f"fashion-{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    text = page(name, study, made["lr"], claims, runs)
    (folder / f"fashion-{name}.md").write_text(text)
    return text


def _lines(rows: Runs) -> str:
    """A line a run, so that a difference between two versions of the file can be read."""
    return ",\n  ".join(map(json.dumps, rows))
