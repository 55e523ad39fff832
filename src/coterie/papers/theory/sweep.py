"""A corollary beside runs: one point for every value of a quantity, and the slopes in a log-log plot."""

import math
from collections.abc import Sequence
from statistics import linear_regression
from typing import Any, NamedTuple

from ...algorithms import builder
from ...core.arguments import checked
from ...core.errors import UserError, unknown
from ...core.spec import whole_number
from .corollary import Order
from .outcome import Outcome
from .theorems import corollary_of, examine, theorem_of

SETS = {"T": "rounds", "K": "steps", "m": "clients", "lambda": "topology"}
"""What a sweep sets; m is a cohort where there is a server."""


class Point(NamedTuple):
    """One value of a sweep."""

    value: int | str
    x: float  # the value, or 1 - lambda (1 - q) of a graph
    outcome: Outcome

    @property
    def measured(self) -> float:
        """What was measured over all rounds."""
        return self.outcome.measured[-1]

    @property
    def bound(self) -> float | None:
        """The bound over all rounds; None where a condition fails."""
        return None if self.outcome.bound is None else self.outcome.bound[-1]


class Sweep(NamedTuple):
    """The points of a sweep."""

    name: str  # T, K, m or lambda
    where: str  # the corollary
    order: Order  # what it says
    points: tuple[Point, ...]

    @property
    def measured_slope(self) -> float | None:
        """The fitted exponent of what was measured."""
        return slope([(p.x, p.measured) for p in self.points])

    @property
    def bound_slope(self) -> float | None:
        """The fitted exponent of the bound, of the points that have one."""
        return slope([(p.x, p.bound) for p in self.points if p.bound is not None])


def slope(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the exponent of the power of x that fits y best, by least squares of logarithms; None without two x.

    >>> slope([(x, 3 * x**-0.5) for x in (1.0, 4.0, 9.0)]), slope([(2.0, 1.0), (2.0, 3.0)])
    (-0.5, None)
    """
    logs = [(math.log(x), math.log(y)) for x, y in pairs if x > 0 and y > 0]
    if len({round(x, 9) for x, _ in logs}) < 2:
        return None
    return round(linear_regression(*zip(*logs, strict=True)).slope, 12)


@checked("function")
def sweep(method: str, name: str, values: Sequence[int | str], **asked: Any) -> Sweep:
    """Examine a method at every value of one quantity, with the rates of its corollary.

    name: "T" (rounds), "K" (steps), "m" (clients; with a server those that take part) or "lambda", whose values are
    graphs; asked: all that ``examine`` takes.

    >>> found = sweep("dfedsam", "T", [25, 100], clients=4, topology="full")
    >>> found.order.exponent, -0.6 < (found.bound_slope or 0) < -0.4
    (-0.5, True)
    """
    corollary = corollary_of(method)
    if name not in SETS:
        raise unknown("quantity of a sweep", name, SETS)
    settings = {**builder(method)().settings, **asked}
    where, orders = corollary.where(settings), corollary.order(settings)
    if name not in orders:
        raise UserError(f"{where}, does not depend on {name}: sweep over {' or '.join(orders)}")
    setting = "participation" if name == "m" and theorem_of(method).topology is None else SETS[name]
    if asked.get(setting) is not None:
        raise UserError(f"the sweep over {name} sets {setting}: leave {setting} out")
    typed = [_typed(name, value) for value in values]
    if len(set(typed)) < max(2, len(typed)):
        raise UserError(f"a slope needs two values or more, all different: give them, as in {name}={_EXAMPLES[name]}")
    if "rates" in asked:
        raise UserError("a sweep has the rates of the corollary: leave rates out")
    outcomes = [examine(method, **{**asked, setting: value}, rates="corollary") for value in typed]
    points = [Point(v, _x(orders[name], v, o), o) for v, o in zip(typed, outcomes, strict=True)]
    return Sweep(name, where, orders[name], tuple(points))


_EXAMPLES = {"T": "100,400,1600", "K": "1,2,4", "m": "2,4,8", "lambda": "ring,grid,full"}


def _typed(name: str, value: int | str) -> int | str:
    """Return a value as it is set: the text of a graph, or an integer above 0."""
    if name == "lambda":
        return str(value)
    number = whole_number(str(value))
    if number is None or number < 1:
        raise UserError(f"{name}={value} is not an integer above 0: give {name}={_EXAMPLES[name]}, for instance")
    return number


def _x(order: Order, value: int | str, outcome: Outcome) -> float:
    """Return what the exponent is of."""
    return float(value) if order.x in SETS else 1 - outcome.constant(order.x.removeprefix("1 - "))
