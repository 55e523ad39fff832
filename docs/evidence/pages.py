"""All pages that give verdicts, made anew from the numbers in their JSON files: nothing is trained.

python docs/evidence/pages.py
"""

import importlib
import json
from pathlib import Path

import capacities  # the scripts beside this one
import digits
import equation_7
import fashion_tables
import overlap
import radii
from fashion_studies import STUDIES

HERE = Path(__file__).parent

# names that cannot be written as an import
figures = importlib.import_module("004_figures")
recipes = importlib.import_module("004_recipes")


def main() -> None:
    """Writes them."""
    for study in STUDIES:
        fashion_tables.rewritten(HERE, study)
    digits.pages(json.loads((HERE / "digits.json").read_text()))
    capacities.rewritten(HERE)
    (HERE / "overlap.md").write_text(overlap.page(json.loads((HERE / "overlap.json").read_text())["found"]))
    (HERE / "equation_7.md").write_text(equation_7.page(json.loads((HERE / "equation_7.json").read_text())))
    (HERE / "radii.md").write_text(radii.page(json.loads(radii.FILE.read_text())))
    (HERE / "004_figures.md").write_text(figures.page(json.loads((HERE / "004_figures.json").read_text())))
    (HERE / "004_recipes.md").write_text(recipes.page(json.loads((HERE / "004_recipes.json").read_text())))


if __name__ == "__main__":
    main()
