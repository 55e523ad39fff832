"""Clients asked in Python: answers to samples as the data set gives them, and a table of all clients."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from coterie.data import Federation
from helpers_cli import SMALL, Cli, assert_same_run, reseal
from opened import scripted


def byte_images(folder: Path) -> Federation:
    draw = np.random.default_rng(0)
    y = np.arange(96) % 3
    x = draw.integers(0, 60, (96, 8, 8, 3), dtype=np.uint8)
    x[np.arange(96), :, :, y] += 150
    np.savez(folder / "images.npz", x=x, y=y, client=np.array(["mayo", "nice", "oslo"])[np.arange(96) % 7 % 3])
    return ct.data.federate(f"npz:{folder / 'images.npz'}", partition="natural")


def test_bytes_are_normalized(tmp_path: Path) -> None:
    """What the predictions get right is what the run has measured; a saved run predicts the same."""
    fed = byte_images(tmp_path)
    method = ct.algorithms.fedper(lr=0.05, batch_size=8, epochs=1, participation=1.0)
    run = ct.fit(ct.models.build("small-cnn", fed), fed, method, rounds=1, out=tmp_path / "a", progress=False)
    again = ct.load(tmp_path / "a")
    for i, mine in enumerate(run.clients):
        x, y = fed.test_x[fed.test[i]], fed.test_y[fed.test[i]]
        assert x.dtype == torch.uint8
        answers = mine.predict(x)
        assert float((answers == y).double().mean()) == run.client_summary["accuracy"]["after_mix"][i]
        assert answers.equal(mine.predict(x.numpy()))
        assert answers.equal(again.clients[i].predict(x))
        one = mine.predict(x[0])
        assert (one.shape, int(one)) == ((), int(answers[0]))
    with pytest.raises(ct.UserError, match="float32, and the run was trained on images of bytes: give uint8"):
        run.clients[0].predict(fed.test_x.float())
    with pytest.raises(ct.UserError, match=r"shape \(2, 2\): give a batch \[B, 3, 8, 8\], or one sample"):
        run.clients[0].predict(np.zeros((2, 2), np.uint8))


def test_a_table_of_all_clients(tmp_path: Path) -> None:
    fed = byte_images(tmp_path)
    method = ct.algorithms.fedper(lr=0.05, batch_size=8, epochs=1, participation=1.0)
    run = ct.fit(ct.models.build("logreg", fed), fed, method, rounds=1, holdout_clients=1, progress=False)
    table, newcomers = run.client_table(), run.newcomers
    assert newcomers is not None
    assert set(table.index) == {"mayo", "nice", "oslo"}
    assert table["newcomer"].tolist() == [False, False, True]
    assert list(table.index[:2]) == run.client_summary["names"]
    assert table["accuracy_after_mix"].tolist()[:2] == run.client_summary["accuracy"]["after_mix"]
    assert table["train_samples"].tolist() == [*run.client_summary["train_samples"], *newcomers["train_samples"]]
    assert table["accuracy_personalized"].tolist()[2:] == newcomers["personalized"]
    assert table["accuracy_after_mix"].isna().tolist() == [False, False, True]


def test_numbers_and_labels() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(24, 5, dtype=torch.float64, generator=draw)
    for loss, y in (("mse", x[:, :2].float()), ("bce", (x[:, :2] > 0).float())):
        pairs = [(x[:12].float(), y[:12]), (x[12:].float(), y[12:])]
        fed = ct.data.from_tensors(pairs, pairs)
        net = ct.models.build("logreg", fed)
        run = ct.fit(net, fed, ct.algorithms.local(lr=0.1, epochs=1), rounds=1, loss=loss, progress=False)
        assert list(run.client_table().index) == ["client 0", "client 1"]
        mine, scores = run.clients[1], run.clients[1].module()(x.float())
        expected = scores if loss == "mse" else (scores > 0).long()
        assert mine.predict(x.numpy()).equal(expected.detach())  # double precision becomes the model's


def patients() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"site": ["a", "b"] * 40, "age": draw.normal(60, 10, 80), "ward": ["icu", "day", "er", "day"] * 20}
    )
    return frame.assign(dose=3 * frame.age + 50 * (frame.ward == "icu"), ill=np.where(frame.age > 60, "yes", "no"))


@pytest.mark.parametrize(("target", "loss"), [("dose", "mse"), ("ill", None)])
def test_rows_of_a_table_are_encoded_as_in_training(target: str, loss: str | None, tmp_path: Path) -> None:
    """A DataFrame is answered as by the exported file; arrays are samples of the federation, as before."""
    frame = patients()
    way: dict[str, Any] = {"drop": "ill", "standardize": "all"} if loss else {"drop": "dose"}
    fed = ct.data.from_frame(frame, target=target, client="site", test=frame, **way)
    run = ct.fit(
        ct.models.build("mlp:width=8", fed),
        fed,
        ct.algorithms.fedavg(participation=1.0, lr=0.1, epochs=1, batch_size=10),
        rounds=2,
        **({"loss": loss} if loss else {}),
        out=tmp_path / "a",
        progress=False,
    )
    mine = run.clients[0]
    assert fed.columns is not None
    expected = mine.predict(fed.test_x)
    if loss:
        scale = fed.columns.target_scales[0]
        expected = expected * scale.std + scale.mean
    for client in (mine, ct.load(tmp_path / "a").clients[0]):
        torch.testing.assert_close(client.predict(frame), expected)
        torch.testing.assert_close(client.predict(frame[["ward", "age"]].iloc[[7]]), expected[7:8])
    raw = torch.tensor(np.stack([frame.age, *(frame.ward == ward for ward in ("day", "er", "icu"))], 1)).float()
    answers = scripted(ct.export.save(run, 0, tmp_path / "a.pt"))(raw)
    torch.testing.assert_close(answers if loss else answers.argmax(1), expected)
    for wrong, told in {
        "has no column 'ward', which the run has learned from": frame[["age"]],
        "is a Series: give a DataFrame": frame.iloc[0],
        "row 0 of the frame has no value in ward .and 3 more., and the run was trained": frame.assign(
            ward=frame.ward.where(frame.index > 3)
        ),
        "row 0 of the frame holds 'old' in age, where the run has learned from numbers": frame.assign(age="old"),
    }.items():
        with pytest.raises(ct.UserError, match=wrong):
            mine.predict(told)


class TestModulesOfOnesOwn:
    """What they take is known from the data that they were trained on."""

    PAIRS = ((torch.linspace(-1, 1, 120).reshape(20, 6), torch.arange(20) % 3),) * 3
    METHOD = ct.algorithms.fedavg(participation=1.0, lr=0.05, batch_size=8, epochs=1)

    def run(self, module: nn.Module, pairs: Any = PAIRS, **options: Any) -> ct.Run:
        return ct.fit(module, ct.data.from_tensors(pairs, pairs), self.METHOD, rounds=1, progress=False, **options)

    def test_one_sample_is_answered_alone(self, tmp_path: Path) -> None:
        net, x = nn.Linear(6, 3), self.PAIRS[0][0]
        run = self.run(net, out=tmp_path / "a")
        for known in (run, ct.load(tmp_path / "a", model=net)):
            mine = known.clients[0]
            assert mine.predict(x[3]).equal(mine.predict(x)[3])
            for wrong in (x[:, :5], x[0, :5], x[0, 0]):
                with pytest.raises(ct.UserError, match=r": give a batch \[B, 6\], or one sample"):
                    mine.predict(wrong)

    def test_samples_of_another_shape_are_tried(self) -> None:
        """A module that takes images of any size goes on to do so."""
        images = [
            (torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(i)), torch.arange(8) % 2) for i in (0, 1)
        ]
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        mine, larger = self.run(net, images).clients[0], torch.rand(2, 1, 7, 7)
        assert mine.predict(larger).equal(mine.module()(larger).argmax(1))
        assert mine.predict(larger[0]).shape == ()

    def test_a_folder_of_old_goes_on_and_loads(self, tmp_path: Path) -> None:
        """It does not say which shape its samples have."""
        net, x = nn.Linear(6, 3), self.PAIRS[0][0]
        run = self.run(net, out=tmp_path / "a")
        file = tmp_path / "a" / "config.json"
        config = json.loads(file.read_text())
        assert config.pop("sample_shape") == [6]
        file.write_text(json.dumps(config))
        reseal(tmp_path / "a")
        assert ct.load(tmp_path / "a", model=net).clients[0].predict(x).equal(run.clients[0].predict(x))
        again = self.run(net, out=tmp_path / "a", resume=True)
        assert again.clients[0].predict(x[3]).equal(run.clients[0].predict(x)[3])


@dataclass
class Focal:
    """A loss of one's own, without a hash."""

    gamma: float

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, targets, reduction="none")
        return ((1 - (-each).exp()) ** self.gamma * each).mean()


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), Focal(2.0)])
def test_classes_whatever_the_loss_is(loss: Any) -> None:
    """Nobody needs the name of a loss to know that the targets are classes."""
    x = torch.randn(24, 5)
    pairs = [(x[:12], torch.arange(12) % 3), (x[12:], torch.arange(12) % 3)]
    fed = ct.data.from_tensors(pairs, pairs, classes=3)
    method = ct.algorithms.local(lr=0.1, epochs=1)
    run = ct.fit(ct.models.build("logreg", fed), fed, method, rounds=1, loss=loss, progress=False)
    right = [float((c.predict(x) == y).double().mean()) for c, (x, y) in zip(run.clients, pairs, strict=True)]
    assert right == run.client_summary["accuracy"]["after_mix"]


