"""Targets that could be read in two ways: one score per sample, of the only class or of one label."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import coterie as ct
from coterie.models.losses import dice
from in_process import answer

X = np.random.default_rng(0).random((40, 8)).astype("f4")
ZEROS = np.zeros(40, int)
BITS = np.arange(40) % 2


def trained(targets: Any, loss: Any, outputs: int = 1, x: Any = X, module: nn.Module | None = None) -> ct.Run:
    """Two clients with their own samples as tests."""
    parts = [(x[:20], targets[:20]), (x[20:], targets[20:])]
    fed = ct.data.from_tensors(parts, parts)
    made = module or nn.Linear(8, outputs)
    return ct.fit(made, fed, ct.algorithms.local(epochs=1, lr=0.1), rounds=1, progress=False, loss=loss)


def final(run: ct.Run, metric: str = "accuracy") -> float:
    summary: Any = run.summary
    return float(summary[f"personal_{metric}"]["after_mix"]["final"])


@pytest.mark.parametrize("loss", ["cross-entropy", F.cross_entropy, nn.CrossEntropyLoss()])
def test_of_one_class_every_answer_is_right(loss: Any) -> None:
    """Whatever the sign of a score is: softmax of one score is 1."""
    for bias in (-3.0, 3.0):
        module = nn.Linear(8, 1)
        nn.init.constant_(module.bias, bias)
        run = trained(ZEROS, loss, module=module)
        assert final(run) == 1.0
        assert run.clients[0].predict(X[:3]).tolist() == [0, 0, 0]
    tokens = nn.Sequential(nn.Linear(8, 4), nn.Unflatten(1, (1, 4)))
    assert final(trained(np.zeros((40, 4), int), loss, module=tokens)) == 1.0


def test_one_label_is_right_where_the_score_has_its_sign() -> None:
    """The same shapes with another loss; targets may be [B] or [B, 1], and may all be the same."""
    for targets in (BITS, BITS[:, None], ZEROS, ZEROS[:, None], ZEROS + 1):
        run = trained(targets, "bce")
        with torch.no_grad():
            scores = [client.module()(torch.from_numpy(X)).numpy()[:, 0] for client in run.clients]
        flat = targets.reshape(-1)
        right = [((s > 0) == flat)[rows].mean() for s, rows in zip(scores, (slice(20), slice(20, 40)), strict=True)]
        assert final(run) == pytest.approx(np.mean(right))


def test_labels_in_a_column_are_refused_for_classes() -> None:
    for targets, outputs in ((BITS, 2), (ZEROS, 1)):
        with pytest.raises(ct.UserError, match="one integer label per sample"):
            trained(targets[:, None], "cross-entropy", outputs)


def test_a_file_of_one_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=X, y=ZEROS)
    small = ("--clients", "2", "--rounds", "1", "--model", "logreg", "--partition", "iid", "--quiet", "--out", "o")
    done = answer("run", "local", "--data", "npz:one.npz", *small, cwd=tmp_path)
    assert (done.status, "100.0" in done.out, " 0.0 %" in done.out) == (0, True, False), done.out + done.err


def test_masks_of_one_channel_train_in_both_shapes() -> None:
    """As [B, H, W] they were classes of pixels of which there is one, whose loss has no gradient."""
    x = np.random.default_rng(1).random((40, 1, 4, 4)).astype("f4")
    masks = (x > 0.5).astype(int)
    scores = torch.randn(3, 1, 4, 4, requires_grad=True)
    true = torch.from_numpy(masks[:3])
    likely = scores.sigmoid().flatten(1)
    expected = 1 - ((2 * (likely * true.flatten(1)).sum(1) + 1) / (likely.sum(1) + true.flatten(1).sum(1) + 1)).mean()
    for shaped in (true, true[:, 0]):
        assert dice(scores, shaped).item() == pytest.approx(expected.item(), rel=1e-6)
    runs = [trained(targets, "dice", x=x, module=conv()) for targets in (masks[:, 0], masks.astype("f4"))]
    assert torch.equal(*(run.clients[0].personal["weight"] for run in runs))
    assert not torch.equal(runs[0].clients[0].personal["weight"], conv().weight)


def conv() -> nn.Module:
    module = nn.Conv2d(1, 1, 1)
    nn.init.constant_(module.weight, 0.5)
    nn.init.zeros_(module.bias)
    return module
