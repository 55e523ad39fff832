"""``coterie capacity``: what the smaller forms of a model cost."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..algorithms import BUILDERS
from ..algorithms.costs import CapacityRow, capacity_table
from ..algorithms.method import facts
from ..core.errors import UserError


def typed_shape(text: str) -> tuple[int, ...]:
    """The shape of a sample as typed.

    >>> typed_shape("1,28,28")
    (1, 28, 28)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"--shape {text} is no shape: write whole numbers with commas, as in 3,32,32")
    return tuple(map(int, parts))


def show_capacity(model: str, classes: int, input_shape: Sequence[int]) -> None:
    """Prints the parameters and FLOPs of every form of a model, or why there is none.

    >>> show_capacity("mlp", 10, (64,))
    mlp · 10 classes · samples of 64
    FLOPs: forward pass of one sample, multiply-adds plus 5 for every normalized
    number and 1 for every averaged one; by definition: ranks are parts of the smaller
    side of the unrolled kernel (FedLMT, Definition 3.1), else of the output channels
    form            setting            parameters  FLOPs
    ...
    full                                    8,970  8,832
    low rank        keep 1, rank 0.03       5,130  4,992
    ...
    width: feddropout, heterofl, fedrolex
    ...
    """
    rows = capacity_table(model, classes, input_shape)
    console = Console(highlight=False)
    size = " x ".join(map(str, input_shape))
    console.print(f"{model} · {classes} classes · samples of {size}", style="bold", markup=False)
    console.print("FLOPs: forward pass of one sample, multiply-adds plus 5 for every normalized")
    console.print("number and 1 for every averaged one; by definition: ranks are parts of the smaller")
    console.print("side of the unrolled kernel (FedLMT, Definition 3.1), else of the output channels")
    console.print(_table(rows))
    console.print()
    for family, methods in _held(rows).items():
        console.print(f"{family}: {', '.join(methods)}")


def _held(rows: Sequence[CapacityRow]) -> dict[str, list[str]]:
    """The methods whose clients hold a form, as they say themselves."""
    forms = {name: facts(build).form for name, build in BUILDERS.items()}
    families = dict.fromkeys(row.family for row in rows)
    return {f: methods for f in families if (methods := [name for name, form in forms.items() if form == f])}


def _table(rows: Sequence[CapacityRow]) -> Table:
    """A family's name stands in its first row only."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("form", style="bold", no_wrap=True)
    table.add_column("setting", no_wrap=True)
    for heading in ("parameters", "FLOPs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", style="dim", overflow="fold")
    before = ""
    for row in rows:
        table.add_row("" if row.family == before else row.family, row.setting, *_cells(row))
        before = row.family
    return table


def _cells(row: CapacityRow) -> tuple[str, str, str]:
    if row.parameters is None or row.flops is None:
        return "-", "-", row.why
    return f"{row.parameters:,}", _short(row.flops), ""


def _short(count: int) -> str:
    """In millions, if it is that many.

    >>> _short(558_502_912), _short(8_832)
    ('558.50M', '8,832')
    """
    return f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count:,}"
