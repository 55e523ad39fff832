"""What a model does, found by trying it on a few samples."""

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.errors import UserError
from ..core.rng import torch_draws
from ..core.tensors import Tensors, Tree, first_of, rows, split, tree_map
from ..data.batches import Batch
from ..engines.base import StepInfo
from ..engines.dropout import CounterDropout
from ..engines.watch import WatchDraws
from .model import Loss, Model, answer, sample_losses

SEARCHED = 4096  # targets of more than one number that are compared
TARGETS, NUMBERS = 1024, 2**22  # that a loss is tried with at once, and the numbers of a model's answers to them
# Relative differences that are those of rounding: with the weights that a model comes with, and with any others, which
# may amplify it. What padding does is larger by far.
ROUNDING, APART = 1e-4, 1e-2
STEP = 0.2  # of weights, times the deviation that keeps the size of what passes through a layer


def padding_matters(model: Model, batch: Batch, targets: Tensor) -> bool:
    """Return whether padding changes what becomes of a batch: then batches of this model must never be padded.

    A few trials tell. The loss is the mean over the samples, whichever of all ``targets`` they have, it does not depend
    on what the padding is, and what the model keeps in its buffers is what it keeps without padding. A loss that
    compares samples or weighs classes is found, and so are statistics of a batch, other than those of BatchNorm layers,
    which leave the padding out. A model may begin with a head or a gate of zeros, which hides all of it until the first
    step, so that the same is tried with other weights, too.
    """
    with warnings.catch_warnings(), torch.no_grad(), torch_draws(device=batch.y.device) as seed:
        warnings.simplefilter("ignore")  # a loss may complain of a single sample
        if not _padded_alike(model, model.start, batch, targets, seed):
            return True
        seed(0)
        other = _moved(model)
        try:
            works = bool(model.objective(*split(other, model.parameters), _copy(batch))[0].isfinite())
        except Exception:
            works = False  # a model may take no weights like these: then its own have told what can be known
        return works and not _padded_alike(model, other, batch, targets, seed, APART)


def slices_matter(model: Model, batch: Batch, targets: Tensor) -> bool:
    """Return whether the gradient of a batch may differ from the mean of those of its slices, for a few trials.

    It does where padding matters, because the loss is not the mean of what samples have alone, and where a forward pass
    takes statistics of its batch, or writes into buffers, which would go as many times as there are slices.
    """
    if any(isinstance(m, _BatchNorm) for m in model.module.modules()) or padding_matters(model, batch, targets):
        return True
    with torch.no_grad(), torch_draws(0, batch.y.device):
        after = model.objective(*split(model.start, model.parameters), _copy(batch))[1].buffers
    return not all(torch.equal(v, model.start[k]) for k, v in after.items())


def _moved(model: Model) -> Tensors:
    """Return the model's tensors, every parameter a random step away: a short one, beside weights as layers draw them.

    No step is near zero, because a gate may be a single number.
    """

    def step(v: Tensor) -> Tensor:
        draw = torch.randn_like(v)
        return (draw + draw.sign()) * (STEP / math.sqrt(max(1, v.shape[1:].numel())))

    return model.start | {k: model.start[k] + step(model.start[k]) for k in model.parameters}


