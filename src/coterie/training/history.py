"""The rounds of a run, one row each."""

from typing import TYPE_CHECKING

from ..core.extras import frames
from ..core.schema import Row

if TYPE_CHECKING:
    import pandas


class History(list[Row]):
    """One row per round, oldest first."""

    def frame(self) -> "pandas.DataFrame":
        """Return the rows as a DataFrame of pandas (coterie[tables]), one column per measure.

        What a round did not measure is NaN.

        What was kept of single clients is in ``run.client_history()``.
        """
        pandas = frames("run.history, which is a list of rows")
        frame = pandas.DataFrame([{k: v for k, v in row.items() if k != "clients"} for row in self])
        unknown = frame.columns[frame.isna().all()]  # columns of None would be of no number's type
        return frame.astype(dict.fromkeys(unknown, float))
