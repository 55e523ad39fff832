"""The options that all methods have in common, and the types of settings with their ranges."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, cast, get_type_hints

from ..core.annotations import Fraction as Fraction
from ..core.annotations import Positive as Positive
from ..core.annotations import Range as Range
from ..core.arguments import accept
from ..core.errors import UserError
from ..data.batches import Amount
from ..engines.base import MixingRule
from ..exchange.robust import RULES
from ..local.corrections import SamForm as SamForm
from ..local.optimizers import Optimizer, RoundRates
from ..local.paces import PaceLike
from ..local.parse import OptimizerLike as OptimizerLike
from ..local.parse import build
from ..local.steps import Phase

Rate = Annotated[float, Range()]
"""A step size, a radius or a strength: a number that is not negative."""
Count = Annotated[int, Range()]
Epochs = Annotated[int | tuple[int, ...], Range()]
"""Passes through the data: one number for all clients, or several for as many equal groups of them."""
Participation = Annotated[float | int, Range()]
"""Who takes part in a round: a fraction of the clients, or a count of them."""
Weighting = Literal["size", "uniform"]
"""How much a client counts on a server: by its training samples, or as much as every other."""
Clip = Annotated[float, Range(above=True, instead=", and none is no clipping")]
Robust = Literal["trimmed", "median", "clip"]
"""What takes the place of averages where members may lie."""


class Options(TypedDict, total=False):
    """The keywords that every builder takes; one that is not given keeps the method's own default.

    Their names and types stand here and in ``Training``, because neither class can serve for both: a type checker
    completes keywords from a TypedDict alone, which has neither defaults nor methods.

    Args:
        lr: The learning rate of the main phase.
        lr_decay: What every learning rate is multiplied by after each round.
        lr_min: Where a cosine from each rate over all rounds ends, instead of the decay; no rate but 0 is below it.
        lr_milestones: Ascending fractions of the rounds after which the rates are multiplied by lr_gamma.
        lr_gamma: What lr_milestones multiply the rates by; 0.1 unless given.
        lr_warmup: Rounds at the beginning in which every rate rises in equal steps; the next round has the whole rate.
        lr_schedule: How all rates change from step to step of a round: "exponential:0.99", "milestones:10,gamma=0.5",
            "cosine:50" or "warmup:5", counted in steps, or a function of the round and the step that returns a factor.
        optimizer: "sgd", "adam" or "adamw", or a function of your own by name; Adam takes far lower rates than SGD.
        momentum: The momentum of SGD in the local steps.
        betas: How much Adam keeps of the mean of gradients and of their squares; none: 0.9,0.999.
        eps: What Adam adds to the root of the squares; none: 1e-8.
        keep_optimizer_state: Whether momentum, or what another optimizer carries, outlives a round, instead of a fresh
            state in every phase.
        weight_decay: The decay of the local steps: L2, but with adamw decoupled from the gradient.
        clip: The largest norm of a gradient, above 0; none: no clipping.
        batch_size: Samples in one batch; none: all that a client has. A last one of one sample is left out of its pass
            where a model cannot train on that, as some batch normalization cannot.
        micro_batch: Samples whose gradient is computed at a time where a batch does not fit into memory; none: all.
        replacement: Whether every sample of a batch is drawn anew from all of the client's, instead of passes through
            the shuffled data; a batch may then have a sample twice.
        epochs: Passes through the data in one round; several: for as many equal groups of clients, unequally fast; no
            more of them than there are clients.
        steps: Batches in one round, instead of epochs.
        quantize: Bits for every number that a client sends, 2 to 16; none: all it has.
        robust: What takes the place of averages where members may lie: "trimmed", "median" or "clip"; none: nothing.
        server_optimizer: How a server steps toward the mean of what it receives: "sgd", which is that mean, "momentum",
            "adam", "yogi" or "adagrad", with options as in "adam:lr=0.01,beta_1=0.9,beta_2=0.99,tau=0.001".
        finetune_epochs: Passes in which everybody tunes a copy of its model before it is measured and returned.
        finetune_lr: The rate of that tuning; none: lr.
        finetune_momentum: The momentum of that tuning; none: momentum.
        finetune_weight_decay: The decay of that tuning, which does not follow weight_decay.
        finetune_clip: The largest norm of a gradient in that tuning, which does not follow clip; none: no clipping.
    """

    lr: Rate
    lr_decay: Rate
    lr_min: Rate | None
    lr_milestones: tuple[float, ...] | None
    lr_gamma: Rate | None
    lr_warmup: Count
    lr_schedule: PaceLike | None
    optimizer: OptimizerLike
    momentum: Fraction
    betas: Annotated[tuple[float, ...], Range(0, 1, below=True)] | None
    eps: Positive | None
    keep_optimizer_state: bool
    weight_decay: Rate
    clip: Clip | None
    batch_size: Annotated[int, Range(1)] | None
    micro_batch: Annotated[int, Range(1)] | None
    replacement: bool
    epochs: Epochs | None
    steps: Count | None
    quantize: Annotated[int, Range(2, 16)] | None
    robust: Robust | None
    server_optimizer: str
    finetune_epochs: Count
    finetune_lr: Rate | None
    finetune_momentum: Fraction | None
    finetune_weight_decay: Rate
    finetune_clip: Clip | None


# Settings of which the first takes the place of the second.
EXCLUSIVE = (
    ("steps", "epochs"),
    ("lr_min", "lr_decay"),
    ("personal_steps", "personal_epochs"),
    ("capacities", "rank_ratio"),
    ("variant", "epochs"),
)


class Training(NamedTuple):
    """How clients train: the values of all ``Options``. The defaults are those of DFedAlt's experiments."""

    lr: float = 0.1
    lr_decay: float = 0.99
    lr_min: float | None = None
    lr_milestones: tuple[float, ...] | None = None
    lr_gamma: float | None = None
    lr_warmup: int = 0
    lr_schedule: PaceLike | None = None
    optimizer: OptimizerLike = "sgd"
    momentum: float = 0.9
    betas: tuple[float, ...] | None = None
    eps: float | None = None
    keep_optimizer_state: bool = False
    weight_decay: float = 5e-4
    clip: float | None = 10.0
    batch_size: int | None = 128
    micro_batch: int | None = None
    replacement: bool = False
    epochs: int | tuple[int, ...] | None = 5
    steps: int | None = None
    quantize: int | None = None
    robust: Robust | None = None
    server_optimizer: str = "sgd"
    finetune_epochs: int = 0
    finetune_lr: float | None = None
    finetune_momentum: float | None = None
    finetune_weight_decay: float = 0.0
    finetune_clip: float | None = None

    def with_options(self, options: Options) -> "Training":
        """Return these values with ``options`` in their place.

        ``steps`` and ``epochs`` take each other's place, and so do ``lr_decay`` and ``lr_min``. To give both is
        refused, unless one only repeats the method's default. ``lr_milestones`` takes the place of ``lr_min`` and of a
        decay; an ``lr_decay`` that is given beside it acts as well.
        """
        hints, values = get_type_hints(Options, include_extras=True), {**self._asdict(), **options}
        accepted = {k: accept("any method", k, v, hints[k]) for k, v in values.items()}
        options = cast(Options, {k: accepted[k] for k in options})
        for one, other in EXCLUSIVE:
            value, replaced = options.get(one), options.get(other)
            if value is not None and replaced is not None and replaced != getattr(self, other):
                raise UserError(f"{one} and {other} take each other's place: give one of them")
        if options.get("steps") is not None:
            options = {**options, "epochs": None}
        elif options.get("epochs") is not None:
            options = {**options, "steps": None}
        if options.get("lr_decay") is not None:
            options = {"lr_min": None, **options}
        training = self._replace(**with_milestones(options))
        if training.betas is not None and len(training.betas) != 2:
            raise UserError(f"betas={','.join(f'{b:g}' for b in training.betas)} are not two: give both, as 0.9,0.999")
        if training.replacement and training.batch_size is None:
            raise UserError("replacement draws the samples of a batch, and batch_size=none takes all: give batch_size")
        return training

    @property
    def rule(self) -> MixingRule | None:
        """What takes the place of averages; None: nothing does."""
        return None if self.robust is None else RULES[self.robust]

    @property
    def amount(self) -> Amount:
        """The length of the main phase."""
        return Amount(self.epochs, self.steps)

    @property
    def tuning(self) -> "Training":
        """The same for the fine-tuning, whose rate is constant; rate and momentum are those of training unless given.

        >>> Training(momentum=0.5, clip=1.0).tuning.momentum, Training(clip=1.0).tuning.clip
        (0.5, None)
        """
        return Training(
            lr=self.lr if self.finetune_lr is None else self.finetune_lr,
            lr_decay=1.0,
            optimizer=self.optimizer,
            momentum=self.momentum if self.finetune_momentum is None else self.finetune_momentum,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.finetune_weight_decay,
            clip=self.finetune_clip,
            batch_size=self.batch_size,
            micro_batch=self.micro_batch,
            replacement=self.replacement,
            epochs=self.finetune_epochs,
        )

    @property
    def round_rates(self) -> RoundRates:
        """How rates change from round to round."""
        gamma = 1.0 if self.lr_gamma is None else self.lr_gamma
        return RoundRates(self.lr_decay, self.lr_min, self.lr_milestones or (), gamma, self.lr_warmup)

    def steady(self) -> "Training":
        """Return the same with rates that stay as they are at first."""
        return self._replace(
            lr_decay=1.0, lr_min=None, lr_milestones=None, lr_gamma=None, lr_warmup=0, lr_schedule=None
        )

    def optimizer_of(self, phase: Phase) -> Optimizer:
        """Return the optimizer of a phase."""
        return build(self.optimizer if phase.optimizer is None else phase.optimizer, self._asdict())


