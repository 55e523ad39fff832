"""The seven recipes of FedAvg-P/Scaffold-P at their full size on MNIST, three seeds each, and what they show.

    COTERIE_DATA=... python docs/evidence/004_recipes.py [--out docs/evidence]

Writes 004_recipes.json (numbers; runs that are in it already are not made again) and 004_recipes.md (what they show).
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import verdicts  # the rule of all pages, beside this script

import coterie as ct
from coterie.papers.recipes import Recipe, load

FIGURES = ("1a", "1b", "1c", "1d", "2a", "2b", "2c")
OF_STEPS = ("1c", "1d", "2c")  # what the number of local steps does
NAMES = {"1": "FedAvg-P", "2": "Scaffold-P"}
REACHED = 0.1  # a norm that all runs pass on their way
Rows = list[dict[str, Any]]
Columns = list[dict[int, float]]  # for each case the numbers by seed


def recipe_of(figure: str, reading: str = "ours") -> Recipe:
    """The recipe of a figure, in our choice or as the paper has it."""
    return load(f"fedavg-p-f{figure}").read(None if reading == "ours" else "paper")


def played(figure: str, case: int, seed: int, reading: str) -> dict[str, Any]:
    """One run: its steady norm, the mean over the last fifth of the rounds, and when it first fell below a tenth."""
    recipe = recipe_of(figure, reading)
    chosen = recipe.cases[case - 1]
    (method,) = chosen.methods
    fed = recipe.federation(case, seed)
    run = ct.fit(
        recipe.model(case, fed, seed=seed),
        fed,
        recipe.algorithm(method, case),
        rounds=chosen.rounds,
        seed=seed,
        progress=False,
        record=recipe.record,
        evaluate_every=max(1, chosen.rounds // 30),
    )
    rows = [row for row in run.history if row.get("gradient_norm_shared") is not None]
    norms = [(row["round"], (row["gradient_norm_shared"] + row["gradient_norm_personal"]) ** 0.5) for row in rows]
    late = [norm for t, norm in norms if t > 0.8 * chosen.rounds]
    below = next((t for t, norm in norms if norm < REACHED), None)
    told = {"reading": reading, "figure": figure, "case": chosen.label, "seed": seed}
    return {**told, "steady": round(fmean(late), 5), "below": below}


def everything(done: Rows, keep: Callable[[Rows], object]) -> Rows:
    """All runs, those that are there already included; ``keep`` is called after each."""
    known = {(r["reading"], r["figure"], r["case"], r["seed"]) for r in done}
    for reading, figure in [*(("ours", f) for f in FIGURES), *(("paper", f) for f in OF_STEPS)]:
        recipe = recipe_of(figure)
        for number, case in enumerate(recipe.cases, 1):
            for seed in range(recipe.seeds):
                if (reading, figure, case.label, seed) not in known:
                    done.append(played(figure, number, seed, reading))
                    print(done[-1], flush=True)
                    keep(done)
    return done


def column(rows: Rows, figure: str, field: str, reading: str = "ours") -> Columns:
    """A field of a figure's runs: for each case the numbers by seed."""
    labels = [case.label for case in recipe_of(figure).cases]
    mine = [r for r in rows if (r["figure"], r["reading"]) == (figure, reading)]
    return [{r["seed"]: r[field] for r in mine if r["case"] == label} for label in labels]


def claims(rows: Rows) -> list[str]:
    """Each claim with the numbers it rests on and the verdict."""
    steady, below = ({f: column(rows, f, field) for f in FIGURES} for field in ("steady", "below"))
    lines = []
    for number, name in NAMES.items():
        a, b, c = (f"{number}{letter}" for letter in "abc")
        lines += [
            row(f"{a}: a smaller gamma ends lower ({name})", steady[a], verdicts.rising(steady[a])),
            row(f"{a}: and gets there later ({name})", below[a], verdicts.rising(below[a][::-1]), 1),
            row(f"{b}: more participants end lower ({name})", steady[b], verdicts.rising(steady[b][::-1])),
            row(f"{c}: more local steps are faster ({name})", below[c], verdicts.rising(below[c][::-1]), 1),
        ]
    return [*lines, *of_steps(steady)]


