"""What an annotation says: the types, choices and ranges that it allows, as data and in words."""

import copyreg
import inspect
import math
import reprlib
from collections.abc import Callable as AnyCallable
from collections.abc import Iterator, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from .errors import UserError

LIMITS = ("gt", "ge", "lt", "le", "pattern", "min_length", "max_length")  # of those that Meta has, the ones used here

try:
    from msgspec import Meta as Meta

    # Ray sends the function of a method with its annotations, and msgspec's class has no way to be pickled.
    copyreg.pickle(Meta, lambda meta: (partial(Meta, **{k: getattr(meta, k) for k in LIMITS}), ()))
except ImportError:  # training needs no msgspec: types can be imported without it, and reading files asks for it

    def Meta(**limits: object) -> Any:  # type: ignore[no-redef]  # noqa: N802
        """Return limits that nothing is going to check."""
        return tuple(limits.items())  # what stands behind a type has a hash


LARGEST = 3e38  # the largest number that single precision holds
MOST = 10**9  # of anything that is counted: rounds, steps, clients, widths
WORDS: dict[Any, str] = {
    tuple[int, ...]: "integers with commas",
    tuple[float, ...]: "numbers with commas",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    NoneType: "none",
}
UNIONS = (Union, UnionType)
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 60


class Range(NamedTuple):
    """The numbers that an annotation allows, as in ``Annotated[float, Range(0, 1)]``."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False  # whether ``low`` itself is outside
    below: bool = False  # whether ``high`` itself is outside
    instead: str = ""  # what says the thing that a number outside may have been meant to say

    def check(self, name: str, value: Any) -> None:
        """Refuse a number outside; of several numbers each one."""
        for one in value if isinstance(value, list | tuple) else (value,):
            if not self.holds(one):
                raise UserError(f"{name}={shown(one)} is out of range: it must be a number {self}{self.instead}")
            if isinstance(one, int) and one > MOST:
                raise UserError(f"{name}={shown(one)} is out of range: it must be at most {MOST:,}")

    def holds(self, one: float) -> bool:
        """Return whether a number is inside."""
        inside = self.low <= one <= min(self.high, LARGEST)
        return inside and not (self.above and one == self.low) and not (self.below and one == self.high)

    def __str__(self) -> str:
        if self.high < math.inf and not self.above and not self.below:
            return f"between {self.low:g} and {self.high:g}"
        least = f"{'above' if self.above else 'at least'} {self.low:g}"
        return f"{least} and {'below' if self.below else 'at most'} {self.high:g}" if self.high < math.inf else least


class Example(NamedTuple):
    """A value that an annotation allows, for sentences that refuse others, as in ``Annotated[T, Example("T()")]``."""

    text: str


# Range is for arguments, Meta the same limit for files, which msgspec reads.
NonNegative = Annotated[float, Range(), Meta(ge=0)]
Positive = Annotated[float, Range(above=True), Meta(gt=0)]
Fraction = Annotated[float, Range(0, 1), Meta(ge=0, le=1)]
PositiveInt = Annotated[int, Range(1), Meta(ge=1)]
Count = Annotated[int, Range(), Meta(ge=0)]


def plain_types(hint: Any) -> tuple[type, ...]:
    """Return the types of an annotation that can be typed as text.

    >>> plain_types(Annotated[int, Range(1)] | None)
    (<class 'int'>, <class 'NoneType'>)
    """
    if get_origin(hint) is Literal:
        return tuple(dict.fromkeys(type(choice) for choice in get_args(hint)))
    if get_origin(hint) is Annotated:  # first, because what stands behind the type may have no hash
        return plain_types(get_args(hint)[0])
    if hint in WORDS:
        return (hint,)
    members = get_args(hint) if get_origin(hint) in UNIONS else ()
    return tuple(dict.fromkeys(t for member in members for t in plain_types(member)))


def in_words(hint: Any) -> str:
    """Say which texts an annotation takes; where there are few choices, those.

    >>> in_words(int | None), in_words(Literal["size", "uniform"])
    ('an integer or none', 'size or uniform')
    """
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return " or ".join(WORDS[t] for t in plain_types(hint)) or "nothing that can be typed"


def in_python(hint: Any) -> str:
    """Say which values an annotation takes.

    >>> in_python(Range | None), in_python(Sequence[Literal["a", "b"]]), in_python(AnyCallable[[int], float])
    ('a Range or none', 'a list of (a or b)', 'a function')
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return in_python(args[0]) + _example(hint)
    if origin in UNIONS:
        return " or ".join(dict.fromkeys(map(in_python, sorted(args, key=_example))))  # examples stand at the end
    if plain_types(hint):
        return in_words(hint)
    if origin is AnyCallable:
        return "a function"
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return f"a list of {' and '.join(f'({in_python(a)})' for a in args if a is not ...)}"
    name: str = getattr(origin or hint, "__name__", str(hint))
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _example(hint: Any) -> str:
    """Return the end of a sentence that names an example, if an annotation has one."""
    notes = getattr(hint, "__metadata__", ())
    return "".join(f", such as {note.text}" for note in notes if isinstance(note, Example))


def leaves(hint: Any) -> Iterator[Any]:
    """Yield the members of an annotation, without ranges and examples."""
    origin, args = get_origin(hint), get_args(hint)
    nested = args[:1] if origin is Annotated else args if origin in UNIONS else ()
    for member in nested:
        yield from leaves(member)
    if not nested:
        yield hint


def is_list(hint: Any) -> bool:
    """Return whether an annotation is of any number of equal items."""
    origin, args = get_origin(hint), get_args(hint)
    return inspect.isclass(origin) and issubclass(origin, Sequence) and (origin is not tuple or ... in args)


def shown(value: Any) -> str:
    """Write a value in as many characters as a sentence bears."""
    return " ".join(_SHOWN.repr(value).split())