def members(participation: float | int, clients: int) -> int:
    """Return how many clients take part in a round; an integer is a count, a number a fraction.

    >>> members(0.25, 10), members(3, 10), members(1, 1)
    (2, 3, 1)
    """
    m = participation if isinstance(participation, int) else max(1, round(participation * clients))
    if not 1 <= m <= clients:
        raise UserError(f"participation={participation} asks for {m} of {clients} clients: use a fraction up to 1.0")
    return m


def with_milestones(options: Options) -> Options:
    """Return the options, complete where the rate falls in steps: a decay acts only if it is given, too."""
    milestones = options.get("lr_milestones")
    if milestones is None:
        if options.get("lr_gamma") is not None:
            raise UserError("lr_gamma is what lr_milestones multiply the rate by: give them too, or leave it out")
        return options
    if options.get("lr_min") is not None:
        raise UserError("lr_min and lr_milestones are two schedules of the rate: leave one of them out")
    listed = isinstance(milestones, list | tuple) and all(isinstance(m, int | float) for m in milestones)
    if not (listed and milestones and all(0 < m < 1 for m in milestones)) or sorted(milestones) != list(milestones):
        raise UserError(
            f"lr_milestones={milestones!r} is out of range: give ascending fractions of the rounds, as in (0.5, 0.75)"
        )
    gamma = 0.1 if options.get("lr_gamma") is None else options["lr_gamma"]
    return {"lr_decay": 1.0, **options, "lr_min": None, "lr_milestones": tuple(milestones), "lr_gamma": gamma}


