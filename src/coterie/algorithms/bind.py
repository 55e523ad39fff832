"""A method, bound to a model and its clients: the program that an experiment runs."""

from typing import Any

from .absent import attended
from .base import Algorithm, Problem, Program
from .finetuned import finetuned
from .quantized import quantized


def bind(algorithm: Algorithm, problem: Problem, offline: bool = False) -> Program[Any]:
    """The method's program, with what any method may have around it.

    Everybody may tune its model before it is measured, clients between peers may be ``offline`` for whole rounds, and
    messages may have few bits.
    """
    program = algorithm.bind(problem)
    t = program.training
    if t.finetune_epochs:
        program = finetuned(program, problem)
    if offline:
        program = attended(program)
    return program if t.quantize is None else quantized(program, t.quantize)
