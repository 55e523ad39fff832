"""The loop: play a round, measure it, save it, until all are done."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import chance, memory
from .algorithms.base import Algorithm
from .batches import Batch
from .census import census
from .config import describe
from .data import Federation
from .engines.choose import Choice, Work, choose
from .errors import RequestError, unknown
from .experiment import Experiment, Progressed
from .measure import summarise
from .measure.report import Row
from .problem import PRECISIONS, Loss, Model, cross_entropy
from .progress import Progress
from .run import Run, client_tensors
from .store import RunFolder, Writer
from .text import parse

PROBE = 8  # samples to try a model with


def fit(
    model: nn.Module | Callable[[], nn.Module],
    federation: Federation,
    algorithm: Algorithm,
    *,
    rounds: int,
    seed: int = 0,
    engine: str = "auto",
    device: str = "auto",
    loss: Loss | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    evaluate_every: int = 1,
    silent: float = 0.0,
    record: Sequence[str] = (),
    precision: str = "fp32",
) -> Run:
    """Trains one model per client and returns them with everything that was measured.

    model: a module, or a function without arguments that builds one; loss(outputs, targets): the mean over the
    batch (default: cross-entropy); out: a folder that is written round by round, so that an interrupted run goes on
    from there with ``resume=True``; evaluate_every: rounds between two evaluations (the last one always counts);
    silent: how likely a message between peers is dropped; record: further measures of every evaluated round,
    "gradients" (G_u and G_v over all data), "sharpness", "singular-values" and "perplexity"; precision: "fp32",
    "tf32" (a GPU's products rounded to 10 bits) or "bf16" (products in bfloat16, weights in single precision).

    >>> import coterie as ct
    >>> fed = ct.data.federate("synthetic", clients=4, partition="iid", seed=0)
    >>> run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.dfedavg(topology="ring", epochs=1),
    ...              rounds=2, progress=False)
    >>> len(run.history), len(run.clients), sorted(run.clients[0].shared)
    (2, 4, ['1.bias', '1.weight'])
    """
    if rounds < 0 or evaluate_every < 1:
        raise RequestError("rounds must be at least 0 and evaluate_every at least 1: choose larger numbers")
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    place = find_device(device)
    folder = None if out is None else RunFolder(Path(out))
    continued = folder is not None and resume and folder.exists
    given = Model(_module(model, seed).to(place), loss or cross_entropy, precision=precision)
    bound = algorithm.adapt(given)
    federation = federation.to(place)
    _check_fit(given, federation)
    if continued and folder is not None:
        engine = _same_engine(engine, folder.config().get("engine", engine))
    chosen = _engine(engine, bound, federation, algorithm, rounds)
    experiment = Experiment(bound, federation, algorithm, chosen.engine, seed, rounds, silent, record)
    config = describe(experiment, given, chosen, evaluate_every)
    experiment.check()
    with Progress(algorithm.name, rounds, shown=progress) as bar, memory.kept():
        now, history = _begin(experiment, folder, continued, config, bar)
        return _play(experiment, folder, config, now, history, bar)


def _begin(
    experiment: Experiment, folder: RunFolder | None, continued: bool, config: dict[str, Any], bar: Progress
) -> tuple[Progressed, list[Row]]:
    """Where the run stands: at its start, or after the last round that was saved."""
    if folder is None:
        return experiment.start(), []
    if not continued:
        folder.begin(config)
        return experiment.start(), []
    folder.check_same(config)
    saved = folder.latest(bar.say)
    if saved is None:
        return experiment.start(), folder.history(0)
    bar.say(f"resuming {folder.path} after round {saved.round}")
    return experiment.restored(saved.tensors), folder.history(saved.round)


def _play(
    experiment: Experiment,
    folder: RunFolder | None,
    config: dict[str, Any],
    now: Progressed,
    history: list[Row],
    bar: Progress,
) -> Run:
    """The rounds that are left."""
    rounds = config["rounds"]
    bar.update(len(history), history[-1] if history else None)
    with nullcontext() if folder is None else Writer(folder, bar.say) as writer:
        for t in range(len(history), rounds):
            now, row = experiment.play(now, t, evaluate=(t + 1) % config["evaluate_every"] == 0 or t + 1 == rounds)
            history.append(row)
            if writer is not None:
                writer.keep(row, experiment.saved(now))
            bar.update(t + 1, row)
    clients, known = experiment.clients(now.state), census(experiment, now)
    run = Run(config, history, summarise(config, history), clients, experiment.saved(now), known)
    if folder is not None:
        folder.finish(run.summary, [client_tensors(c) for c in run.clients], run.census)
    return run


def find_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RequestError(f"unknown device {name!r}: use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise RequestError(f"device {name!r} cannot be used: use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RequestError("there is no CUDA device here: use --device cpu")
    return device


def _module(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chance.key(seed, "init"))
        return model()


def _check_fit(model: Model, federation: Federation) -> None:
    """Refuses a model that cannot take the data, or has no score for some of their classes."""
    origin = getattr(model.module, "origin", {})
    classes = federation.classes if model.loss is cross_entropy else None  # another loss knows what outputs it wants
    _check_classes(origin.get("classes"), classes)  # first: a model of tokens takes as many as it gives
    outputs = _outputs(model, federation, origin.get("input_shape"))
    if classes is not None and (not isinstance(outputs, Tensor) or outputs.dim() < 2):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise RequestError(
            f"the model answers with {shape}, not with scores [samples, {classes}]: end it with a layer of {classes} "
            "outputs, or give a loss of your own"
        )
    _check_classes(outputs.shape[1] if classes else None, classes)


def _outputs(model: Model, federation: Federation, built: Sequence[int] | None) -> Any:
    """What the model answers to the first samples; refused with both shapes where it cannot take them."""
    have = tuple(federation.input_shape)
    try:
        with torch.no_grad():
            return model.evaluation(federation.sample(2))
    except (RuntimeError, IndexError) as error:
        takes = f"fails ({str(error).splitlines()[0]})"
        if built is not None and tuple(built) != have:
            takes = f"is built for samples of shape {tuple(built)}"
        raise RequestError(f"the model {takes}, the data have {have}: build it for these data") from error


def _check_classes(outputs: int | None, classes: int | None) -> None:
    """Labels must not point beside the outputs: on a GPU that ends the whole process."""
    if outputs is not None and classes is not None and outputs < classes:
        raise RequestError(
            f"the model has {outputs} outputs, the data have {classes} classes: build it for {classes} classes"
        )


def _engine(engine: str, model: Model, federation: Federation, algorithm: Algorithm, rounds: int) -> Choice:
    largest = int(federation.sizes.max())
    batch = min(algorithm.settings.get("batch_size") or largest, largest)
    probe = Batch(federation.sample(PROBE), federation.y[:PROBE], None)
    work = Work(federation.clients, batch, rounds * federation.clients * -(-largest // batch))
    return choose(engine, model, probe, work, federation.x.device)


def _same_engine(asked: str, begun: str) -> str:
    """A continued run keeps its engine, chunk included, unless another one is asked for."""
    return begun if asked in ("auto", parse(begun).name) else asked