def of_steps(steady: dict[str, Columns]) -> list[str]:
    """The claims about the number of local steps, of which two are that nothing moves."""
    last = [steady["2c"][-1], steady["1c"][-1]]
    return [
        row("1c: more local steps end higher (FedAvg-P)", steady["1c"], verdicts.rising(steady["1c"])),
        row("1d: with all clients the end is independent of K", steady["1d"], verdicts.unmoved(steady["1d"])),
        row("2c: the end is independent of K", steady["2c"], verdicts.unmoved(steady["2c"])),
        row("2c: at K = 25 Scaffold-P ends below FedAvg-P", last, verdicts.rising(last)),
    ]


def row(statement: str, columns: Sequence[Mapping[int, float]], word: str, digits: int = 4) -> str:
    """A line of the table."""
    return f"| {statement} | {', '.join(verdicts.spread(c.values(), digits) for c in columns)} | {word} |"


PAGE = """# The recipes of FedAvg-P and Scaffold-P

    COTERIE_DATA=... python docs/evidence/004_recipes.py

`coterie recipe run fedavg-p-f1a` and its six siblings, at the size they have in the package: logistic regression on
MNIST, ten clients, three seeds (of data, cohorts and batches). Numbers are means over the seeds ± their standard
deviation: the steady norm sqrt(G_u + G_v), the mean over the last fifth of the rounds, measured every thirtieth of
them; or the first measured round below 0.1. Both parts of the norm have the weight 1 for every m, so that runs with
different m can be compared; Theorems 3.7 and 4.5 bound G_u + m/n G_v. There is no noise on the personal gradient in 1b
and 2b. In 1c, 1d and 2c the batches are drawn with replacement (`replacement=true`): K batches of one pass would have
less variance together than K times that of one, which would stand against K.

{rule}

| claim | cases, in the order of the recipe | |
|---|---|---|
{table}

Independence of K is tested from both sides: a norm that falls contradicts it as much as one that rises. Three seeds
cannot tell a difference of a few percent.

What the paper does not state was chosen so that its claims can show (each recipe lists it under "assumed"): one label a
client, rho = 1, eta_u = T where everybody takes part. [Gradient norms](004_figures.md) shows what becomes of them
elsewhere. What the paper does state and the recipes change for the same reason (listed under "changed"): gamma = 0.005
in 1c, 1d and 2c, gamma = 0.02, K = 5 and 2,000 images in 1b and 2b.

## With the printed gamma

`--reading paper` has what the paper sets "unless specified otherwise", gamma = 0.001, m = 9 and K = 25. It does not
state the rounds; with gamma K T = 12, as above, they are 2400, 1200 and 480 for K = 5, 10 and 25. The same claims,
with three seeds:

| claim | K = 5, 10, 25 | |
|---|---|---|
{printed}

All norms are smaller, and Figure 1c hardly shows: in two seeds FedAvg-P's norm at K = 25 is about a fifth above that at
K = 5, in the third it is twice as large. Independence fails by 3 and 4 %, because here the norms of the three seeds are
that close to each other; a figure would not show it, and we did not look for the cause. 1b and 2b were not run in this
reading, in which every step sees all 60,000 images.
"""


def page(rows: Rows) -> str:
    """What the runs show."""
    at_printed = {figure: column(rows, figure, "steady", "paper") for figure in OF_STEPS}
    tables = ("\n".join(lines) for lines in (claims(rows), of_steps(at_printed)))
    return PAGE.format(rule=verdicts.RULE, **dict(zip(("table", "printed"), tables, strict=True)))


def main() -> None:
    """Runs what is missing and writes both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    file = out / "004_recipes.json"

    def keep(rows: Rows) -> None:
        file.write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")

    rows = everything(json.loads(file.read_text()) if file.exists() else [], keep)
    (out / "004_recipes.md").write_text(page(rows))


if __name__ == "__main__":
    main()
