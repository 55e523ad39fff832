"""Whether a model fits the data and the loss, tried on the first samples."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UserError, noted
from ..core.rng import torch_draws
from ..data import Federation
from ..data.arrays import name_of
from ..data.batches import Batch
from ..data.inputs import Inputs, names_of, shape_in_words, shape_of_json
from ..models.model import Loss, Model, answer, cross_entropy
from ..models.parts import origin_of
from ..models.trials import check_stateless, differing, settled, slices_matter, spreads_out

PROBE = 8  # samples to try a model with


def probe_of(federation: Federation) -> Batch:
    """Return a few samples to try a model with; like a batch in training it has a key of its dropout masks."""
    y = federation.y
    key = torch.zeros(1, dtype=torch.int64, device=y.device)
    # samples are often stored class by class, and what a trial finds out may depend on the classes
    rows = torch.cat([differing(y, PROBE), torch.arange(len(y), device=y.device)])[:PROBE]
    return Batch(federation.sample(rows), y[rows], None, key)


def check_slices(model: Model, federation: Federation) -> None:
    """Refuse ``micro_batch`` where the mean over slices of a batch is not that of the batch."""
    if slices_matter(model, probe_of(federation), federation.y):
        raise UserError(
            "micro_batch computes a batch slice by slice, and this model or its loss depends on which samples are "
            "together, as batch normalization does: leave micro_batch out, or take a normalization of single samples, "
            "such as nn.GroupNorm, and a loss that is the mean over the samples"
        )


def check_model(model: Model, federation: Federation) -> Model:
    """Refuse a model that cannot take the data, or has no score for some of their classes.

    Return it with all of its constants, which the samples tell.
    """
    origin = origin_of(model.module)
    classes = federation.classes if model.loss is cross_entropy else None  # another loss knows what outputs it wants
    _check_classes(origin.get("classes"), classes)  # first: a model of tokens takes as many as it gives
    outputs = _outputs(model, federation, origin.get("input_shape"))
    counted = classes or (federation.classes if len(federation.test_y) else None)  # accuracies need scores, too
    if counted is not None:
        _check_scores(outputs, counted)
    _check_classes(outputs.shape[1] if classes else None, classes)
    model = settled(model, federation.sample(PROBE))
    check_stateless(model, federation.sample(PROBE))
    _check_pairs(model.loss, outputs, federation.y)  # first, because torch's own losses warn of such shapes
    _check_loss(model.loss, outputs, federation.y[:2].clone())
    return model


def _check_scores(outputs: Any, classes: int) -> None:
    """Refuse answers that are no scores of classes."""
    if isinstance(outputs, Tensor) and outputs.dim() > 1:
        return
    if isinstance(outputs, Tensor):
        found, fix = str(tuple(outputs.shape)), f"end it with a layer of {classes} outputs"
    else:
        fix = "wrap it in a module that returns the scores, or let its output have them as logits"
        found, fix = type(outputs).__name__, f"{fix}, as the models of Hugging Face do"
    raise UserError(
        f"the model answers with {found}, not with scores [samples, {classes}]: {fix}, or give floating targets and a "
        "loss for them, such as mse"
    )


def _check_loss(loss: Loss, outputs: Any, targets: Tensor) -> None:
    """Refuse a loss that is not one number for a batch; what it raises itself passes as it is."""
    if inspect.isclass(loss):
        raise UserError(f"the loss is a class: make one of it, as in loss={loss.__name__}()")
    try:
        if loss is cross_entropy and targets.is_floating_point() and not _probabilities(targets):
            raise ValueError("numbers are no probabilities of classes")
        with torch.no_grad(), torch_draws(device=targets.device), noted("It happened with the first samples."):
            found = loss(outputs, targets)
    except UserError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        if loss is not cross_entropy:
            raise
        raise UserError(
            f"the targets are {name_of(targets)} of shape {tuple(targets.shape[1:])}, and cross-entropy takes one "
            "integer label per sample: give these, or another loss: mse for numbers (--loss mse), bce for labels"
        ) from error
    if not isinstance(found, Tensor) or not found.is_floating_point():
        kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"the loss returns {kind}: return a floating tensor, which gradients can be taken of")
    if found.dim():
        raise UserError(
            f"the loss returns a tensor of shape {tuple(found.shape)} for {len(targets)} samples: return their mean, "
            'as reduction="mean" does'
        )


def _check_pairs(loss: Loss, outputs: Any, targets: Tensor) -> None:
    """Refuse a loss that compares every answer with every target, because their shapes differ by a dimension of 1."""
    if isinstance(outputs, Tensor) and spreads_out(loss, outputs, targets):
        answers, wanted = ("[samples, 1]" if v.dim() > 1 else "[samples]" for v in (outputs, targets))
        raise UserError(
            f"the model answers with {answers} and the targets are {wanted}, so that the loss compares every answer "
            "with every target: give targets of the shape of the answers (y[:, None], y[:, 0]), or loss=mse, which "
            "takes both"
        )


def _probabilities(targets: Tensor) -> bool:
    """Return whether floating targets are probabilities of classes, which cross-entropy takes as well."""
    return targets.dim() > 1 and bool((targets >= 0).all()) and bool(((targets.sum(1) - 1).abs() < 1e-3).all())


def _outputs(model: Model, federation: Federation, built: Any) -> Any:
    """Return what the model answers to the first samples; refuse it with both shapes where it cannot take them."""
    have, sample = shape_in_words(federation.input_shape), federation.sample(2)
    _check_arguments(model.evaluation, sample)
    try:
        with torch.no_grad(), torch_draws(device=federation.y.device):
            return answer(model.evaluation, sample)
    except (RuntimeError, IndexError) as error:
        takes = f"fails ({str(error).splitlines()[0]})"
        weights = next((name_of(w) for w in model.start.values() if w.is_floating_point()), None)
        kind = name_of(sample) if isinstance(sample, Tensor) else None
        if weights is not None and kind not in (None, weights) and "type" in takes:
            raise UserError(
                f"the model has {weights} weights and the samples are {kind}: give samples of {weights}, as "
                f"x.to(torch.{weights}) makes them"
            ) from error
        if built is not None and shape_of_json(built) != federation.input_shape:
            takes = f"is built for samples of shape {shape_in_words(shape_of_json(built))}"
        raise UserError(f"the model {takes}, the data have {have}: build it for these data") from error


def _check_arguments(module: nn.Module, x: Inputs) -> None:
    """Refuse inputs that are not the arguments of a module."""
    try:
        takes = inspect.signature(module.forward)
    except ValueError:  # built in
        return
    try:
        takes.bind(**x) if isinstance(x, dict) else takes.bind(*(x if isinstance(x, tuple) else (x,)))
    except TypeError as error:
        names = ", ".join(names_of(x))
        raise UserError(
            f"the model cannot be called with {f'the inputs {names}' if names else 'one tensor'} ({error}): give the "
            "samples that its forward takes, by the names of its arguments in a dictionary or in order in a tuple"
        ) from error


def _check_classes(outputs: int | None, classes: int | None) -> None:
    """Refuse labels that would point beside the outputs: on a GPU that ends the whole process."""
    if outputs is not None and classes is not None and outputs < classes:
        raise UserError(
            f"the model has {outputs} outputs, the data have {classes} classes: build it for {classes} classes"
        )
