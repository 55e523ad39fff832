"""What is refused before anything is trained: a model, an exchange, or options that do not fit."""

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import measure
from ..algorithms.options import Training, members
from ..algorithms.used import check_used, check_used_on
from ..core import memory
from ..core.clients import client_list, client_name
from ..core.errors import UserError, noted
from ..core.memory import check_fits
from ..core.rng import torch_draws
from ..core.tensors import size_in_bytes
from ..data import Federation
from ..data.batches import Amount, Batch, Batches
from ..data.inputs import Inputs, name_of, names_of, shape_in_words, shape_of_json
from ..measure.convergence import OWN_TRAIN
from ..models.model import Loss, Model, answer, cross_entropy
from ..models.parts import origin_of
from ..models.trials import broadcasts_pairwise, check_stateless, differing, requires_batch, settled, slices_matter
from ..store import flatten
from ..topology import Topology
from ..topology.sparse import entries
from .initial_models import PER_CLIENT, everybodys
from .settings import Cluster

if TYPE_CHECKING:
    from .experiment import Experiment

SPACIOUS = 8  # times as much memory as all models take is enough for any method


def check_asked(e: "Experiment") -> None:
    """Refuse what does not fit together or changes nothing."""
    check_used(e.algorithm)
    check_used_on(e.algorithm, e.model.module)
    check_exchange(e)
    _check_rates(e)
    _check_lengths(e)
    _check_small_batches(e)
    if e.program.training.micro_batch is not None:
        check_slices(e.model, e.federation)
    tried = [
        len(e.tests.y),
        int(e.tests.sizes.sum()),
        int(e.train.sizes.sum()) if OWN_TRAIN in e.settings.record else 0,
    ]
    kept = e.metrics.task.dtype.itemsize * e.metrics.width * max(tried)
    check_fits(2 * kept, "what the metrics keep of all samples", "choose others, or keep less of a sample")
    for measured in e.settings.record:
        measure.check_measure(measured, e.model, e.program, e.measurable)
    if e.first is not None and not has_per_client_init(e):
        raise UserError(
            f"init={PER_CLIENT} is for clients that begin with something of their own, with {e.algorithm.name} "
            "all begin with the server's model: leave init out"
        )


def _check_rates(e: "Experiment") -> None:
    """Refuse rates below lr_min, which would rise; one of 0 is how a part is kept as it is."""
    end, phases = e.program.training.lr_min, e.program.phases
    rates = [phase.lr for phase in phases] + [float(phase.group.lr) for phase in phases if phase.group is not None]
    if end is not None and (low := [lr for lr in rates if 0 < lr < end]):
        raise UserError(
            f"the rate {min(low):g} is below lr_min={end:g}, where all rates end, so it would rise: "
            "choose an lr_min that is no higher than the rate, or raise the rate"
        )


def _check_lengths(e: "Experiment") -> None:
    """Refuse epochs that are nobody's, and phases so long that the numbers of their samples do not fit into memory."""
    t = e.program.training
    amounts = [(phase.amount, None if phase.full_batch else t.batch_size) for phase in e.program.phases]
    for amount, batch_size in [*amounts, (Amount(t.finetune_epochs), t.batch_size)]:
        _check_groups(e, amount)
        need = Batches(e.train, e.local_clients, amount, batch_size, key=None).most_bytes
        check_fits(need, "the list of a client's batches in one round", "ask for fewer epochs or steps")


def _check_groups(e: "Experiment", amount: Amount) -> None:
    """Refuse epochs for more groups than there are clients: some of the numbers would be nobody's."""
    clients = e.federation.clients
    if isinstance(amount.epochs, tuple) and len(amount.epochs) > clients:
        groups, listed = len(amount.epochs), ",".join(map(str, amount.epochs))
        name = next((k for k, v in e.algorithm.settings.items() if v == amount.epochs), "epochs")
        raise UserError(
            f"{name}={listed} is for {groups} groups of clients, and there are {clients} clients in all: "
            f"give {clients} numbers at most, or take {groups} clients or more"
        )


def _check_small_batches(e: "Experiment") -> None:
    """Refuse samples that stand alone where the model needs company."""
    if e.smallest_batch > 1 and (e.program.training.batch_size == 1 or e.train.sizes.max() < e.smallest_batch):
        cause = "batches of one sample" if e.program.training.batch_size == 1 else "clients of one sample"
        raise UserError(
            f"this model cannot train on a sample alone, as batch normalization cannot, and there are {cause} only: "
            "choose two samples or more, or a normalization of single samples, such as nn.GroupNorm"
        )
    tests, fed = e.tests, e.federation
    if e.measurable and requires_batch(e.model, fed.sample(1), fed.y[:1], training=False):
        alone = np.flatnonzero(tests.sizes % tests.evaluation_batch == 1)
        if len(alone) or tests.dealt.sizes[-1] == 1:
            whose = f"of {client_name(fed.names, int(alone[0]))}" if len(alone) else "of all clients together"
            raise UserError(
                f"a test sample {whose} is evaluated alone, which this model cannot do: give its batch normalization "
                "running statistics (track_running_stats=True), or the client another test sample"
            )


