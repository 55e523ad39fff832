"""``coterie predict``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import UserError, in_one_line
from ...data.encoding import Columns
from ...data.new_samples import new_file
from ...export.predictor import opened


def predict_file(run: Path, client: str | None, data: str, out: Path, force: bool, trusted: Sequence[str]) -> None:
    """Answer the rows of a file, write them with the answers, and say where they are."""
    if out.exists() and not force:
        raise UserError(f"{out} already exists: choose another --out, or replace it with --force")
    predictor, origin = opened(run, client, trusted)
    columns = predictor.format.columns
    known = None if columns is None else Columns.of(columns)
    samples = new_file(data, known, origin, predictor.format.input_shape)
    if out.suffix.lower() != samples.suffix:
        raise UserError(
            f"the answers are a file of the kind of {samples.where}: give --out the ending {samples.suffix}"
        )
    remarks: list[str] = []
    answers = predictor.scored(samples.samples, remarks.append)
    samples.save(out, answers)
    for said in remarks:
        print(in_one_line(said), file=sys.stderr)
    rows = len(next(iter(answers.values())))
    print(f"{rows:,} rows of {samples.where} are in {out}, with {', '.join(answers)}")
