"""What is refused before anything is trained."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from .. import measure
from ..algorithms.used import check_used, check_used_on
from ..core import memory
from ..core.clients import client_list, client_name
from ..core.errors import UserError
from ..core.memory import check_fits
from ..core.tensors import size_in_bytes
from ..data.batches import Amount, Batches
from ..measure.convergence import OWN_TRAIN
from ..models.trials import needs_company
from ..store import flatten
from .cluster import Cluster
from .exchange_checks import check_exchange
from .first import PER_CLIENT, everybodys
from .model_check import check_slices

SPACIOUS = 8  # times as much memory as all models take is enough for any method

if TYPE_CHECKING:
    from .experiment import Experiment


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
    if e.first is not None and not begins_apart(e):
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
    if e.measurable and needs_company(e.model, fed.sample(1), fed.y[:1], training=False):
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


def begins_apart(e: "Experiment") -> bool:
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
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}: use auto, cpu or cuda") from error
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