def test_only_a_client_of_a_run_knows_its_samples() -> None:
    with pytest.raises(ct.UserError, match=r"call module\(\)"):
        ct.Client({}, {}, None).predict(torch.zeros(1))


def test_every_client_of_every_round(cli: Cli, tmp_path: Path) -> None:
    """Kept in the rows, the same after an interruption, and what the last round says is what clients.json says."""
    typed = ("run", "fedper", *SMALL, "--record", "clients", "--evaluate-every", "2")
    cli.succeed(*typed, "--out", "a", cwd=tmp_path)
    cli.run(*typed, "--out", "b", cwd=tmp_path, at="rename b/checkpoint/round-000002.json")
    cli.succeed("run", "b", "--resume", cwd=tmp_path)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    run = ct.load(tmp_path / "a")
    table = run.client_history()
    assert (list(table.index), list(table.columns)) == ([2, 3], [f"client {i}" for i in range(5)])
    assert table.loc[3].tolist() == run.client_summary["accuracy"]["after_mix"]
    assert run.client_history("after_train").loc[3].tolist() == run.client_summary["accuracy"]["after_train"]
    for t in (2, 3):
        assert table.loc[t].mean() == pytest.approx(run.history[t - 1]["personal_accuracy_after_mix"])
    assert "clients" not in run.history.frame().columns
    for wrong in ({"protocol": "after_tea"}, {"metric": "auroc"}):
        with pytest.raises(ct.UserError, match=r"after_tea|auroc"):
            run.client_history(**wrong)


def test_nothing_is_kept_unless_asked(tmp_path: Path) -> None:
    fed = ct.data.federate("synthetic:size=60", clients=2, partition="iid")
    run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.local(epochs=1), rounds=1, progress=False)
    assert "clients" not in run.history[0]
    with pytest.raises(ct.UserError, match=r"train with record=\['clients'\]"):
        run.client_history()
