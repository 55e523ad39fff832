"""A closing fine-tune: a wrapper that measures, for any method, what every client makes of its model by itself."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..core.tensors import entries, rows
from ..data.batches import Amount
from ..local.steps import Phase
from .base import ModelGroup, Problem, Program, Round
from .groups import NUMBERS, model_groups
from .options import Training
from .update import LocalUpdate

FINETUNE_STREAM = 3  # batches of the fine-tuning


def finetuned(program: Program[Any], problem: Problem) -> Program[Any]:
    """The same method with a further protocol: everybody tunes a copy of its own model, in its own form.

    z_i <- x_i;   z_i <- z_i - lr m,  m <- 0.9 m + grad F_i(z_i),  finetune_epochs times through the client's data

    All parameters of the form are tuned, with momentum 0.9, without weight decay and clipping, at ``finetune_lr``, or
    ``lr`` where that is not given, in batches of ``batch_size``. The state stays as it is: the federation goes on as
    if nobody had tuned anything.

    >>> from coterie.algorithms import fedavg
    >>> fedavg(finetune_epochs=5).settings["finetune_epochs"]
    5

    Reference: Oh, Kim, Yun, "FedBABU", 2022, for the optimizer; the code released with DisPFL tunes FedAvg's model so.
    """
    t = program.training
    lr = t.lr if t.finetune_lr is None else t.finetune_lr
    tuning = Training(lr=lr, lr_decay=1.0, momentum=0.9, weight_decay=0.0, clip=None, batch_size=t.batch_size)

    def finetune(s: Any, r: Round) -> Iterator[ModelGroup]:
        for group in model_groups(problem.model, program.submodels, program.models(s), r):
            own = replace(problem, model=group.model, submodels=None)
            phase = Phase(own.parameters, Amount(epochs=t.finetune_epochs), lr, stream=FINETUNE_STREAM)
            for part in portions(group):
                mine = replace(r, cohort=r.cohort[part.places])
                done = LocalUpdate(own, [phase], tuning).run(mine, part.models)
                yield part._replace(models=done.models)

    return program._replace(finetune=finetune)


def portions(group: ModelGroup) -> Iterator[ModelGroup]:
    """Some models at a time: a server's model is one, what becomes of it are as many as there are clients."""
    size = max(1, NUMBERS // entries(group.model.start.values()))
    for start in range(0, len(group.places), size):
        some = slice(start, start + size)
        yield group._replace(places=group.places[some], models=rows(group.models, some))
