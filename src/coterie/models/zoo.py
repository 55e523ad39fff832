"""Models by name. Any other module works too: hand it to ``fit`` as it is, or name the function that makes it."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from ..core import rng as rng
from ..core.custom import find
from ..core.custom import is_own as names_code
from ..core.errors import UserError, unknown
from ..core.spec import Call, parse
from . import custom as own
from .parts import need_images, scaled
from .resnet import resnet8_bn, resnet8_gn, resnet18_bn, resnet18_gn
from .split import split_logreg
from .transformer import transformer_mlm
from .vgg import vgg11_gn


class Described(Protocol):
    """What a model needs to know of its data; a Federation does."""

    @property
    def input_shape(self) -> Sequence[int]:
        """The shape of one sample."""

    @property
    def classes(self) -> int | None:
        """The number of classes."""


def logreg(shape: Sequence[int], classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, width: int = 64, rate: float = 1.0) -> nn.Module:
    """Two hidden layers of equal width; ``rate``: the share of it that is kept."""
    width = scaled(width, rate)
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
    """Twice convolution and pooling, then one hidden layer."""
    need_images(name, shape)
    side = [((s - kernel + 1 + 2 * padding) // 2 - kernel + 1 + 2 * padding) // 2 for s in shape[1:]]
    if min(side) < 1:
        raise UserError(f"images of {shape[1]} x {shape[2]} are too small for {name}: use small-cnn or mlp")
    first, second, hidden = (scaled(width, rate) for width in widths)
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


def cnn(shape: Sequence[int], classes: int, padding: int | None = None, rate: float = 1.0) -> nn.Module:
    """The CNN of McMahan et al. 2017: 5 x 5 convolutions of 32 and 64, a hidden layer of 512.

    ``padding``: 0 or 2; by default 2 only for images smaller than 16, which would vanish without it;
    ``rate``: the share of every hidden width that is kept.
    """
    if padding is None:
        padding = 2 if len(shape) == 3 and min(shape[1:]) < 16 else 0
    return _two_convolutions(shape, classes, "cnn", 5, padding, (32, 64, 512), rate)


def small_cnn(shape: Sequence[int], classes: int, rate: float = 1.0) -> nn.Module:
    """3 x 3 convolutions of 16 and 32, a hidden layer of 64: enough for the embedded digits."""
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


def build(
    name: str,
    federation: Described | None = None,
    *,
    classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """The model of that name, for the data of a federation or for ``classes`` and ``input_shape``.

    ``module:function`` names a function of your own that returns a module; it is given ``shape`` and ``classes`` if it
    takes them. The same seed gives the same initial values, whatever was drawn before.

    >>> sum(p.numel() for p in build("cnn", classes=10, input_shape=(1, 28, 28)).parameters())
    582026
    >>> build("torch.nn:Linear,in_features=3,out_features=2", classes=2, input_shape=(3,))
    Linear(in_features=3, out_features=2, bias=True)
    """
    call = parse(name)
    if call.name not in BUILDERS and not is_own(name):
        raise unknown("model", call.name, BUILDERS)
    if federation is not None:
        classes, input_shape = classes or federation.classes, input_shape or federation.input_shape
    if classes is None:
        raise UserError(f"model {call.name} needs to know the number of classes: pass a federation or classes=")
    shape = tuple(input_shape or (1, 28, 28))
    chosen = {**call.options, **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.key(seed, "init"))
        module, known_as = _made(call, shape, classes, chosen)
    module.origin = {  # type: ignore[assignment]  # a description for config.json, not a submodule
        **known_as,
        "classes": classes,
        "input_shape": list(shape),
        "seed": seed,
        **chosen,
    }
    return module


def again(origin: Mapping[str, Any]) -> nn.Module:
    """The model that a description names, one of ours: a file of somebody else's must not say what code runs here."""
    name = origin.get("name")
    if name not in BUILDERS:
        raise unknown("model", str(name), BUILDERS)
    return build(**origin)


def named(origin: Mapping[str, Any]) -> nn.Module:
    """The model that a description names, one of ours or of a function of one's own that a person trusts."""
    if "name" in origin:
        return again(origin)
    options = dict(origin)
    if not names_code(module := options.pop("module")):
        raise unknown("model", module, BUILDERS)
    return build(module, **options)


def is_own(name: str) -> bool:
    """Whether a text names a function of one's own: ``module:function``."""
    call = parse(name)
    return call.name not in BUILDERS and bool(call.args) and names_code(f"{call.name}:{call.args[0]}")


def _made(call: Call, shape: Sequence[int], classes: int, options: dict[str, Any]) -> tuple[nn.Module, dict[str, str]]:
    """The module, and how its description calls it."""
    if call.name in BUILDERS:
        _check_options(call.name, call.args, options)
        return BUILDERS[call.name](shape, classes, **options), {"name": call.name}
    name = f"{call.name}:{call.args[0]}"
    return own.call(name, find(name, "model"), shape, classes, options), {"module": name}


def _check_options(name: str, plain: Sequence[Any], options: dict[str, Any]) -> None:
    takes = inspect.signature(BUILDERS[name]).parameters
    valid = {key: takes[key].annotation for key in takes if key not in ("shape", "classes")}
    wrong = sorted(set(options) - set(valid)) + [str(value) for value in plain]
    if wrong:
        known = f"it takes {', '.join(valid)}" if valid else "it takes none"
        raise UserError(f"model {name} has no option {', '.join(wrong)}: {known}")
    for key, value in options.items():
        _check_number(name, key, value, whole=valid[key] is not float)


def _check_number(name: str, key: str, value: object, whole: bool) -> None:
    """Refuses what is no number of the right kind; the range of a fraction is the builder's to check."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise UserError(f"option {key}={value!r} of model {name} must be a {'whole ' if whole else ''}number")
    if whole and value < (0 if key == "padding" else 1):
        raise UserError(f"option {key}={value!r} of model {name} must be a whole number above 0")
