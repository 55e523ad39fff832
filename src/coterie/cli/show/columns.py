"""``coterie list columns``: what the columns of a table of results are."""

from ...measure.compare.gains import GAINS
from ...measure.compare.meanings import column_meanings
from ...measure.compare.sentences import NEWCOMERS
from ..common.console import table, wide_console
from ..common.rows_format import for_programs, print_rows


def show_columns(format: str) -> None:
    """Print every column with its meaning, then what the sentences below a table rest on."""
    if for_programs(format):
        print_rows(format, [{"column": title, "meaning": means} for title, means in column_meanings().items()])
        return
    console = wide_console()
    rows = table("column", "meaning")
    rows.columns[0].no_wrap = True
    for title, means in column_meanings().items():
        rows.add_row(title, means)
    console.print("Columns of a table of results, here in the words for accuracies", style="bold")
    console.print(rows)
    for sentence in (
        "A personal metric is that of each client's own model on its own test samples, mean over those who have some.",
        "±: the standard deviation over the seeds (n - 1); of one seed, over all clients (n). *: the best of a column.",
        GAINS,
        NEWCOMERS,
    ):
        console.print(f"\n{sentence}")