def _padded_alike(
    model: Model,
    tensors: Tensors,
    batch: Batch,
    targets: Tensor,
    seed: Callable[[int], object],
    apart: float = ROUNDING,
) -> bool:
    """Return whether these values of a model's tensors show no trace of padding: nothing is relatively so far apart."""
    (x, y), key, few = (batch.x, batch.y), batch.dropout, max(1, 2 * len(batch.y) // 3)
    used = torch.arange(len(y), device=y.device) < few
    first = torch.cat([torch.arange(few), torch.zeros(len(y) - few, dtype=torch.int64)]).to(y.device)
    trials = {
        "whole": Batch(x, y, None, key),
        "masked": Batch(x, y, torch.ones_like(used), key),
        "padded": Batch(x, y, used, key),
        "padded otherwise": Batch(rows(x, first), y[first], used, key),
        "few": Batch(rows(x, slice(few)), y[:few], None, key),
    }
    found: dict[str, StepInfo] = {}
    for name, trial in trials.items():
        seed(0)
        found[name] = model.objective(*split(tensors, model.parameters), _copy(trial))[1]

    def same(one: str, other: str, *, losses: bool = True) -> bool:
        """Compare two trials; those of unequal length draw other numbers, and only their buffers can be compared."""
        a, b = found[one], found[other]
        pairs = [(a.buffers[k], b.buffers[k]) for k in a.buffers] + [(a.loss, b.loss)] * losses
        return all(torch.allclose(v, w, rtol=apart, atol=apart / 100) for v, w in pairs)

    alike = same("whole", "masked") and same("padded", "padded otherwise") and same("padded", "few", losses=False)
    return alike and _is_mean(model.loss, model.outputs(tensors, tree_map(torch.clone, x)), targets, apart)


def _copy(batch: Batch) -> Batch:
    """Return a copy for one trial: a module or a loss may write into what it is given."""
    x, y = tree_map(torch.clone, (batch.x, batch.y))
    return batch._replace(x=x, y=y)


def _is_mean(loss: Loss, outputs: Tensor, targets: Tensor, apart: float) -> bool:
    """Return whether a loss is the mean of what samples have alone; ``outputs`` are those of any samples."""
    most = max(len(outputs), min(TARGETS, NUMBERS // max(1, outputs[0].numel())))
    y = targets[differing(targets, most)]
    repeated = outputs[torch.arange(len(y), device=outputs.device) % len(outputs)]
    whole, each = loss(repeated, y), sample_losses(loss, repeated, y)
    return torch.allclose(whole, each.mean(), rtol=apart, atol=apart / 100)


def differing(targets: Tensor, most: int) -> Tensor:
    """Return the places of samples whose targets differ, at most so many, from the smallest to the largest target.

    What a trial finds out may depend on the classes that it sees, and samples are often stored class by class. Where a
    target is more than one number, it is told from others by its mean, among some thousand samples.

    >>> differing(torch.tensor([2, 2, 2, 0, 0, 1]), 8), differing(torch.tensor([2, 2, 2, 0, 0, 1]), 2)
    (tensor([3, 5, 0]), tensor([3, 0]))
    """
    apart = 1 if targets.dim() == 1 else -(-len(targets) // SEARCHED)
    each = targets[::apart].flatten(1).double().mean(1) if targets.dim() > 1 else targets
    _, first = np.unique(each.cpu().numpy(), return_index=True)
    chosen = np.linspace(0, len(first) - 1, min(most, len(first))).astype(np.int64)
    return torch.from_numpy(first[chosen] * apart).to(targets.device)


def drops_out(model: Model, x: Tree) -> bool:
    """Try whether the model in training mode drops out something: then its batches need keys of the masks."""
    if any(v.is_meta for v in model.start.values()):
        return False  # shapes alone, to count with: nothing can be tried, and nothing is trained
    device = first_of(x).device
    masks = CounterDropout(torch.zeros(1, dtype=torch.int64, device=device))
    with torch.no_grad(), torch_draws(device=device), masks:
        answer(model.training, x, {k: v.clone() for k, v in model.start.items()})
    return masks.calls > 0


def requires_batch(model: Model, x: Tree, y: Tensor, training: bool) -> bool:
    """Try whether the model and its loss fail with one sample and work with the same sample twice.

    Batch normalization does so where a channel of a sample is one number, which has no variance.
    """
    objective = model.objective if training else model.eval_objective

    def works(samples: int) -> bool:
        first = torch.zeros(samples, dtype=torch.int64, device=y.device)
        batch = Batch(rows(x, first), y[first], None)
        try:
            objective(*split(model.start, model.parameters), batch)
        except Exception:
            return False
        return True

    with warnings.catch_warnings(), torch.no_grad(), torch_draws(device=y.device):
        warnings.simplefilter("ignore")  # a loss may complain of a single sample
        return not any(v.is_meta for v in model.start.values()) and not works(1) and works(2)


def settled(model: Model, x: Tree) -> Model:
    """Return the model with those buffers among its constants that no forward pass writes into or replaces.

    Passes tell, in training and in evaluation mode: a rule by type or by name would take a counter for the positions of
    tokens. Three passes in a row, because what one leaves may decide what the next one does.
    """
    values = {k: v.detach().clone() for k, v in model.module.named_buffers()}
    written: set[str] = set()
    for module in (model.training, model.evaluation) if values else ():
        tensors = {k: v.clone() for k, v in values.items()}
        for _ in range(3):
            before = {k: (v, v._version) for k, v in tensors.items()}
            with torch.no_grad(), torch_draws(0, first_of(x).device):
                answer(module, tree_map(torch.clone, x), tensors)
            written |= {k for k, (v, version) in before.items() if tensors[k] is not v or v._version != version}
        # Batch normalization writes without a trace in the version, and always other values.
        written |= {k for k, v in tensors.items() if not torch.allclose(v, values[k], rtol=0, atol=0, equal_nan=True)}
    unwritten = values.keys() - written - model.constants.keys()
    return replace(model, constant=frozenset(unwritten | model.constants.keys())) if unwritten else model


def check_stateless(model: Model, x: Tree) -> None:
    """Refuse a model that keeps something of a call elsewhere than in its buffers: all clients would share it.

    Also one with buffers that stay infinite, as some masks of attention are: an average of them is no number.
    """
    answers, versions = [], {k: v._version for k, v in model.constants.items()}
    for _ in range(3):  # two numbers drawn elsewhere may be nearly equal: once in 500 times, three in some 100,000
        tensors = {k: v.clone() for k, v in model.start.items()}
        with torch.no_grad(), torch_draws(0, first_of(x).device):
            answers.append(answer(model.training, tree_map(torch.clone, x), tensors))  # which it may write into
    for name in (*model.parameters, *model.constants):
        if (
            model.constants[name]._version != versions[name]
            if name in model.constants
            else not torch.allclose(tensors[name], model.start[name], rtol=0, atol=0, equal_nan=True)
        ):
            raise UserError(
                f"the model writes into its parameter {name} while it computes, as nn.Embedding(max_norm=...) does: "
                "let it compute with a changed copy instead, as in nn.utils.parametrize"
            )
    check_averaged({name: tensors[name] for name in model.buffers})
    first, *others = answers
    if isinstance(first, Tensor) and not all(
        torch.allclose(first, other, rtol=1e-3, atol=1e-5, equal_nan=True) for other in others
    ):
        raise UserError(
            "the model answers the same samples in another way when it is called again, so it keeps something that all "
            "clients would share, or draws elsewhere than from torch: keep it in a buffer (register_buffer), and draw "
            "with torch"
        )


def check_averaged(buffers: Tensors) -> None:
    """Refuse buffers that are not finite where clients average them."""
    for name, value in buffers.items():
        if not value.isfinite().all():
            raise UserError(
                f"the buffer {name} is not finite, and averages of it would be no numbers: if it is a mask of "
                "attention, let it be of booleans, or hold -1e9 in place of -inf"
            )


def draws_randomness(model: Model, batch: Batch) -> bool:
    """Try whether the model or its loss draws random numbers, in training or in evaluation mode.

    Dropout in training draws none if the batch has a key of its masks.
    """
    watch = WatchDraws()
    with torch.no_grad(), torch_draws(device=batch.y.device), watch:
        for objective in (model.objective, model.eval_objective):
            objective(*split(model.start, model.parameters), _copy(batch))
    return watch.drawn


def runs_known_code(model: Model, *parts: object) -> bool:
    """Return whether a step runs only code of torch and Coterie: other code may have state that a trace would miss.

    ``parts``: what a step runs besides the model, its loss and its penalties.
    """
    modules = list(model.training.modules())
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules)
    return not hooked and all(map(is_known_code, (model.loss, *model.penalties, *modules, *parts)))


def is_known_code(part: object) -> bool:
    """Return whether a function, or the class of an object, is torch's or Coterie's.

    >>> is_known_code(torch.nn.functional.relu), is_known_code(torch.nn.ReLU()), is_known_code(print)
    (True, True, False)
    """
    module: str | None = (part if inspect.isroutine(part) else type(part)).__module__
    return module is not None and module.split(".")[0] in ("torch", "coterie")


def broadcasts_pairwise(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Return whether a loss compares every answer with every target, because torch spreads [B, 1] and [B] to [B, B].

    It does if both shapes give the same value, as long as answers and targets have the same one, and as they are they
    give another.
    """
    if not targets.is_floating_point() or {outputs.shape[1:], targets.shape[1:]} != {(), (1,)}:
        return False
    one, other = outputs.new_tensor([0.2, 0.9]), targets.new_tensor([0.6, 0.1])
    as_they_are = one.view(-1, *outputs.shape[1:]), other.view(-1, *targets.shape[1:])
    pairs = as_they_are, (one, other), (one[:, None], other[:, None])
    try:
        with warnings.catch_warnings(), torch.no_grad(), torch_draws(device=targets.device):
            warnings.simplefilter("ignore")  # torch's own losses warn of it, and go on
            found, flat, upright = (torch.as_tensor(loss(*pair)) for pair in pairs)
    except Exception:
        return False  # it takes one shape alone
    return torch.allclose(flat, upright) and not torch.allclose(flat, found)
