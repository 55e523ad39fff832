"""What an extension adds to a page, as a value that the page writes in its own form."""

from collections.abc import Sequence
from typing import NamedTuple

from .charts import Chart


class Section(NamedTuple):
    """Charts; with a title they lie side by side below it. ``html`` comes after them."""

    charts: Sequence[Chart] = ()
    title: str = ""
    about: str = ""  # a sentence about them, or why there are none
    html: str = ""
