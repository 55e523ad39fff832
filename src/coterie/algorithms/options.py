"""The options all methods have in common, checked once."""

import math
from typing import Any, NamedTuple, TypedDict

from ..batches import Amount
from ..errors import RequestError
from ..local import Phase, Sgd


class Options(TypedDict, total=False):
    """Keywords every builder takes; what is not given keeps the method's own default."""

    lr: float
    lr_decay: float
    lr_min: float | None
    momentum: float
    persistent_momentum: bool
    weight_decay: float
    clip: float | None
    batch_size: int | None
    epochs: int | tuple[int, ...] | None
    steps: int | None
    quantise: int | None


class Training(NamedTuple):
    """How clients train. The defaults are those of DFedAlt's experiments (100 clients, CIFAR)."""

    lr: float = 0.1
    lr_decay: float = 0.99  # per round
    lr_min: float | None = None  # instead: a cosine from lr to this over all rounds
    momentum: float = 0.9
    persistent_momentum: bool = False  # False: a fresh buffer in every phase of every round
    weight_decay: float = 5e-4
    clip: float | None = 10.0  # global norm
    batch_size: int | None = 128  # None: everything a client has
    epochs: int | tuple[int, ...] | None = 5  # several: for as many equal groups of clients, unequally fast
    steps: int | None = None  # instead of epochs
    quantise: int | None = None  # bits for every number a client sends; None: all it has

    def given(self, options: Options) -> "Training":
        """These settings with the given ones in their place.

        ``steps`` and ``epochs`` take each other's place, and so do ``lr_decay`` and ``lr_min``.
        """
        unknown = set(options) - set(self._fields)
        if unknown:
            raise RequestError(f"unknown option {', '.join(sorted(unknown))}: choose among {', '.join(self._fields)}")
        if options.get("steps") is not None:
            options = {**options, "epochs": None}
        elif options.get("epochs") is not None:
            options = {**options, "steps": None}
        if options.get("lr_decay") is not None:
            options = {"lr_min": None, **options}
        if isinstance(options.get("epochs"), list):  # as JSON has it
            options = {**options, "epochs": tuple(options["epochs"])}  # type: ignore[arg-type]
        training = self._replace(**options)
        for name, low, high in _BOUNDS:
            value = getattr(training, name)
            for one in value if isinstance(value, tuple) else (value,):
                check_range(name, one, low, high)
        return training

    @property
    def amount(self) -> Amount:
        """How long the main phase lasts."""
        return Amount(self.epochs, self.steps)

    def sgd(self, phase: Phase, t: int, rounds: int) -> Sgd:
        """The optimiser of a phase in round ``t`` of that many."""
        apart = None if phase.apart is None else phase.apart._replace(lr=self.decayed(float(phase.apart.lr), t, rounds))
        return Sgd(self.decayed(phase.lr, t, rounds), self.momentum, self.weight_decay, self.clip, apart)

    def decayed(self, lr: float, t: int, rounds: int) -> float:
        """A learning rate in round ``t``."""
        if self.lr_min is not None:
            return self.lr_min + (lr - self.lr_min) / 2 * (1 + math.cos(math.pi * t / max(rounds, 1)))
        try:
            lr = lr * self.lr_decay**t
        except OverflowError:
            lr = math.inf
        if lr > LARGEST:
            raise RequestError(
                f"lr has grown beyond all numbers in round {t + 1}: choose lr_decay={self.lr_decay:g} lower"
            )
        return lr


_BOUNDS = (
    ("lr", 0, math.inf),
    ("lr_decay", 0, math.inf),
    ("lr_min", 0, math.inf),
    ("momentum", 0, 1),
    ("weight_decay", 0, math.inf),
    ("clip", 0, math.inf),
    ("batch_size", 1, math.inf),
    ("epochs", 0, math.inf),
    ("steps", 0, math.inf),
    ("quantise", 2, 16),
)

# DFedSAM's experiments: a slower decay, momentum only where a method is named after it.
SAM_PAPER = Training(lr_decay=0.998, momentum=0.0)
# FedLMT's experiments: one epoch, a cosine, no clipping.
LMT_PAPER = Training(lr_min=1e-4, clip=None, batch_size=64, epochs=1)


def refuse_lasting(name: str, training: Training) -> None:
    """Refuses momentum that outlives a round where what a client trains changes its shape."""
    if training.persistent_momentum:
        raise RequestError(f"{name} sends other forms of the model in every round: leave persistent_momentum out")


LARGEST = 3e38  # what single precision holds


def check_range(name: str, value: Any, low: float, high: float) -> None:
    """Refuses a number outside its range, in one sentence."""
    if value is None:
        return
    if isinstance(value, str) or not low <= value <= min(high, LARGEST):
        bounds = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise RequestError(f"{name}={value!r} is out of range: it must be a number {bounds}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuses a word that is not among the choices."""
    if value not in choices:
        raise RequestError(f"{name}={value!r} is not a choice: use {' or '.join(choices)}")
