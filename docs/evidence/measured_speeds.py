"""What the runs at the papers' size say about the speed of their machine, for the times that `coterie recipe` tells.

    python docs/evidence/measured_speeds.py

writes them into the table that the package ships, after ``cifar10.py`` has gathered the runs. Other runs are added by
``coterie recipe speed RUN --to src/coterie/papers/recipes/files/speeds.json``.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from coterie.papers.recipes import load
from coterie.papers.recipes.speeds import Speed, add_speeds, measure_speed, participants

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "src" / "coterie" / "papers" / "recipes" / "files" / "speeds.json"
H200 = "NVIDIA H200"  # the machine of the runs that do not name theirs
MEDIAN_ONLY = 3  # rows of a run of which only the median is kept: all equal
FILES = {
    "cifar10.json": ("dfedalt-t1", 2),
    "cifar10-fedlmt-t2-image.json": ("fedlmt-t2-image", 1),
    "cifar10-dfedsam-t1.json": ("dfedsam-t1", 1),
}
# The first runs of these methods, which do not tell how long evaluation took; later ones count.
NO_MEASUREMENT = dict.fromkeys(("fedrep", "fedbabu"), "a second run trained on the same GPU")
NO_MEASUREMENT["dfedalt"] = "the time of its evaluations was not kept"
CLOCKED = "dfedalt, every round evaluated"  # a separate clock kept the ends of its rounds


class Recorded(NamedTuple):
    """One run of the evidence."""

    name: str
    recipe: str
    case: int
    method: str  # of the recipe
    config: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def no_measurement(self) -> str | None:
        """Why its times say nothing about its machine, if they do not."""
        if "," in self.name and self.name != CLOCKED:
            return "it was set otherwise than in the recipe, whose FLOPs are counted"
        return None if "evaluation_seconds" in self.rows[0] else NO_MEASUREMENT.get(self.name)

    @property
    def speed(self) -> Speed:
        """What it says about its machine."""
        told = measure_speed(self.config, self.rows, f"docs/evidence, {self.name}")
        return told._replace(building=None) if len(self.rows) == MEDIAN_ONLY else told


def recorded() -> list[Recorded]:
    """Return all runs that the evidence has kept with their times."""
    found = []
    for file, (recipe, case) in FILES.items():
        path = HERE / file
        runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for name, run in runs.items():
            method, config = name.split(",")[0], {"machine": H200, **run["config"]}
            found.append(Recorded(name, recipe, case, method, config, _rows(recipe, case, method, name, run)))
    return found


def _rows(recipe: str, case: int, method: str, name: str, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a run as far as they were kept; FLOPs are as the recipe counts them."""
    published = load(recipe).cases[case - 1]
    price, config = published.estimates[method], run["config"]
    shape = {
        "flops": price["flops"] / published.rounds,
        "forward_flops": price["forward"] * participants(config["settings"], config["data"]["clients"]),
    }
    seconds = run["seconds"] * (1 if len(run["seconds"]) > 1 else MEDIAN_ONLY)
    rows = [{"seconds": s, "global_accuracy": a, **shape} for s, a in zip(seconds, run["global"], strict=False)]
    looks = run.get("evaluation_seconds") or (_beside_the_clock(seconds) if name == CLOCKED else None)
    return rows if looks is None else [{**r, "evaluation_seconds": s} for r, s in zip(rows, looks, strict=True)]


def _beside_the_clock(seconds: list[float]) -> list[float]:
    """Return what DFedAlt's rounds took beyond training, whose ends a clock of their own has kept."""
    ends = json.loads((HERE / "cifar10-times.json").read_text(encoding="utf-8"))["round_ends"]
    return [0.0, *(b - a - s for (a, b), s in zip(pairwise(ends), seconds[1:], strict=True))]


if __name__ == "__main__":
    add_speeds(TABLE, [run.speed for run in recorded() if not run.no_measurement])
