"""The cost of whole recipes, from the estimates that lie beside their cases."""

from collections.abc import Iterable
from typing import NamedTuple

from .recipe import Recipe

SPEED = 8.8e13  # multiply-adds a second: a DFedAlt round of 100 ResNet-18 in 5.7 s on one H200 in bf16
SPEED_OF = "one H200 in bf16 at 88e12 multiply-adds a second, as measured with ResNet-18"


class CaseCost(NamedTuple):
    """What running a recipe takes."""

    flops: float
    bytes: float

    @property
    def seconds(self) -> float:
        """At the speed that is stated with it."""
        return self.flops / SPEED


def cost(recipe: Recipe, cases: Iterable[int] | None = None, methods: Iterable[str] | None = None) -> CaseCost:
    """All seeds of some cases (counted from 1) and methods; None: all.

    >>> from .recipe import load
    >>> f"{cost(load('dfedalt-t1'), cases=[1], methods=['dfedalt']).seconds / 3:.0f} s a seed"
    '2856 s a seed'
    """
    chosen = None if methods is None else set(methods)
    each = [
        price
        for number in (recipe.find() if cases is None else cases)
        for method, price in recipe.cases[number - 1].estimates.items()
        if chosen is None or method in chosen
    ]
    return CaseCost(*(recipe.seeds * sum(price[k] for price in each) for k in ("flops", "bytes")))


def duration(seconds: float) -> str:
    """A time as people say it; small models never reach the speed it is reckoned with, so short times are not told.

    >>> duration(8), duration(5400), duration(400_000)
    ('< 1 min', '1.5 h', '4.6 d')
    """
    for length, unit in ((2 * 86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / min(length, 86_400):.2g} {unit}"
    return "< 1 min"
