"""Validation samples: who gives which, that they train nothing, and that the test samples stay where they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.core.errors import UserError
from coterie.data import Federation
from coterie.data.validation import with_validation, without_validation
from helpers_cli import Cli, assert_same_run

SMALL = ("--data", "synthetic:size=240,classes=3", "--clients", "4", "--rounds", "3", "--set", "epochs=1")


def federation(*sizes: int, classes: int | None = 3) -> Federation:
    """Clients with so many samples, whose numbers say which they are."""
    x = torch.arange(float(sum(sizes)))[:, None]
    y = torch.arange(len(x)) % classes if classes else x
    parts = torch.split(torch.arange(len(x)), sizes)
    return Federation(x, y, x + 1000, y, parts, parts, classes)


@pytest.mark.parametrize("classes", [3, None])
def test_every_client_gives_its_share_and_keeps_the_rest(classes: int | None) -> None:
    fed = federation(50, 7, 2, classes=classes)
    cut = with_validation(fed, 0.2, seed=0)
    assert [len(own) for own in cut.validation] == [10, 1, 1]
    for before, train, kept in zip(fed.train, cut.train, cut.validation, strict=True):
        assert sorted([*train.tolist(), *kept.tolist()]) == before.tolist()
        assert train.tolist() == sorted(train.tolist())
    assert all(map(torch.equal, cut.test, fed.test))
    assert torch.equal(cut.test_x, fed.test_x)
    assert cut.fingerprint() != fed.fingerprint()


def test_classes_keep_their_proportions() -> None:
    """Within one sample of the exact share, whatever the classes; a class of one sample stays in the training."""
    draw = np.random.default_rng(0)
    for trial in range(50):
        y = torch.from_numpy(draw.integers(0, 5, 61) * draw.integers(0, 2, 61))
        y[-1] = 5
        rows = torch.arange(61)
        fed = Federation(y[:, None].double(), y, y[:, None].double(), y, (rows,), (rows,), classes=6)
        kept = y[with_validation(fed, 0.25, seed=trial).validation[0]].bincount(minlength=6)
        exact = 15 * y.bincount(minlength=6) / 61
        assert int(kept.sum()) == 15
        assert bool(((kept - exact).abs() < 1).all())
        assert kept[5] == 0


def test_the_draw_is_of_the_seed_and_the_client_alone() -> None:
    one, again, other = (with_validation(federation(30, 30), 0.3, seed=s).validation for s in (0, 0, 1))
    assert all(map(torch.equal, one, again))
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], one[1] - 30)
    alone = with_validation(federation(30), 0.3, seed=0).validation  # others change nothing for a client
    assert torch.equal(alone[0], one[0])


def test_clients_that_have_none_are_named() -> None:
    cut = with_validation(federation(10, 1, 0), 0.2, seed=0)
    assert [len(own) for own in cut.train] == [8, 1, 0]
    assert "clients 1, 2 (2 in all)" in (without_validation(cut) or "")
    assert without_validation(federation(10, 1)) is None  # nobody asked for any
    assert without_validation(with_validation(federation(10, 10), 0.2, seed=0)) is None
    with pytest.raises(UserError, match="leave validation out"):
        with_validation(federation(1, 1), 0.2, seed=0)
    with pytest.raises(UserError, match="of its own"):
        with_validation(cut, 0.2, seed=0)


@pytest.mark.parametrize("fraction", [1, 1.0, -0.1, 1.5, float("nan")])
def test_a_fraction_that_is_none(fraction: float) -> None:
    with pytest.raises(UserError, match=r"validation=.* is out of range"):
        ct.fit(nn.Linear(1, 3), federation(9), ct.algorithms.local(), rounds=1, validation=fraction, progress=False)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_they_train_nothing(engine: str) -> None:
    """A run without the samples that were kept out is the same run; with garbage in their place as well."""
    fed = federation(20, 13)
    alg = ct.algorithms.dfedavg(topology="full", epochs=2, batch_size=4, lr=1e-4)
    cut = with_validation(fed, 0.3, seed=5)
    spoiled = cut.x.clone()
    spoiled[torch.cat(cut.validation)] = 1e9
    runs = [
        ct.fit(lambda: nn.Linear(1, 3), given, alg, rounds=2, seed=5, engine=engine, progress=False, **more)
        for given, more in (
            (fed, {"validation": 0.3}),
            (Federation(fed.x, fed.y, fed.test_x, fed.test_y, cut.train, fed.test, 3), {}),
            (Federation(spoiled, fed.y, fed.test_x, fed.test_y, cut.train, fed.test, 3), {}),
        )
    ]
    for run in runs[1:]:
        for mine, theirs in zip(runs[0].clients, run.clients, strict=True):
            assert all(torch.equal(mine.shared[k], theirs.shared[k]) for k in mine.shared)
    assert (runs[0].config["validation"], "validation" in runs[1].config) == (0.3, False)


def test_a_run_with_validation_is_resumed_and_repeated_exactly(cli: Cli, tmp_path: Path) -> None:
    command = ("run", "dfedalt", *SMALL, "--validation", "0.25")
    cli.succeed(*command, "--out", "a", cwd=tmp_path)
    cli.run(*command, "--out", "b", cwd=tmp_path, at="rename b/checkpoint/round-000003.json")
    cli.refuse("run", "dfedalt", *SMALL, "--out", "b", "--resume", cwd=tmp_path, names=("validation",))
    cli.succeed("run", "b", "--resume", cwd=tmp_path)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    cli.succeed("run", "a/config.json", "--out", "c", cwd=tmp_path)
    assert_same_run(tmp_path / "a", tmp_path / "c")
