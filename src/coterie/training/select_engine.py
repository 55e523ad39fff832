"""Select an engine for a run from the model's cost and the free memory."""

from inspect import Parameter
from typing import Any, NamedTuple

import torch

from ..algorithms.base import Program
from ..core import memory
from ..core.arguments import PositiveInt
from ..core.errors import UserError, unknown
from ..core.spec import bind, parse
from ..core.tensors import replicate, size_in_bytes, split
from ..data import Federation
from ..data.batches import Batch
from ..engines.base import Engine
from ..engines.graphed import Graphed
from ..engines.serial import Serial
from ..engines.vectorized import Vectorized, lift
from ..models.cost import Cost, cost
from ..models.model import Model, draws_randomness, padding_matters, runs_known_code

_CHUNK = Parameter("chunk", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=PositiveInt)
# The engines and what is typed behind their names, as in vectorized:16; ray has one of these on every worker.
TAKES: dict[str, dict[str, Parameter]] = {
    "auto": {},
    "serial": {},
    "vectorized": {"chunk": _CHUNK},
    "graphed": {"chunk": _CHUNK},
}

# Above this many multiply-adds a step, a CPU runs per-client convolutions faster one client at a time: measured
# 0.6 ms against 1.0 ms a client-step for vmap and loop at 1.5 million, 22 ms against 19 ms at 210 million.
CONVOLUTIONS_PAY_BELOW = 20_000_000

# Above this many multiply-adds a step one client fills a GPU, and side by side its convolutions only get slower:
# measured 4.9 ms against 2.8 ms a client-step for ResNet-18 (70 billion), 0.09 against 0.3 ms for a CNN (0.6 billion).
FILLS_A_GPU = 5_000_000_000
# More clients side by side on a CPU gain nothing and take memory: measured 17, 14 and 14 us a client-step of logistic
# regression for 1,000, 2,000 (half a gigabyte) and 10,000 at once.
WORKING_SET = 512 * 2**20
BUILDING_PAYS_FROM = 2_000  # client-steps: building a program takes up to a minute
# Clients under way at a time where one fills the GPU, but not in every kernel: measured 3.0, 2.5 and 2.4 ms per
# client-step of ResNet-18 for 1, 2 and 3, and 2.8, 2.1 and 1.8 ms for a low-rank one.
LANES = 3
PROBE = 8  # samples to try a model with


class Choice(NamedTuple):
    """An engine and why it was taken."""

    engine: Engine
    reason: str
    warning: str | None = None  # why a GPU is not used as well as it could be


class Work(NamedTuple):
    """What an engine is wanted for."""

    clients: int
    batch_size: int  # of a training step
    steps: int  # about how many steps all clients make in the whole run


