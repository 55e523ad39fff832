"""``coterie capacity``: what the smaller forms of a model cost."""

from collections.abc import Sequence
from math import prod

from rich.table import Table

from ...algorithms import BUILDERS
from ...algorithms.method import facts
from ...cli.common.console import plain_console, table
from ...core.annotations import MOST
from ...core.errors import UserError
from ...core.spec import whole_number
from ..capacity import CapacityRow, capacity_table


def typed_shape(text: str) -> tuple[int, ...]:
    """Return the shape of a sample as typed.

    >>> typed_shape("1,28,28")
    (1, 28, 28)
    """
    shape = tuple(whole_number(part.strip()) or 0 for part in text.split(","))
    if not 0 < min(shape) <= prod(shape) <= MOST:
        raise UserError(f"--shape {text} is no shape: write integers with commas, as in 3,32,32")
    return shape


def show_capacity(model: str, classes: int, input_shape: Sequence[int]) -> None:
    """Print the parameters and FLOPs of every form of a model, or why there is none.

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
    console = plain_console()
    size = " x ".join(map(str, input_shape))
    console.print(f"{model} · {classes} classes · samples of {size}", style="bold")
    console.print("FLOPs: forward pass of one sample, multiply-adds plus 5 for every normalized")
    console.print("number and 1 for every averaged one; by definition: ranks are parts of the smaller")
    console.print("side of the unrolled kernel (FedLMT, Definition 3.1), else of the output channels")
    console.print(_table(rows))
    console.print()
    forms = {name: facts(build).submodel for name, build in BUILDERS.items()}
    for family in dict.fromkeys(row.family for row in rows):
        if methods := [name for name, form in forms.items() if form == family]:
            console.print(f"{family}: {', '.join(methods)}")


def _table(rows: Sequence[CapacityRow]) -> Table:
    """Return one row per form; the name of a family is in its first row only."""
    made = table("form", "setting", ">parameters", ">FLOPs", "", no_wrap=True)
    made.columns[0].style, made.columns[-1].style, made.columns[-1].no_wrap = "bold", "dim", False
    before = ""
    for row in rows:
        known = row.parameters is not None and row.flops is not None
        cells = (f"{row.parameters:,}", _short(row.flops or 0), "") if known else ("-", "-", row.why)
        made.add_row("" if row.family == before else row.family, row.setting, *cells)
        before = row.family
    return made


def _short(count: int) -> str:
    """Return a count in millions, if it is that large.

    >>> _short(558_502_912), _short(8_832)
    ('558.50M', '8,832')
    """
    return f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count:,}"
