"""Which radius trains in which form of SAM? DFedSalt, DFedSAM and FedSAM on digits, beside the methods without SAM.

    python docs/evidence/radii.py           # trains everything (two cores: a quarter of an hour) and writes radii.md
    python docs/evidence/radii.py --page    # writes the page from radii.json

20 clients, Dirichlet 0.3, small-cnn, 20 rounds of 5 epochs, rate 0.05. A peer pulls from 5 others. Half of the clients
take part in a round of a server. Momentum, decay and clipping are those of each method.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import coterie as ct

HERE = Path(__file__).parent
FILE = HERE / "radii.json"
ROUNDS, SEEDS = 20, (0, 1)
LOCAL: dict[str, Any] = {"lr": 0.05, "lr_decay": 1.0, "weight_decay": 0.0, "batch_size": 16, "epochs": 5}
PEERS = {**LOCAL, "topology": "random-pull:5"}
RADII = (0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
FORMS = ("plain", "adaptive")


class Study(NamedTuple):
    """A method with SAM, the method that it is without SAM, and what is known of its radius."""

    without: str
    metric: str
    common: Mapping[str, Any]
    known: str


STUDIES = {
    "dfedsalt": Study(
        "dfedalt",
        "personal_accuracy_after_mix",
        {**PEERS, "personal_lr": 0.05, "personal_epochs": 1},
        "Its paper prints 0.7 with the formula of plain SAM and has no released code. The same group's DP-FedSAM has "
        "the adaptive form by default, with 0.5. Table 3 also has SAM on the head and prints no radius for it, so that "
        "the recipe takes 0.7.",
    ),
    "dfedsam": Study(
        "dfedavg",
        "global_accuracy",
        PEERS,
        "Its paper prints 0.01, chosen from 0.01 to 1.0 in nine values, with the formula of plain SAM; the paper on "
        "DFedSalt repeats 0.01 for this baseline, and DFedSAM-MGS has the same. It has no released code. A third "
        "party's has plain SAM and 0.01.",
    ),
    "fedsam": Study(
        "fedavg",
        "global_accuracy",
        {**LOCAL, "participation": 0.5, "momentum": 0.0, "clip": None},
        "The paper on DFedSAM takes the radius of FedSAM's own paper, which it does not repeat. The recipe has 0.05.",
    ),
}


def settings(method: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a name, a method and its settings for every row of a study."""
    study = STUDIES[method]
    yield study.without, study.without, dict(study.common)
    for form in FORMS:
        for rho in RADII:
            yield f"{form} {rho:g}", method, {**study.common, "rho": rho, "sam": form}


def accuracies(metric: str, method: str, options: Mapping[str, Any]) -> list[float]:
    """Return the last accuracy in %, seed by seed."""
    values = []
    for seed in SEEDS:
        federation = ct.data.federate("digits", clients=20, partition="dirichlet:0.3", seed=seed)
        model = ct.models.build("small-cnn", federation, seed=seed)
        algorithm = ct.algorithms.build(method, **options)
        run = ct.fit(model, federation, algorithm, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, progress=False)
        values.append(100 * run.history[-1][metric])
    return values


def trained() -> dict[str, dict[str, list[float]]]:
    """Train all rows of all studies; a diverged run has no accuracy."""
    results: dict[str, dict[str, list[float]]] = {}
    for name, study in STUDIES.items():
        results[name] = {}
        for row, method, options in settings(name):
            try:
                results[name][row] = accuracies(study.metric, method, options)
            except ct.UserError as error:
                print(f"{name}, {row}: {error}")
                results[name][row] = []
            print(name, row, results[name][row], flush=True)
    return results


def cell(values: list[float]) -> str:
    """Return the mean over the seeds, and the accuracy of each."""
    return f"{mean(values):.1f} ({', '.join(f'{v:.1f}' for v in values)})" if values else "diverged"


def untrained(rows: Mapping[str, list[float]], form: str, without: str) -> str:
    """Name the radii with which a form ends below half of the accuracy without SAM."""
    radii = [f"{r:g}" for r in RADII if mean(rows[f"{form} {r:g}"] or [0.0]) < mean(rows[without]) / 2]
    return f"The {form} form does not train with a radius of {', '.join(radii)}." if radii else ""


def page(results: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return the page."""
    lines = [
        "# Radii of SAM",
        "",
        "Made by [radii.py](radii.py): 20 clients on digits, Dirichlet 0.3, 20 rounds. A cell has the mean of two",
        "seeds in % and both seeds.",
        "",
        "Plain SAM climbs by rho g/|g|. Adaptive SAM climbs by rho T T g/|T g| with T = |w|, so its radius is relative",
        "to the weights. The paper on DFedSalt prints the plain formula with a radius of 0.7, which does not train.",
    ]
    for name, study in STUDIES.items():
        rows = results[name]
        word = "personal accuracy" if study.metric.startswith("personal") else "accuracy of the mean model"
        failures = " ".join(filter(None, (untrained(rows, form, study.without) for form in FORMS)))
        lines += ["", f"## {name}", "", study.known, ""]
        lines += [f"Without SAM ({study.without}): {cell(rows[study.without])}. {failures}".rstrip()]
        lines += ["", f"| rho | plain, {word} | adaptive, {word} |", "|---|---|---|"]
        lines += [f"| {r:g} | {cell(rows[f'plain {r:g}'])} | {cell(rows[f'adaptive {r:g}'])} |" for r in RADII]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train unless only the page is wanted, and write the page."""
    if "--page" not in sys.argv:
        FILE.write_text(json.dumps(trained(), indent=1) + "\n")
    (HERE / "radii.md").write_text(page(json.loads(FILE.read_text())))


if __name__ == "__main__":
    main()