def idle_clients(e: "Experiment") -> str | None:
    """Say which clients do not train, because a step needs more samples than they have; None if all do."""
    idle = np.flatnonzero((e.train.sizes > 0) & (e.train.sizes < e.smallest_batch)).tolist()
    if not idle:
        return None
    who = f"{client_list(e.federation.names, idle)} {'has' if len(idle) == 1 else 'have'}"
    return f"{who} one sample, on which alone this model cannot train: no training there, only mixing and evaluation"


def check_room(e: "Experiment", clients: int) -> None:
    """Refuse so many clients of this process that what they hold between two rounds would not fit into its memory.

    A state is the sum of what everybody shares and what each of them holds: a client and two of them tell both.
    """
    least = clients * size_in_bytes(e.model.start.values())
    if e.federation.y.device.type != "cpu" or least < memory.free_memory() // SPACIOUS:
        return
    shards = (e.changed(shard=e.local_clients[:n]) for n in (1, 2))
    states = (s.program.init(e.model.start, everybodys(None, e.model.start, s.local_clients)) for s in shards)
    one, two = (size_in_bytes(flatten(state).values()) for state in states)
    need = one + (clients - 1) * (two - one)
    check_fits(need, f"{e.algorithm.name} with {clients:,} clients", "take fewer, or a smaller model")


def has_per_client_init(e: "Experiment") -> bool:
    """Try whether clients that draw their own first models begin elsewhere than with a common one."""
    one, start = e.changed(shard=e.local_clients[:1]), e.model.start
    states = (one.program.init(start, everybodys(first, start, one.local_clients)) for first in (e.first, None))
    apart, common = map(flatten, states)
    return any(not torch.equal(v, common[k]) for k, v in apart.items())


def find_device(name: str | torch.device) -> torch.device:
    """Return the device of that name; ``auto`` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")  # which nothing runs on either
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} cannot be used: use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA device here: use --device cpu")
    if device.index:
        raise UserError(
            f"device {name!r} cannot be used: Coterie computes on the first GPU that it sees, so use cuda, and "
            f"CUDA_VISIBLE_DEVICES={device.index} in the environment"
        )
    return device


def check_precision(precision: str, place: torch.device, there: Cluster | None) -> None:
    """Refuse a precision that only GPUs have where there is none."""
    if precision == "tf32" and place.type == "cpu" and not (there is not None and there.gpus_per_worker):
        raise UserError("precision=tf32 is of a GPU's products, a CPU has none: take fp32 or bf16")


def check_exchange(e: "Experiment") -> None:
    """Refuse what does not fit together between clients, or changes nothing there."""
    t, graph = e.program.training, e.program.topology
    of_messages = {
        "quantize": t.quantize is not None,
        "robust": t.robust is not None,
        "gossip_steps": e.program.gossip_steps > 1,
        **{name: likely > 0 and graph is None for name, likely in e.settings.lost.items()},
    }
    for name, chosen in of_messages.items():
        if chosen and not e.program.message(e.model.start):
            raise UserError(f"{name} changes nothing, because {e.algorithm.name} sends nothing: leave it out")
    if e.program.rule is not None and graph is not None:
        _check_compared(graph, t)
    _check_company(e)
    if e.program.fresh_graph and graph is not None and graph.fixed:
        raise UserError(f"fresh_graph changes nothing, because {graph.name} is always the same: leave it out")
    for name, likely in e.settings.lost.items():
        _check_lost(e, name, likely)


def _check_company(e: "Experiment") -> None:
    """Refuse rounds of a single client where clients mix with each other: 1 is more often meant as all of them."""
    wanted, clients = e.program.participation, e.federation.clients
    if e.program.topology is not None and members(wanted, clients) == 1 < clients:
        raise UserError(
            f"participation={wanted} is one client a round, which has nobody to mix with: write participation=1.0 for "
            "all clients, or a count of 2 or more"
        )


def _check_compared(graph: Topology, t: Training) -> None:
    """Refuse a rule against liars where nobody hears two others: of two models none can be told to be the lie."""
    receivers, senders, _ = entries(graph(0))
    others = receivers[receivers != senders]
    if not len(others) or int(others.bincount().max()) < 2:
        raise UserError(
            f"robust={t.robust} compares what several others send, and with {graph.name} everybody hears one at most: "
            "choose a graph of more neighbors, or leave robust out"
        )


def _check_lost(e: "Experiment", name: str, likely: float) -> None:
    if likely and e.program.topology is None:
        instead = "lower its participation" if "participation" in e.algorithm.settings else "give it a topology"
        raise UserError(
            f"{name}={likely} is for clients that mix with each other, {e.algorithm.name} has a server: "
            f"{instead} instead"
        )


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
    if isinstance(outputs, Tensor) and broadcasts_pairwise(loss, outputs, targets):
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
