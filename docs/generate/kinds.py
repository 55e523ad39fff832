"""What kind of method each is, as its program shows: with whom its clients exchange, and what stays with them."""

from functools import cache
from typing import NamedTuple

from coterie import algorithms, models
from coterie.algorithms.base import Problem, Program
from coterie.algorithms.bind import bind
from coterie.algorithms.method import facts
from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.cli.show.names import BASELINE, UNEQUAL
from coterie.core.tensors import Tensors
from coterie.models.model import Model, cross_entropy
from coterie.training.initial_models import everybodys

CLIENTS, ROUNDS = 12, 12  # enough for every method's own graph and stages


class MethodKind(NamedTuple):
    """Where a method stands in a list."""

    group: str
    personal: str  # what of its model a client keeps for itself


@cache
def method_kind(name: str) -> MethodKind:
    """Bind a method to a small model, and read off its program what it is."""
    (algorithm,) = typed_plan([name], RunOptions(clients=CLIENTS, rounds=ROUNDS)).algorithms.values()
    model = algorithm.adapt(_model())
    program = bind(algorithm, Problem(model, CLIENTS, ROUNDS, 0), False)
    personal = _personal(program, model)
    if not program.message(model.start):
        return MethodKind(BASELINE, personal)
    if facts(algorithms.builder(name)).submodel is not None:
        return MethodKind(UNEQUAL, personal)
    what = "One model" if personal == "nothing" else "Personalized"
    return MethodKind(f"{what}, {'with a server' if program.topology is None else 'between peers'}", personal)


@cache
def _model() -> Model:
    return Model(models.build("resnet8-bn:width=8", classes=4, input_shape=(1, 8, 8)), cross_entropy)


def _personal(program: Program[object], model: Model) -> str:
    """Say what stays with a client."""
    every = set(model.parameters)
    own = every - program.shared
    if not own:
        if program.training.finetune_epochs:
            return "everything, after fine-tuning"
        return "the mask" if "mask" in _slots(program, model.start) else "nothing"
    if own == every:
        return "everything" if not program.message(model.start) else "a model of its own"
    return "the head" if {name.partition(".")[0] for name in own} == {"linear"} else "some layers"


def _slots(program: Program[object], start: Tensors) -> tuple[str, ...]:
    """Return the names in the state of a program."""
    state = program.init(start, everybodys(None, start, Problem(_model(), CLIENTS, ROUNDS, 0).local_clients))
    return tuple(getattr(state, "_fields", ()))
