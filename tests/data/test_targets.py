"""Targets of every kind: numbers, many labels, masks and tokens, through files, federations and engines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from coterie.core.errors import UserError

SIZES = (9, 5, 12)  # of the clients


def federation(kind: str) -> ct.data.Federation:
    """Clients of unequal size, whose targets are of one kind."""
    rng = np.random.default_rng(0)

    def pair(size: int) -> tuple[Any, Any]:
        x = rng.normal(size=(size, 1, 4, 4)).astype(np.float32)
        targets = {
            "number": x.mean((1, 2, 3), keepdims=True)[:, 0, 0],
            "numbers": x[:, 0, :2, 0],
            "labels": (x[:, 0, 0, :3] > 0).astype(np.float32),
            "mask": (x[:, 0] > 0).astype(np.int64),
            "tokens": (x[:, 0, 0] > 0).astype(np.int64),
        }
        return x, targets[kind]

    return ct.data.from_tensors(train=[pair(size) for size in SIZES], test=[pair(4) for _ in SIZES])


class Scores(nn.Module):
    """Two scores for every pixel, or for every pixel of the first row."""

    def __init__(self, first_row: bool) -> None:
        super().__init__()
        self.shared, self.head, self.first_row = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 2, 1), first_row

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.shared(x).relu())
        return scores[:, :, 0] if self.first_row else scores


TASKS: dict[str, Any] = {
    "number": F.mse_loss,
    "numbers": F.l1_loss,
    "labels": F.binary_cross_entropy_with_logits,
    "mask": None,
    "tokens": None,
}


def trained(kind: str, engine: str, **more: Any) -> ct.Run:
    fed = federation(kind)
    scores = kind in ("mask", "tokens")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Scores(kind == "tokens") if scores else ct.models.build("mlp:width=8", fed)
    method = ct.algorithms.fedper(
        participation=1.0, lr=0.1, batch_size=4, epochs=2, personal="head.*" if scores else "5.*"
    )
    return ct.fit(model, fed, method, rounds=2, loss=TASKS[kind], engine=engine, progress=False, device="cpu", **more)


@pytest.mark.parametrize("kind", TASKS)
def test_engines_agree(kind: str) -> None:
    serial, vectorized = (trained(kind, engine) for engine in ("serial", "vectorized:2"))
    assert serial.history[1]["train_loss"] < serial.history[0]["train_loss"]
    for one, other in zip(serial.clients, vectorized.clients, strict=True):
        for name, value in {**one.shared, **one.personal}.items():
            torch.testing.assert_close(value, {**other.shared, **other.personal}[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_step_of_linear_regression(engine: str) -> None:
    """One step over all samples: W - lr 2 / (n k) (x W' + b - y)' x, in NumPy."""
    fed = federation("numbers")
    model = ct.models.build("logreg", fed)
    W, b = (model[1].weight.detach().double().numpy(), model[1].bias.detach().double().numpy())
    method = ct.algorithms.local(lr=0.1, lr_decay=1.0, weight_decay=0.0, momentum=0.0, batch_size=64, epochs=1)
    run = ct.fit(model, fed, method, rounds=1, loss=F.mse_loss, engine=engine, progress=False, device="cpu")
    for client, rows in enumerate(fed.train):
        x, y = fed.x[rows].flatten(1).double().numpy(), fed.y[rows].double().numpy()
        error = x @ W.T + b - y
        expected = W - 0.1 * 2 / error.size * error.T @ x
        np.testing.assert_allclose(run.clients[client].personal["1.weight"], expected, atol=1e-6)


SPREAD: dict[str, Any] = {
    "torch's": nn.MSELoss(),
    "a function": F.smooth_l1_loss,
    "one's own": lambda outputs, targets: (outputs - targets).abs().mean(),
}
ALIGNED: dict[str, Any] = {
    "mse": "mse",
    "flattened": lambda outputs, targets: F.mse_loss(outputs.flatten(), targets.flatten()),
    "one column": lambda outputs, targets: F.mse_loss(outputs[:, 0], targets),
    "over columns": lambda outputs, targets: (outputs.mean(-1) - targets).square().mean(),
}


@pytest.mark.parametrize("loss", SPREAD.values(), ids=SPREAD)
@pytest.mark.parametrize("upright", [False, True], ids=["[B, 1] and [B]", "[B] and [B, 1]"])
def test_a_loss_that_spreads_answers_and_targets_is_refused(loss: Any, upright: bool) -> None:
    """Torch would compare all answers with all targets, warn at most, and the model would learn their mean."""
    pairs = [(torch.randn(6, 3), torch.randn(6, 1) if upright else torch.randn(6)) for _ in range(4)]
    fed = ct.data.from_tensors(pairs[:2], pairs[2:])
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)) if upright else nn.Linear(3, 1)
    said = "every answer with every target: give targets of the shape of the answers"
    with pytest.raises(UserError, match=said):
        ct.fit(model, fed, ct.algorithms.local(epochs=1), rounds=1, loss=loss, progress=False, device="cpu")


@pytest.mark.parametrize("loss", ALIGNED.values(), ids=ALIGNED)
def test_a_loss_that_aligns_them_itself_is_taken(loss: Any) -> None:
    pairs = [(torch.randn(6, 3), torch.randn(6)) for _ in range(4)]
    fed, method = ct.data.from_tensors(pairs[:2], pairs[2:]), ct.algorithms.local(epochs=1)
    ct.fit(nn.Linear(3, 1), fed, method, rounds=1, loss=loss, progress=False, device="cpu")


def test_arrays_in_a_file(tmp_path: Path) -> None:
    x, rng = np.zeros((24, 1, 4, 4), np.float32), np.random.default_rng(0)
    owner, numbers = np.repeat([*"abc"], 8), rng.normal(size=(24, 2))
    for name, y, expected in (
        ("one", numbers[:, 0], (None, (1,), torch.float32, 1)),
        ("two", numbers, (None, (2,), torch.float32, 2)),
        ("labels", numbers > 0, (None, (2,), torch.float32, 2)),
        ("masks", rng.integers(3, size=(24, 4, 4), dtype=np.uint8), (3, (4, 4), torch.int64, 3)),
    ):
        np.savez(tmp_path / "a.npz", x=x, y=y, client=owner)
        fed = ct.data.federate(f"npz:{tmp_path / 'a.npz'}", partition="natural")
        assert (fed.classes, fed.y.shape[1:], fed.y.dtype, fed.outputs) == expected, name
        assert [len(rows) for rows in (*fed.train, *fed.test)] == [6] * 3 + [2] * 3
        assert fed.names == ("a", "b", "c")
        rows = np.concatenate([np.flatnonzero(owner == who)[3::4] for who in "abc"])
        np.testing.assert_allclose(fed.test_y.reshape(6, -1), y[rows].reshape(6, -1), atol=1e-6)
        np.savez(tmp_path / "nobodys.npz", x=x, y=y)
        dealt = ct.data.federate(f"npz:{tmp_path / 'nobodys.npz'}", clients=3)
        assert (dealt.origin["partition"], [len(rows) for rows in dealt.train]) == ("iid", [6] * 3)
        for partition in ("dirichlet:0.3", "pathological:1", "shards:2", "dirichlet-by-class:1"):
            with pytest.raises(UserError, match="divides classes, and the targets of npz are none: take iid"):
                ct.data.federate(f"npz:{tmp_path / 'a.npz'}", clients=3, partition=partition)


def test_masks_are_not_moved_with_their_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, masks = rng.integers(256, size=(8, 5, 5), dtype=np.uint8), rng.integers(2, size=(8, 5, 5))
    np.savez(tmp_path / "a.npz", x=images, y=masks)
    assert ct.data.federate(f"npz:{tmp_path / 'a.npz'}", clients=2).y.shape == (6, 5, 5)
    with pytest.raises(UserError, match="not their masks: leave augment"):
        ct.data.federate(f"npz:{tmp_path / 'a.npz'},augment=yes", clients=2)