def select_engine(
    engine: str, model: Model, federation: Federation, program: Program[Any], rounds: int, clients: int
) -> Choice:
    """Select the engine that a text asks for, to run so many of the clients."""
    largest = int(federation.sizes.max())
    batch = min(program.training.batch_size or largest, largest)
    key = torch.zeros(1, dtype=torch.int64, device=federation.x.device)  # as in training: dropout draws nothing
    probe = Batch(federation.sample(PROBE), federation.y[:PROBE], None, key)
    work = Work(clients, batch, rounds * clients * -(-largest // batch))
    return choose(engine, model, probe, work, federation.x.device)


def choose(text: str, model: Model, probe: Batch, work: Work, device: torch.device) -> Choice:
    """Return the engine a text asks for; ``auto`` decides by the model's cost. ``probe``: a few real samples."""
    spec = parse(text)
    if spec.name not in TAKES:
        raise unknown("engine", spec.name, TAKES)
    given = bind("engine", spec, TAKES[spec.name]).get("chunk")
    price = cost(model.evaluation, probe.x[:2])
    if spec.name == "serial":
        return Choice(_serial(model, probe, work, price), "as asked")
    if spec.name == "graphed":
        return _graphed(model, probe, work, price, device, given)
    if spec.name == "vectorized":
        return _vectorized(model, probe, work, price, device, given)
    return _automatic(model, probe, work, price, device)


def _automatic(model: Model, probe: Batch, work: Work, price: Cost, device: torch.device) -> Choice:
    refusal, pays = _cannot_record(model, probe, device), work.steps >= BUILDING_PAYS_FROM
    if refusal is None and pays:
        return _graphed(model, probe, work, price, device, None)
    reason = _better_alone(price, work, device) or _cannot_lift(model, probe)
    found = (
        Choice(_serial(model, probe, work, price), reason)
        if reason
        else _vectorized(model, probe, work, price, device, None)
    )
    if device.type == "cuda" and pays:
        told = f"the GPU is not used well: {refusal}; clients run on the {found.engine.name} engine, which is slower"
        return found._replace(warning=told)
    return found


def _graphed(model: Model, probe: Batch, work: Work, price: Cost, device: torch.device, given: int | None) -> Choice:
    refusal = _cannot_record(model, probe, device)
    if refusal:
        raise UserError(f"{refusal}: use the vectorized or the serial engine")
    alone = price.macs * work.batch_size > FILLS_A_GPU
    chunk = given or (1 if alone else chunk_for(model, price, work, device))
    why = "a client's step fills the GPU" if chunk == 1 else f"{chunk} clients at once fit the free memory"
    lanes = min(LANES, chunk_for(model, price, work, device)) if chunk == 1 else 1
    return Choice(Graphed(chunk, padding_matters(model, probe), device, lanes=lanes), why)


def _vectorized(model: Model, probe: Batch, work: Work, price: Cost, device: torch.device, given: int | None) -> Choice:
    refusal = _cannot_lift(model, probe)
    if refusal:
        raise UserError(f"{refusal}: use the serial engine")
    chunk = given or chunk_for(model, price, work, device, WORKING_SET if device.type == "cpu" else None)
    exact = padding_matters(model, probe)
    traced = device.type == "cpu" and runs_known_code(model)
    return Choice(Vectorized(chunk, exact, device, traced), f"{chunk} clients at once fit the memory")


def _serial(model: Model, probe: Batch, work: Work, price: Cost) -> Serial:
    """Build an engine for as many clients at a time as cores and memory allow; few clients have several cores each."""
    device, cores = probe.x.device, torch.get_num_threads()
    if device.type != "cpu" or draws_randomness(model, probe):
        return Serial(device)
    workers = min(cores, chunk_for(model, price, work, device))
    return Serial(device, workers, max(1, cores // work.clients))


def _better_alone(price: Cost, work: Work, device: torch.device) -> str | None:
    """Say why a loop is faster, if it is."""
    macs = price.macs * work.batch_size
    if work.clients == 1:
        return "there is one client"
    if device.type == "cpu" and price.convolutional and macs > CONVOLUTIONS_PAY_BELOW:
        return "large convolutions run faster one client to a core on a CPU"
    if device.type == "cuda" and price.convolutional and macs > FILLS_A_GPU:
        return "a client's step fills the GPU, and the run is too short to build a program"
    return None


def _cannot_record(model: Model, probe: Batch, device: torch.device) -> str | None:
    """Say why a step of this model cannot be recorded, if it cannot."""
    if device.type != "cuda":
        return "the graphed engine records what a GPU does, and this is a CPU"
    if draws_randomness(model, probe):
        return "this model draws random numbers, which a recorded step would repeat"
    return _cannot_lift(model, probe)


def _cannot_lift(model: Model, probe: Batch) -> str | None:
    """Say why this model cannot run for many clients at once, if it cannot: two are tried."""
    grad = Vectorized(2).gradient(model.objective)
    params, frozen = split(replicate(model.start, 2), model.parameters)
    try:
        with torch.random.fork_rng(devices=[probe.x.device] if probe.x.is_cuda else []):
            lift(lambda x, h: grad(x, h, probe), params, frozen)
    except RuntimeError as error:
        return f"this model cannot be vectorized ({str(error).strip().splitlines()[0][:120]})"
    return None


def chunk_for(model: Model, price: Cost, work: Work, device: torch.device, limit: int | None = None) -> int:
    """Return how many clients fit half of the free memory, and the limit, in bytes.

    A client holds its model about six times over (weights, gradient, momentum, the next of each) and the
    activations of a batch about three times (forward, backward, scratch).
    """
    weights = size_in_bytes(model.start.values())
    width = next(iter(model.start.values())).element_size()
    need = 6 * weights + 3 * width * price.activations * work.batch_size
    room = free_memory(device) // 2
    return max(1, min(work.clients, (room if limit is None else min(room, limit)) // max(need, 1)))


def free_memory(device: torch.device) -> int:
    """Return the bytes that can be taken now."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory.free_memory()
