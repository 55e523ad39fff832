"""The history of a run: a row a round, and a table of them where pandas is installed."""

from typing import TYPE_CHECKING

from ..core.errors import UserError
from ..core.schema import Row

if TYPE_CHECKING:
    import pandas


class History(list[Row]):
    """A list of dicts, a row a round, oldest first."""

    def frame(self) -> "pandas.DataFrame":
        """The rows as a table of pandas, a column a measure; what a round did not measure is NaN."""
        try:
            import pandas
        except ImportError as error:
            raise UserError("a frame needs pandas: run pip install pandas") from error
        frame = pandas.DataFrame(list(self))
        unknown = frame.columns[frame.isna().all()]  # columns of None would be of no number's type
        return frame.astype(dict.fromkeys(unknown, float))
