"""What ``coterie.compare`` returns: the methods side by side, as a frame, as text, as a page, and their runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.arguments import checked
from ..core.extras import frames
from ..measure.compare import Comparison
from ..report import write, write_methods
from ..report.texts import LATEX, comparison_table, latex, markdown
from ..training.run import Run

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Compared:
    """Methods that were trained on the same clients; a notebook shows their table and the verdict."""

    comparison: Comparison  # the columns, the gains and the tests as data
    runs: Mapping[str, Sequence[Run]]  # by method, one per seed; without models where these are in a folder
    folder: Path | None  # where all of it was written, if anywhere

    def __repr__(self) -> str:
        seeds = len(next(iter(self.runs.values())))
        return f"Compared({', '.join(self.runs)}: {seeds} seed{'' if seeds == 1 else 's'})"

    def _repr_markdown_(self) -> str:
        """Return what Jupyter shows."""
        return self.markdown()

    @property
    def verdict(self) -> list[str]:
        """Sentences: who won, what a paired test makes of it, for whom, and at what cost."""
        return self.comparison.verdict

    def frame(self) -> "pandas.DataFrame":
        """Return ``rows()`` as a DataFrame of pandas (coterie[tables]), by method; what has no value is NaN."""
        pandas = frames("found.rows(), a list of dictionaries")
        return pandas.DataFrame(self.rows()).set_index("method").astype(float)

    def rows(self) -> list[dict[str, str | float | None]]:
        """Return the table as one dictionary per method: its name, and every number, as a mean over the seeds."""
        columns = self.comparison.columns
        numbers = zip(*([cell.value for cell in column.cells] for column in columns), strict=True)
        titles = [column.title for column in columns]
        named = zip(self.runs, numbers, strict=True)
        return [{"method": name, **dict(zip(titles, values, strict=True))} for name, values in named]

    @checked("function")
    def markdown(self, columns: Sequence[str] = ()) -> str:
        """Return the table in GitHub's Markdown; ``columns``: the titles of some of them, all unless given."""
        return markdown(comparison_table(self.comparison, columns))

    @checked("function")
    def latex(self, columns: Sequence[str] = ()) -> str:
        """Return the table for LaTeX's booktabs; ``columns``: their titles, else few for a paper."""
        return latex(comparison_table(self.comparison, columns, LATEX))

    @checked("function")
    def report(self, path: str | Path) -> Path:
        """Write one HTML page of all runs that needs nothing else."""
        if self.folder is None:
            return write_methods(self.runs, path, self.comparison.target)
        return write([self.folder], path, target=self.comparison.target)
