"""How fast one GPU trains many clients, beside the loop one would write by hand.

    python docs/evidence/gpu_speed.py --out gpu_speed.json [--minutes 9]

Needs a CUDA device. Images are random: only time is measured here. Every ratio is of two sides of one run, each the
median of its repeats. Sections that no longer fit into the minutes are left out and named.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from coterie.core.tensors import split
from coterie.data import Transform
from coterie.engines import Graphed, Serial
from coterie.measure import personal_values
from coterie.models.model import Model, cross_entropy, products
from coterie.training.experiment import Experiment

REPEATS = 5
CUDA = torch.device("cuda")
CIFAR = Transform((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), pad=4, flip=True)


def clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds(f: Callable[[], object]) -> float:
    """The median of some calls; the first, which builds what is built once, does not count."""
    f()
    times = []
    for _ in range(REPEATS):
        began = clock()
        f()
        times.append(clock() - began)
    return statistics.median(times)


def federation(clients: int, shape: tuple[int, ...], samples: int, transform: Transform | None) -> ct.data.Federation:
    """Noise, equally much for everybody, and a fifth as much to test on."""
    torch.manual_seed(0)

    def draw(count: int) -> list[tuple[Tensor, Tensor]]:
        noise = torch.randn if transform is None else lambda *size: torch.randint(0, 256, size, dtype=torch.uint8)
        return [(noise(count, *shape), torch.randint(10, (count,))) for _ in range(clients)]

    parts = {"train": draw(samples), "test": draw(samples // 5)}
    return ct.data.from_tensors(**parts, classes=10, transform=transform).to(CUDA)


def experiment(
    model: nn.Module, fed: ct.data.Federation, algorithm: Any, engine: Any, precision: str = "fp32"
) -> Experiment:
    return Experiment.of(Model(model.to(CUDA), cross_entropy, precision=precision), fed, algorithm, engine, 0, 500)


def round_seconds(e: Experiment) -> float:
    """Local work and mixing of a round."""
    now = e.start()

    def one() -> None:
        with products(e.model.precision):
            trained = e.program.train(now.state, e.round(0))
        e.program.exchange(now.state, trained, e.round(0))

    return seconds(one)


def augmented(raw: Tensor) -> Tensor:
    """Crop, flip and normalize as one would by hand, a batch at a time."""
    n, _, height, width = raw.shape
    padded = F.pad(raw, (4, 4, 4, 4))
    dy, dx = (torch.randint(0, 9, (n, 1, 1), device=raw.device) for _ in range(2))
    column = torch.arange(width, device=raw.device)
    column = torch.where(torch.rand(n, 1, device=raw.device) < 0.5, column, column.flip(0))
    rows = (torch.arange(height, device=raw.device)[None, :, None] + dy).expand(n, height, width)
    columns = (column[:, None, :] + dx).expand(n, height, width)
    cut = padded[torch.arange(n, device=raw.device)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)
    mean, std = (torch.tensor(v, device=raw.device).view(3, 1, 1) for v in (CIFAR.mean, CIFAR.std))
    return (cut.float() / 255 - mean) / std


def plain_phase(model: nn.Module, moving: Iterable[nn.Parameter], x: Tensor, y: Tensor, epochs: int, **how: Any) -> int:
    """One client's epochs with ``torch.optim.SGD``; how many steps there were."""
    moving = list(moving)
    for p in model.parameters():
        p.requires_grad_(any(p is m for m in moving))
    optimizer = torch.optim.SGD(moving, how["lr"], how.get("momentum", 0.0), weight_decay=how.get("decay", 0.0))
    steps = 0
    for _ in range(epochs):
        for some in torch.randperm(len(x), device=x.device).split(how["batch"]):
            optimizer.zero_grad()
            inputs = augmented(x[some]) if x.dtype == torch.uint8 else x[some]
            F.cross_entropy(model(inputs), y[some]).backward()
            if "clip" in how:
                nn.utils.clip_grad_norm_(moving, how["clip"])
            optimizer.step()
            steps += 1
    return steps


def plain_dfedalt(model: nn.Module, fed: ct.data.Federation, clients: int) -> None:
    """The local work of some clients by hand."""
    how = {"batch": 128, "momentum": 0.9, "decay": 5e-4, "clip": 10.0}
    for i in range(clients):
        own, mine = copy.deepcopy(model).train(), fed.train[i].to(CUDA)
        x, y = fed.x[mine], fed.y[mine]
        plain_phase(own, own.linear.parameters(), x, y, 1, lr=0.001, **how)
        body = [p for name, p in own.named_parameters() if not name.startswith("linear.")]
        plain_phase(own, body, x, y, 5, lr=0.1, **how)


def plain_fedavg(model: nn.Module, fed: ct.data.Federation, clients: int, batch: int) -> None:
    """FedAvg's local work of some clients by hand."""
    for i in range(clients):
        own, mine = copy.deepcopy(model).train(), fed.train[i].to(CUDA)
        plain_phase(own, own.parameters(), fed.x[mine], fed.y[mine], 1, lr=0.1, batch=batch)


def of_all(f: Callable[[int], None], some: int, clients: int) -> float:
    """Seconds for all clients, from the median of some of them: the loop takes them one after another."""
    return seconds(lambda: f(some)) / some * clients


