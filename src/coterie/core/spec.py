"""Short texts: those people type for things with arguments (``ring``, ``random:10``, ``npz:FILE``), and sizes."""

from collections.abc import Mapping
from typing import NamedTuple

from .errors import UserError

Scalar = int | float | str | bool


class Call(NamedTuple):
    """A name with its arguments, as typed."""

    name: str
    args: tuple[Scalar, ...]
    options: Mapping[str, Scalar]


def scalar(text: str) -> Scalar:
    """The value a text spells: a whole number, a number, true or false (yes or no), else the text itself.

    >>> scalar("3"), scalar("0.3"), scalar("true"), scalar("head")
    (3, 0.3, True, 'head')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "yes": True, "false": False, "no": False}.get(text.lower(), text)


def parse(text: str) -> Call:
    """``name:value,key=value`` taken apart.

    >>> parse("dirichlet:0.3")
    Call(name='dirichlet', args=(0.3,), options={})
    >>> parse("synthetic:2000,classes=5").options
    {'classes': 5}
    """
    name, _, rest = text.strip().partition(":")
    args: list[Scalar] = []
    options: dict[str, Scalar] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if equals:
            options[key.strip()] = scalar(value.strip())
        elif options:
            raise UserError(f"in {text!r} the plain value {item!r} must come before the named ones")
        else:
            args.append(scalar(item))
    return Call(name, tuple(args), options)


def written(call: Call) -> str:
    """The text that ``parse`` takes apart into this.

    >>> written(parse("clique:10,count=4"))
    'clique:10,count=4'
    """
    rest = ",".join([*map(str, call.args), *(f"{k}={v}" for k, v in call.options.items())])
    return f"{call.name}:{rest}" if rest else call.name


def scaled(value: float, unit: str) -> str:
    """A large number with the prefix that suits it.

    >>> scaled(5.03e14, "FLOP"), scaled(0, "B"), scaled(999_900, "B")
    ('503 TFLOP', '0 B', '1 MB')
    """
    for power, prefix in ((24, "Y"), (21, "Z"), (18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 0.9995 * 10**power:  # what would be written as 1000
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
