"""Which engine fits: from the model's cost and the memory there is."""

import os
from typing import NamedTuple

import torch

from ..batches import Batch
from ..errors import RequestError, unknown
from ..models.cost import Cost, cost
from ..problem import Model, couples_samples, draws
from ..tensors import replicate, size_in_bytes, split
from ..text import parse
from .base import Engine
from .serial import Serial
from .vectorised import Vectorised, lift

NAMES = ("auto", "serial", "vectorised")

# Above this many multiply-adds a step, a CPU runs per-client convolutions faster one client at a time: measured
# 0.6 ms against 1.0 ms a client-step for vmap and loop at 1.5 million, 22 ms against 19 ms at 210 million.
CONVOLUTIONS_PAY_BELOW = 20_000_000


class Choice(NamedTuple):
    """An engine and why it was taken."""

    engine: Engine
    reason: str


def choose(text: str, model: Model, probe: Batch, clients: int, batch_size: int, device: torch.device) -> Choice:
    """The engine a text asks for; ``auto`` decides by the model's cost.

    ``probe``: a few real samples; ``batch_size``: of a training step.
    """
    call = parse(text)
    if call.name not in NAMES:
        raise unknown("engine", call.name, NAMES)
    if call.options or (call.args and call.name != "vectorised"):
        raise RequestError(f"engine {text!r} has no such options: write {call.name}, or vectorised:16 for a chunk")
    price = cost(model.evaluation, probe.x[:2])
    fitting = chunk_for(model, price, clients, batch_size, device)
    if call.name == "serial":
        return Choice(_serial(model, probe, clients, fitting), "as asked")
    alone = _better_alone(price, clients, batch_size, device) if call.name == "auto" else None
    reason = alone or _cannot_lift(model, probe)
    if reason and call.name == "auto":
        return Choice(_serial(model, probe, clients, fitting), reason)
    if reason:
        raise RequestError(f"{reason}: use the serial engine")
    chunk = _given_chunk(call.args) or fitting
    exact = couples_samples(model, probe.x, probe.y)
    return Choice(Vectorised(chunk, exact, device), f"{chunk} clients at once fit the free memory")


def _serial(model: Model, probe: Batch, clients: int, fitting: int) -> Serial:
    """As many clients at a time as there are cores for, and memory; few clients have several cores each."""
    device, cores = probe.x.device, torch.get_num_threads()
    if device.type != "cpu" or draws(model, probe):
        return Serial(device)
    return Serial(device, min(cores, fitting), max(1, cores // clients))


def _given_chunk(args: tuple[object, ...]) -> int | None:
    if not args:
        return None
    if len(args) > 1 or not isinstance(args[0], int) or args[0] < 1:
        raise RequestError("a chunk is a whole number of clients, as in vectorised:16")
    return args[0]


def _better_alone(price: Cost, clients: int, batch_size: int, device: torch.device) -> str | None:
    """Why a loop is faster, if it is."""
    if clients == 1:
        return "there is one client"
    if device.type == "cpu" and price.convolutional and price.macs * batch_size > CONVOLUTIONS_PAY_BELOW:
        return "large convolutions run faster one client to a core on a CPU"
    return None


def _cannot_lift(model: Model, probe: Batch) -> str | None:
    """Why this model cannot run for many clients at once, if it cannot: found by trying two."""
    grad = Vectorised(2).gradient(model.objective)
    moving, held = split(replicate(model.start, 2), model.parameters)
    try:
        with torch.random.fork_rng(devices=[probe.x.device] if probe.x.is_cuda else []):
            lift(lambda x, h: grad(x, h, probe), moving, held)
    except RuntimeError as error:
        return f"this model cannot be vectorised ({str(error).strip().splitlines()[0][:120]})"
    return None


def chunk_for(model: Model, price: Cost, clients: int, batch_size: int, device: torch.device) -> int:
    """How many clients fit half of the free memory.

    A client holds its model about six times over (weights, gradient, momentum, the next of each) and the
    activations of a batch about three times (forward, backward, scratch).
    """
    weights = size_in_bytes(model.start.values())
    width = next(iter(model.start.values())).element_size()
    need = 6 * weights + 3 * width * price.activations * batch_size
    return max(1, min(clients, free_memory(device) // (2 * max(need, 1))))


def free_memory(device: torch.device) -> int:
    """Bytes that can be taken now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as f:
            available = next(line for line in f if line.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
