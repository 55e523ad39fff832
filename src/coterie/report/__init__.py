"""One HTML page of one or more runs: who won, for whom, at what cost and why. It needs no network and no other file.

    coterie.report.write(["runs/a", "runs/b"], "report.html")

All figures are plain data for plotly.js, whose bundle is taken from the package plotly of the extra
``coterie[report]`` and packed into the page.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..core.arguments import checked
from ..core.errors import UserError
from ..core.files import write_text
from ..measure.compare import check_target
from ..training.run import Run
from .collect import Collected, collect, record_of
from .library import compressed_library
from .page import page

__all__ = ["html", "write"]


@checked("function")
def write(
    runs: Sequence[Run | str | Path],
    path: str | Path,
    say: Callable[[str], object] | None = None,
    landscape: bool = False,
    target: float | None = None,
    data_dir: str | Path | None = None,
) -> Path:
    """Write the page of some runs, or of folders that hold a run, a comparison or a recipe's runs.

    Runs whose files are damaged are left out; the page says so, and when it is written a ``ValueError`` does.

    Args:
        runs: Runs or folders.
        path: The HTML file.
        say: A function that is called with a sentence before anything that takes more than a moment.
        landscape: Draw the loss around the one model that the clients of each method agree on.
        target: The mean personal metric that rounds are counted to (else that of the comparison, or 80 %).
        data_dir: The folder of the runs' data, as in ``coterie.data.federate``.
    """
    file = _page_file(path)
    collected = collect(list(runs), data_dir)
    _write(collected, file, say, landscape, target)
    if collected.left_out:
        number = len(collected.left_out)
        lacking = "a run" if number == 1 else f"{number} runs, the first of them"
        raise UserError(f"{file} is written without {lacking}: {collected.left_out[0]}")
    return file


def write_methods(runs: Mapping[str, Sequence[Run]], path: str | Path, target: float | None) -> Path:
    """Write the page of runs in memory, by what their methods are called."""
    file = _page_file(path)
    _write(
        Collected([record_of(run, label) for label, some in runs.items() for run in some], [], []),
        file,
        None,
        False,
        target,
    )
    return file


def _write(
    collected: Collected, file: Path, say: Callable[[str], object] | None, landscape: bool, target: float | None
) -> None:
    for record in collected.records:
        check_target(target, record.metric)
    write_text(file, page(collected, compressed_library(), say or (lambda _: None), None, landscape, target))


def _page_file(path: str | Path) -> Path:
    file = Path(path)
    if file.suffix.lower() not in (".html", ".htm"):
        named = file.with_suffix(".html") if file.name else file / "report.html"
        raise UserError(f"the report is an HTML page: write it to {named} instead of {path}")
    return file


@checked("function")
def html(
    runs: Sequence[Run | str | Path],
    say: Callable[[str], object] | None = None,
    reload: float | None = None,
    landscape: bool = False,
    target: float | None = None,
    data_dir: str | Path | None = None,
) -> str:
    """Return the page as a text; ``reload``: the seconds after which the page of unfinished runs loads itself again."""
    collected = collect(list(runs), data_dir)
    for record in collected.records:
        check_target(target, record.metric)
    return page(collected, compressed_library(), say or (lambda _: None), reload, landscape, target)
