"""Tables of the papers on CIFAR-10 at their own size: gathers runs, draws them and writes cifar10.md.

    coterie recipe run fedlmt-t2-image --case 1 --methods fedlmt,fedavg --precision bf16 --evaluate-every 20 \
        --out runs/t2
    python docs/evidence/cifar10.py runs/t2 [MORE ...]

A folder is one run (``config.json`` and ``metrics.jsonl`` suffice) or one of ``recipe run``. What a run is, its
configuration says: the table by data, model, clients and method (``TABLES`` in cifar10_tables.py: dfedalt-t1,
fedlmt-t2-image, dfedsam-t1, dfedpgp-t1), and the name of its row by whatever is set otherwise than in the recipe, as in
"fedavg, partition=dirichlet-reuse:0.3". A run that was interrupted is gathered with the rounds it has, and is
compared with the published number only after 98 % of them. A run that is gathered again replaces its row. Published
numbers come with the recipes. Without a folder the tables and the picture are made anew.

    coterie recipe run dfedalt-t1 --case "cifar10 dirichlet:0.3" --methods fedrep,ditto --seeds 1 --precision bf16 \
        --evaluate-every 10 --out runs/cifar10
    coterie recipe run dfedalt-t1 --case "cifar10 dirichlet:0.3" --methods dfedavgm --seeds 1 --precision bf16 \
        --evaluate-every 1 --out runs/peers
    coterie recipe run dfedalt-t1 --case "cifar10 dirichlet:0.3" --methods fedbabu --seeds 1 --precision bf16 \
        --set lr_milestones=0.5,0.75 --set lr_decay=1.0 --evaluate-every 50 --out runs/stepped
    python docs/evidence/cifar10.py runs/stepped --note "stepped rate"     # instead of the settings in its name
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cifar10_tables import HERE, SEED, TABLES, Table, drawn, kept, page

from coterie.core.custom import display_name
from coterie.papers.recipes.metrics import comes_from_one_run, value
from coterie.papers.recipes.published import published_numbers

CURVES = {
    "after_mix": "personal_accuracy_after_mix",
    "after_train": "personal_accuracy_after_train",
    "after_finetune": "personal_accuracy_after_finetune",
    "worst": "personal_accuracy_{point}_worst",
    "global": "global_accuracy",
    "global_local": "global_accuracy_local",
    "train": "global_accuracy_train",
    "train_loss": "train_loss",
    "seconds": "seconds",
    "evaluation_seconds": "evaluation_seconds",
}


def gathered(folder: Path, note: str | None = None) -> Iterable[tuple[Table, str, dict[str, Any]]]:
    """(table, row, the curves and how they were made) of every run in a folder, or of the run that the folder is."""
    found = sorted({*folder.glob("config.json"), *folder.glob("case*-seed*/config.json")})
    if not found:
        raise SystemExit(f"{folder} has no config.json: name the folder of a run, or of coterie recipe run")
    for path in found:
        config = json.loads(path.read_text())
        rows = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
        table, method, changed = recognized(config)
        point = table.loaded.entry(method).point
        curves = {
            name: [None if (v := row.get(key.format(point=point))) is None else round(v, 5) for row in rows]
            for name, key in CURVES.items()
        }
        curves = {name: curve for name, curve in curves.items() if any(v is not None for v in curve)}
        if (table.curve or point) not in curves:
            raise SystemExit(f"{path.parent} was never evaluated: let it run until it is")
        sizes = {"bytes_a_round": rows[-1]["bytes_sent"], "told": told(table, method, rows)}
        name = ", ".join([method, *([note] if note else changed)])
        yield table, name, {"config": config, **sizes, **curves, "point": point}


def recognized(config: Mapping[str, Any]) -> tuple[Table, str, list[str]]:
    """The table that a run belongs to, its method there, and what was set otherwise, in as few words as possible."""
    size = config["data"]["source"], config["model"]["name"], config["data"]["clients"]
    found = [
        (changes(config, table, method), table, method)
        for table in TABLES
        if (case := table.loaded.cases[table.case - 1]) and (case.data, case.model, case.clients) == size
        for method in case.methods
        if display_name(table.loaded.entry(method).builder) == display_name(config["method"])
    ]
    if not found:
        what = f"{config['method']} on {size[0]} with {size[1]} and {size[2]} clients"
        raise SystemExit(f"{what} belongs to none of {', '.join(t.recipe for t in TABLES)} at its size")
    changed, table, method = min(found, key=lambda f: len(f[0]))
    return table, method, changed


def changes(config: Mapping[str, Any], table: Table, method: str) -> list[str]:
    """What a run has otherwise than the recipe and the other rows; the seed comes last.

    >>> config = {"settings": {"lr": 0.05}, "data": {"partition": "iid"}, "rounds": 500, "precision": "bf16", "seed": 1}
    >>> changes(config, TABLES[0], "fedavg")
    ['lr=0.05', 'partition=iid', 'seed=1']
    """
    recipe, case = table.loaded, table.loaded.cases[table.case - 1]
    theirs = recipe.algorithm(method, table.case).settings
    wanted = json.loads(json.dumps({k: getattr(v, "name", v) for k, v in theirs.items()}, default=str))
    words = [f"{k}={v}" for k, v in config["settings"].items() if k in wanted and v != wanted[k]]
    usual = {"partition": case.partition, "rounds": case.rounds, "init": recipe.init(method, table.case)}
    usual |= {"precision": "bf16", **(case.transform or {})}
    own = {"partition": config["data"]["partition"], **config, **(config.get("transform") or {})}
    words += [f"{k}={own[k]}" for k, v in usual.items() if own.get(k, v) != v]
    return [*words, *([f"{SEED}{config['seed']}"] if config["seed"] else [])]


def told(table: Table, method: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Every number that the paper prints of a single run in this case."""
    recipe = table.loaded
    printed = dict.fromkeys(p.metric for p in published_numbers(table.recipe) if p.case == table.case)
    found = {m: value(m, recipe, recipe.entry(method), rows) for m in printed if comes_from_one_run(m)}
    return {m: round(v, 4) for m, v in found.items() if v is not None}


def main() -> None:
    """Gathers, draws and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--note", help="what was set otherwise than in the recipe, in a few words")
    typed = parser.parse_args()
    runs = {table: kept(table) for table in TABLES}
    for folder in typed.folders:
        for table, row, run in gathered(folder, typed.note):
            runs[table][row] = run
            print(f"{table.recipe}: {row}, {len(run[run['point']])} rounds")
    for table, rows in runs.items():
        if rows:
            (HERE / table.file).write_text(json.dumps(rows) + "\n")
    ordered = {table: rows for table in TABLES if (rows := kept(table))}
    drawn(ordered).savefig(HERE / "cifar10.svg", metadata={"Date": None})
    (HERE / "cifar10.md").write_text(page(ordered))


if __name__ == "__main__":
    main()
