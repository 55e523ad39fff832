"""On a GPU: recorded and compiled steps give the serial engine's numbers, and the engine is chosen as documented."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.data.batches import Batch
from coterie.engines import Graphed, Serial
from coterie.engines.capture import Body, captured, flat, recorded
from coterie.models.model import Model, cross_entropy
from coterie.training.select_engine import Work, choose
from laws import METHODS, build, kinds
from test_engines import assert_same
from toys import experiment, models, net, ragged

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
CUDA = torch.device("cuda")
COMPILED = [("dfedalt", "batchnorm"), ("dfedsalt", "groupnorm"), ("dfedpgp", "tokens"), ("scaffold", "mlp")]


def replayed(body: Body, tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Recorded, but not compiled: every method fits into minutes."""
    with torch.no_grad():
        graph = flat(body, tensors)
        return recorded(lambda: graph(*tensors))


def check_agreement(row: str, kind: str, chunk: int, make: Callable[..., Callable[[], object]]) -> None:
    fed, module = ragged(kind).to(CUDA), net(kind).to(CUDA)
    slow = models(experiment(module, fed, build(row), Serial(CUDA)), rounds=2)
    fast = models(experiment(module, fed, build(row), Graphed(chunk, kind == "batchnorm", CUDA, make)), rounds=2)
    assert_same(fast, slow, 1e-8)


@pytest.mark.parametrize("row", METHODS)
def test_recorded_steps_agree(row: str) -> None:
    """Chunks that do not come out even and single clients, and the kinds of models, take turns."""
    turn = list(METHODS).index(row)
    check_agreement(row, kinds(row)[turn % len(kinds(row))], 1 if turn % 2 else 3, replayed)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize(("row", "kind"), COMPILED)
def test_compiled_steps_agree(row: str, kind: str, chunk: int) -> None:
    check_agreement(row, kind, chunk, captured)


def test_resnet_in_full_precision_agrees() -> None:
    """Single precision throughout: 1e-4 after a round of DFedAlt."""
    torch.manual_seed(0)
    parts = {
        part: [(torch.randn(40, 3, 32, 32), torch.randint(10, (40,))) for _ in range(3)] for part in ("train", "test")
    }
    fed = ct.data.from_tensors(**parts, classes=10).to(CUDA)
    module = ct.models.build("resnet18-gn", classes=10, input_shape=(3, 32, 32), seed=0).to(CUDA)
    algorithm = ct.algorithms.dfedalt(topology="ring", batch_size=20, epochs=1, lr=0.01)
    slow = models(experiment(module, fed, algorithm, Serial(CUDA)), rounds=1)
    fast = models(experiment(module, fed, algorithm, Graphed(1, False, CUDA)), rounds=1)
    assert_same(fast, slow, 1e-4)


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        ("resnet18-gn", 100_000, "graphed"),
        ("resnet18-gn", 100, "serial"),
        ("cnn", 100_000, "graphed"),
        ("logreg", 100, "vectorized"),
    ],
)
def test_the_engine_is_chosen(name: str, steps: int, expected: str) -> None:
    shape = (3, 32, 32) if name.startswith("resnet") else (1, 28, 28)
    module = ct.models.build(name, classes=10, input_shape=shape, seed=0).to(CUDA)
    probe = Batch(torch.randn(8, *shape, device=CUDA), torch.zeros(8, dtype=torch.long, device=CUDA), None)
    choice = choose("auto", Model(module, cross_entropy), probe, Work(100, 128, steps), CUDA)
    assert choice.engine.name.startswith(expected)
    assert choice.reason