class Report:
    """Results, printed and saved as they come."""

    def __init__(self, path: Path, minutes: float) -> None:
        self.path, self.end, self.rows = path, time.perf_counter() + 60 * minutes, dict[str, Any]()
        self.add(
            "machine", {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "coterie": ct.__version__}
        )

    def add(self, name: str, row: dict[str, Any]) -> None:
        self.rows[name] = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
        print(name, self.rows[name], flush=True)
        self.path.write_text(json.dumps(self.rows, indent=1))

    def section(self, name: str, needs: float, f: Callable[[], dict[str, Any]]) -> None:
        """One section; ``needs``: seconds it takes, with what it builds."""
        if time.perf_counter() + needs > self.end:
            return self.add(name, {"left out": f"{needs:.0f} s no longer fit"})
        began = time.perf_counter()
        row = f()
        return self.add(name, {**row, "took_s": time.perf_counter() - began})


def resnet_round() -> dict[str, Any]:
    """One DFedAlt round of 100 clients: 5 epochs of the body, 1 of the head, crop and flip."""
    fed, model = federation(100, (3, 32, 32), 500, CIFAR), resnet()
    e = experiment(model, fed, ct.algorithms.dfedalt(), Graphed(1, False, CUDA), "bf16")
    began = clock()
    first = round_seconds(e)
    built = clock() - began - (REPEATS + 1) * first
    loops = {}
    for precision in ("fp32", "tf32"):
        with products(precision):
            loops[precision] = of_all(lambda n: plain_dfedalt(model, fed, n), 2, 100)
    state = e.start().state
    models = {k: v.clone() for k, v in e.program.models(state).items()}  # memory of their own
    everyone = np.arange(100)
    with products("bf16"):
        evaluation = seconds(lambda: personal_values(e.engine, e.model, models, e.tests, everyone, e.metrics))
    W, shared = e.round(0).W, split(models, e.program.shared)[0]
    assert W is not None
    return {
        "round_s": first,
        "client_step_ms": first / (len(everyone) * 24) * 1e3,
        "loop_fp32_s": loops["fp32"],
        "loop_tf32_s": loops["tf32"],
        "times_fp32": loops["fp32"] / first,
        "times_tf32": loops["tf32"] / first,
        "built_s": built,
        "evaluation_s": evaluation,
        "mixing_ms": seconds(lambda: e.engine.mix(W, shared)) * 1e3,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def resnet() -> nn.Module:
    return ct.models.build("resnet18-gn", classes=10, input_shape=(3, 32, 32), seed=0).to(CUDA)


def sam_step() -> dict[str, Any]:
    """A round of DFedSalt without its head phase beside the same of DFedAlt, 8 clients."""
    fed, model = federation(8, (3, 32, 32), 500, CIFAR), resnet()
    engine = Graphed(1, False, CUDA)
    options = {"personal_epochs": 0, "epochs": 1, "topology": "ring"}
    plain = round_seconds(experiment(model, fed, ct.algorithms.dfedalt(**options), engine, "bf16"))
    sam = round_seconds(experiment(model, fed, ct.algorithms.dfedsalt(**options), engine, "bf16"))
    return {"plain_ms": plain / 32 * 1e3, "sam_ms": sam / 32 * 1e3, "ratio": sam / plain}


def many(model_name: str, clients: int, batch: int, samples: int, some: int) -> Callable[[], dict[str, Any]]:
    """FedAvg of all clients at once beside the loop, and beside the serial engine's numbers."""

    def measured() -> dict[str, Any]:
        fed = federation(clients, (1, 28, 28), samples, None)
        model = ct.models.build(model_name, classes=10, input_shape=(1, 28, 28), seed=0).to(CUDA)
        algorithm = ct.algorithms.fedavg(
            participation=1.0, epochs=1, batch_size=batch, momentum=0.0, weight_decay=0.0, clip=None
        )
        steps = clients * -(-samples // batch)
        loop = of_all(lambda n: plain_fedavg(model, fed, n, batch), some, clients)
        row: dict[str, Any] = {"loop_ms": loop / steps * 1e3}
        for precision in ("fp32", "bf16"):
            e = experiment(model, fed, algorithm, Graphed(clients, False, CUDA), precision)
            taken = round_seconds(e)
            row |= {f"{precision}_ms": taken / steps * 1e3, f"{precision}_times": loop / taken}
            if precision == "fp32":
                row["off_serial"] = off_serial(e, experiment(model, fed, algorithm, Serial(CUDA)))
        return row

    return measured


def off_serial(fast: Experiment, slow: Experiment) -> float:
    """The largest difference of any weight after a round."""
    ends = [e.program.models(e.run_round(e.start(), 0, evaluate=False)[0].state) for e in (fast, slow)]
    return max(float((ends[0][k] - ends[1][k]).abs().max()) for k in ends[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_speed.json"))
    parser.add_argument("--minutes", type=float, default=9)
    args = parser.parse_args()
    report = Report(args.out, args.minutes)
    report.section("resnet18-gn, DFedAlt, 100 clients", 150, resnet_round)
    report.section("logreg, 1,000 clients", 15, many("logreg", 1000, 20, 60, 20))
    report.section("cnn, 100 clients", 60, many("cnn", 100, 50, 500, 5))
    report.section("resnet18-gn, SAM", 90, sam_step)


if __name__ == "__main__":
    main()
