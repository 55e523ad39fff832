"""Models by name, built under a watch: a tensor that would not fit into memory is refused before it is made.

Any other module works, too: pass it to ``fit``, or name the function that makes it.

In a container the system ends a process that takes too much, without a word. Building on the meta device first would
tell the size as well, but it imports sympy, which takes a second.
"""

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core import rng
from ..core.annotations import Example, PositiveInt, Range
from ..core.arguments import checked
from ..core.custom import import_function, is_own
from ..core.errors import UserError, unknown
from ..core.memory import check_fits
from ..core.spec import Spec, bind, parameters, parse, spelled
from ..data.inputs import Shape, names_of, shape_as_json, shape_of_json
from .parts import WidthRate, need_images, scaled_width
from .resnet import resnet8_bn, resnet8_gn, resnet18_bn, resnet18_gn
from .transformer import transformer_mlm
from .vgg import vgg11_gn


class SplitLogistic(nn.Module):
    """A classifier of two classes by a.u + b.v, where a is the first half of a sample and b the rest.

    f(u, v) = mean log(1 + exp(-c (a.u + b.v))) + rho (R(u) + R(v)), c = -1 or 1, R(x) = |x|^2 / (1 + |x|^2)

    The first term is the cross entropy of the scores (0, a.u + b.v). u is shared, v is personal.
    """

    def __init__(self, entries: int, rho: float) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros(entries - entries // 2))
        self.v = nn.Parameter(torch.zeros(entries // 2))
        self.rho = rho

    def forward(self, x: Tensor) -> Tensor:
        """The scores of both classes."""
        a, b = x.flatten(1).tensor_split([len(self.u)], dim=1)
        margin = a @ self.u[:, None] + b @ self.v[:, None]  # matrices: their products are counted as costs
        return torch.cat([torch.zeros_like(margin), margin], dim=1)

    def penalty(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return rho (R(u) + R(v)), which pulls small weights to 0 and not large ones, so that f is not convex."""
        squares = torch.stack([tensors[k].square().sum() for k in ("u", "v")])
        return self.rho * (squares / (1 + squares)).sum()


def split_logreg(shape: Sequence[int], classes: int, rho: Annotated[float, Range()] = 0.01) -> nn.Module:
    """Build a classifier of two classes with shared and personal weights and a regularizer of strength ``rho``."""
    if classes != 2:
        raise UserError(f"split-logreg tells two classes apart, not {classes}: take mnist-halves, or logreg")
    return SplitLogistic(math.prod(shape), rho)


_MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
NOTICED = 2**24  # bytes; asking how much is free takes a millisecond


class AllocationCheck(TorchFunctionMode):
    """Counts the tensors that are made within a ``with`` statement, and refuses the one that would be too much.

    >>> with AllocationCheck("this"):
    ...     torch.nn.Linear(10**8, 10**8)
    Traceback (most recent call last):
    coterie.core.errors.UserError: this would take at least 40 PB of memory, and ... are free: take a smaller one
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.taken = what, 0
        self.needed = torch.get_default_device().type != "meta"  # where tensors have no values

    def __torch_function__(  # type: ignore[no-untyped-def]  # as torch declares it
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ):
        """Count what a function would make, then call it."""
        given = kwargs or {}
        if self.needed and func in _MAKERS and str(given.get("device")) != "meta":
            self.taken += _bytes(args, given)
            if self.taken > NOTICED:
                check_fits(self.taken, self.what, "take a smaller one", "at least ")
        return func(*args, **given)


def _bytes(args: Sequence[Any], given: dict[str, Any]) -> int:
    """Return the bytes of a tensor of the size that is the first of some arguments, or all of them."""
    first = args[0] if args else given.get("size", ())
    size = args if isinstance(first, int) else first
    width: int = (given.get("dtype") or torch.get_default_dtype()).itemsize
    return math.prod(int(n) for n in size) * width


@runtime_checkable
class Described(Protocol):
    """The facts that a model needs of its data; a Federation has them."""

    @property
    def input_shape(self) -> Shape:
        """The shape of one sample."""

    @property
    def outputs(self) -> int:
        """The number of classes, or of numbers that are predicted."""


def logreg(shape: Sequence[int], classes: int) -> nn.Module:
    """Build multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, *, width: PositiveInt = 64, rate: WidthRate = 1.0) -> nn.Module:
    """Build a network with two hidden layers of equal width; ``rate``: the share of it that is kept."""
    width = scaled_width(width, rate)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def _two_convolutions(
    shape: Sequence[int], classes: int, name: str, kernel: int, padding: int, widths: Sequence[int], rate: float
) -> nn.Module:
    """Build a network of two convolutions with pooling and one hidden layer."""
    need_images(name, shape)
    side = [((s - kernel + 1 + 2 * padding) // 2 - kernel + 1 + 2 * padding) // 2 for s in shape[1:]]
    if min(side) < 1:
        raise UserError(f"images of {shape[1]} x {shape[2]} are too small for {name}: use small-cnn or mlp")
    first, second, hidden = (scaled_width(width, rate) for width in widths)
    return nn.Sequential(
        nn.Conv2d(shape[0], first, kernel, padding=padding),
        nn.MaxPool2d(2),  # before the ReLU: the same numbers, a quarter of the work
        nn.ReLU(),
        nn.Conv2d(first, second, kernel, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * side[0] * side[1], hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def cnn(shape: Sequence[int], classes: int, padding: Literal[0, 2] | None = None, rate: WidthRate = 1.0) -> nn.Module:
    """Build the CNN of McMahan et al. 2017: 5 x 5 convolutions of 32 and 64, a hidden layer of 512.

    ``padding``: 0 or 2; by default 2 only for images smaller than 16, which would vanish without it;
    ``rate``: the share of every hidden width that is kept.
    """
    if padding is None:
        padding = 2 if len(shape) == 3 and min(shape[1:]) < 16 else 0
    return _two_convolutions(shape, classes, "cnn", 5, padding, (32, 64, 512), rate)


def small_cnn(shape: Sequence[int], classes: int, *, rate: WidthRate = 1.0) -> nn.Module:
    """Build a CNN for the embedded digits: 3 x 3 convolutions of 16 and 32, a hidden layer of 64."""
    return _two_convolutions(shape, classes, "small-cnn", 3, 1, (16, 32, 64), rate)


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "logreg": logreg,
    "split-logreg": split_logreg,
    "mlp": mlp,
    "cnn": cnn,
    "small-cnn": small_cnn,
    "resnet8-gn": resnet8_gn,
    "resnet8-bn": resnet8_bn,
    "resnet18-gn": resnet18_gn,
    "resnet18-bn": resnet18_bn,
    "vgg11-gn": vgg11_gn,
    "transformer-mlm": transformer_mlm,
}


_LIBRARIES = {"torch", *sys.stdlib_module_names}  # whose functions nobody here can mend


@checked("function")
def build(
    name: str,
    federation: Annotated[Described, Example('coterie.data.federate("digits")')] | None = None,
    *,
    classes: PositiveInt | None = None,
    input_shape: Sequence[PositiveInt] | Sequence[Sequence[int]] | dict[str, Sequence[int]] | None = None,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """Build the model of that name, for the data of a federation or for ``classes`` and ``input_shape``.

    It has one output per class; where the targets of a federation are numbers, one for each of them.
    ``module:function`` names a function of your own that returns a module; it is given ``shape`` and ``classes`` if it
    takes them. The same seed gives the same initial values, whatever was drawn before.

    >>> sum(p.numel() for p in build("cnn", classes=10, input_shape=(1, 28, 28)).parameters())
    582026
    >>> build("torch.nn:Linear,in_features=3,out_features=2", classes=2, input_shape=(3,))
    Linear(in_features=3, out_features=2, bias=True)
    """
    spec = parse(spelled(name, BUILDERS)).with_options(options)
    if spec.name not in BUILDERS and not is_own(f"{spec.name}:{''.join(spec.args[:1])}"):
        raise unknown("model", spec.name, BUILDERS)
    if federation is not None:
        classes = federation.outputs if classes is None else classes
        input_shape = federation.input_shape if input_shape is None else input_shape
    if classes is None:
        raise UserError(f"model {spec.name} needs to know the number of classes: pass a federation or classes=")
    shape = (1, 28, 28) if input_shape is None else shape_of_json(input_shape)
    with rng.torch_draws(rng.key(seed, "init")), AllocationCheck(f"model {spec}"):
        module, described = _build(spec, shape, classes)
    # A description for config.json, not a submodule.
    module.origin = {**described, "classes": classes, "input_shape": shape_as_json(shape), "seed": seed}  # type: ignore[assignment]
    return module


def rebuild(origin: Mapping[str, Any]) -> nn.Module:
    """Build the model of a description, if it is a built-in one: a file must not decide what code runs."""
    name = origin.get("name")
    if name not in BUILDERS:
        raise unknown("model", str(name), BUILDERS)
    return build(**origin)


def rebuild_trusted(origin: Mapping[str, Any]) -> nn.Module:
    """Build the model of a description, also by a function of one's own, which a person has trusted."""
    if "name" in origin:
        return rebuild(origin)
    options = dict(origin)
    if not is_own(module := options.pop("module")):
        raise unknown("model", module, BUILDERS)
    return build(module, **options)


def _build(spec: Spec, shape: Shape, classes: int) -> tuple[nn.Module, dict[str, Any]]:
    """Return the module, and its name and options for its description."""
    if spec.name in BUILDERS:
        if names := names_of(shape):
            raise UserError(
                f"model {spec.name} takes one tensor, and a sample has the inputs {', '.join(names)}: name a function "
                "of your own that builds a module for them, as in mine:net"
            )
        make = BUILDERS[spec.name]
        options = bind("model", spec, parameters(make, filled=("shape", "classes")))
        return make(shape, classes, **options), {"name": spec.name, **options}
    name = f"{spec.name}:{spec.args[0]}"
    make, offered = import_function(name, "model"), {"shape": shape, "input_shape": shape, "classes": classes}
    takes = _signature(name, make)
    asked = {k: v for k, v in offered.items() if k in takes}
    options = bind("model", Spec(name, spec.args[1:], spec.options), {k: p for k, p in takes.items() if k not in asked})
    module = _called(name, make, {**asked, **options})
    if not isinstance(module, nn.Module):
        raise UserError(f"{name} returned {type(module).__name__}: it must return a torch.nn.Module")
    return module, {"module": name, **options}


def _signature(name: str, make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function of one's own."""
    try:
        return parameters(make)
    except ValueError as error:
        raise UserError(f"{name} does not say what it takes: name a function that returns a torch.nn.Module") from error


def _called(name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Call a function of one's own, whose errors are its author's to see; those of libraries are about the options."""
    try:
        return make(**options)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, UserError) or name.partition(":")[0].partition(".")[0] not in _LIBRARIES:
            raise
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{name} fails ({said}): give it other options, or name another function") from error