# DFedSAM's experiments: a slower decay, momentum only where a method is named after it.
SAM_PAPER = Training(lr_decay=0.998, momentum=0.0)
FLAT = SAM_PAPER._replace(clip=None)  # DFedSAM clips nothing
# FedLMT's experiments: one epoch, a cosine, no clipping.
LMT_PAPER = Training(lr_min=1e-4, clip=None, batch_size=64, epochs=1)


def refuse_stateless(t: Training, personal: OptimizerLike | None = None) -> None:
    """Refuse to keep the state of SGD without momentum; ``personal``: the optimizer of a phase of its own.

    >>> stateless = Training(momentum=0.0, keep_optimizer_state=True)
    >>> refuse_stateless(stateless, "adam")  # Adam has a state to keep
    >>> refuse_stateless(stateless)
    Traceback (most recent call last):
    ...
    coterie.core.errors.UserError: keep_optimizer_state keeps a momentum that is 0: give momentum, as in momentum=0.9
    """
    if t.keep_optimizer_state and t.optimizer == "sgd" and not t.momentum and personal in (None, "sgd"):
        raise UserError("keep_optimizer_state keeps a momentum that is 0: give momentum, as in momentum=0.9")


def refuse_kept(t: Training) -> None:
    """Refuse an optimizer's state that outlives a round where a client's model changes its shape."""
    if t.keep_optimizer_state:
        raise UserError("this method sends other forms of the model in every round: leave keep_optimizer_state out")


def refuse_robust(t: Training, because: str) -> None:
    """Refuse a rule in place of an average where a method has no plain one."""
    if t.robust is not None:
        raise UserError(f"robust={t.robust} takes the place of a plain average, and {because}: leave robust out")


def refuse_for_parts(t: Training) -> None:
    """Refuse what needs whole models where clients hold parts of one, others in every round."""
    refuse_kept(t)
    refuse_robust(t, "here clients hold parts of the model, so that an entry may have one value only")


def refuse_unused(reason: str, settings: Mapping[str, Any], instead: str) -> None:
    """Refuse settings that would change nothing, in one sentence that says why and which setting would use them."""
    names = [name for name, value in settings.items() if value is not None]
    if names:
        raise UserError(f"{reason}, which does not use {' or '.join(names)}: leave it out, or take {instead}")
