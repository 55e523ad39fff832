"""How long recipes take: where that was measured, what it comes to, and how a machine is measured."""

from collections.abc import Sequence
from pathlib import Path

from ...core.spec import scaled
from ..recipes import Recipe
from ..recipes.costs import CaseCost, cost, duration
from ..recipes.speeds import Platform, add_speeds, known_speeds, own_file, read_run

TIMES = (
    "time: on {}, as measured there with the same model, building and evaluation included; > some runs are like none "
    "that were measured, - all of them; for your machine: coterie recipe speed RUN, after a run of some rounds"
)


def platforms_of(recipes: Sequence[Recipe]) -> list[Platform]:
    """Return where some of the recipes have a time, in the order in which they were measured."""
    measured = dict.fromkeys(speed.platform for speed in known_speeds())
    return [p for p in measured if any(cost(r, platform=p).seconds for r in recipes)]


def tell_times(recipe: Recipe) -> str:
    """Return how long all of a recipe takes wherever some of it can be told, or that nobody knows."""
    found = {p: cost(recipe, platform=p) for p in platforms_of([recipe])}
    told = [f"{spent.time()} on {p}" for p, spent in found.items()]
    return ", ".join(told) or "no time is known, because nothing like it was measured"


def platform_of(device: str | None, precision: str | None) -> Platform:
    """Return what a run would run on here."""
    from ...training.checks import find_device
    from ...training.config import machine

    return Platform(machine(find_device(device or "auto").type), precision or "fp32")


def tell_time(spent: CaseCost, platform: Platform) -> str:
    """Return how long it takes, or how to find that out."""
    if not spent.seconds:
        return f"how long that takes on {platform} was never measured (coterie recipe speed RUN, after some rounds)"
    less = f", without {scaled(spent.untimed, 'FLOP')} in runs like none that were measured" if spent.untimed else ""
    return f"{duration(spent.seconds)} on {platform}, as measured{less}"


def learn_speeds(runs: Sequence[Path], to: Path | None) -> None:
    """Keep the speeds that runs have measured, and print them."""
    found = [read_run(folder) for folder in runs]
    add_speeds(to or own_file(), found)
    for speed in found:
        looks = "not measured" if speed.evaluation is None else f"{scaled(speed.evaluation, 'FLOP')}/s"
        print(
            f"{speed.source}: {speed.method}, {speed.model} on {speed.platform}, {speed.engine}: training "
            f"{scaled(speed.training, 'FLOP')}/s, evaluation {looks}, building {speed.building or 0:.0f} s"
        )
    print(f"kept in {to or own_file()}")
