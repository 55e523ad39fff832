"""How much memory there is, and that what would not fit is refused before anything of it is made."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import coterie as ct
from coterie.algorithms.capacities import levels
from coterie.core.errors import UserError
from coterie.core.memory import check_fits, free_memory
from coterie.core.spec import scaled

MEMINFO = "MemTotal:  9000000 kB\nMemAvailable:  8000000 kB\n"


def system(root: Path, files: dict[str, str]) -> Path:
    """A folder with the files in which Linux tells about memory."""
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
GROUPS: dict[str, tuple[dict[str, str], int]] = {
    "none": ({}, 8_000_000 * 1024),
    "version 2, of a parent": (
        {
            "proc/self/cgroup": "0::/job/step\n",
            f"{V2}/job/step/memory.max": "max\n",
            f"{V2}/job/step/memory.stat": "",
            f"{V2}/job/memory.max": "5000\n",
            f"{V2}/job/memory.current": "3000\n",
            f"{V2}/job/memory.stat": "anon 700\ninactive_file 400\n",
        },
        2400,
    ),
    "version 2, in a container that sees its name outside": (
        {
            "proc/self/cgroup": "0::/outside/name\n",
            f"{V2}/memory.max": "900\n",
            f"{V2}/memory.current": "200\n",
            f"{V2}/memory.stat": "",
        },
        700,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:cpu:/a\n4:memory:/a\n",
            f"{V1}/a/memory.limit_in_bytes": "6000\n",
            f"{V1}/a/memory.usage_in_bytes": "1000\n",
            f"{V1}/a/memory.stat": "total_inactive_file 10\n",
            f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{V1}/memory.usage_in_bytes": "1\n",
            f"{V1}/memory.stat": "",
        },
        5010,
    ),
    "more is taken than is allowed": (
        {
            "proc/self/cgroup": "0::/\n",
            f"{V2}/memory.max": "100\n",
            f"{V2}/memory.current": "200\n",
            f"{V2}/memory.stat": "",
        },
        0,
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_free_memory_is_the_least_of_all_limits(name: str, tmp_path: Path) -> None:
    files, free = GROUPS[name]
    assert free_memory(system(tmp_path, files)) == free


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.core.memory.free_memory", lambda: 2_000_000)
    check_fits(2_000_000, "it", "no fix")
    with pytest.raises(UserError, match=r"^the data would take 8e\+03 YB of memory, and 2 MB are free: ask for less$"):
        check_fits(8e27, "the data", "ask for less")


NUMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "whole": (
        {"steps": 99999999999999999999},
        "steps=99999999999999999999 is out of range: it must be at most 1,000,",
    ),
    "several": ({"epochs": (1, 10**10)}, "epochs=10000000000 is out of range"),
    "epochs": (
        {"epochs": 10**9},
        r"the list of a client's batches in one round would take .* TB of memory, and .* free",
    ),
    "fine-tuning": ({"finetune_epochs": 10**9}, "the list of a client's batches in one round would take"),
    "infinite": ({"lr_min": float("inf")}, "lr_min=inf is out of range"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_beyond_reason_are_refused_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.core.memory.free_memory", lambda: 24 * 10**9)
    settings, sentence = NUMBERS[name]
    federation = ct.data.federate("synthetic:size=400", clients=2, partition="iid")
    with pytest.raises(UserError, match=sentence):
        ct.fit(
            ct.models.build("logreg", federation),
            federation,
            ct.algorithms.fedavg(**settings),
            rounds=1,
            out=tmp_path / "run",
            progress=False,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("capacity", ["inf", "nan", "1-nan", "b4x1-infx1"])
def test_a_capacity_is_a_finite_number(capacity: str) -> None:
    with pytest.raises(UserError, match=r"unknown capacity '(inf|nan)'"):
        levels(capacity, {"b4": 1.0})


class Made(TorchFunctionMode):
    """Writes down how many numbers every tensor has that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.empty:
            self.sizes.append(made.numel())
        return made


def test_a_model_is_counted_while_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 16 MB each: the second one is too much, and it is never made."""
    monkeypatch.setattr("coterie.core.memory.free_memory", lambda: 20_000_000)
    words = "model mlp:width=2000 would take at least 32 MB of memory, and 20 MB are free"
    with Made() as made, pytest.raises(UserError, match=words):
        ct.models.build("mlp:width=2000", classes=10, input_shape=(2000,))
    assert made.sizes == [2000 * 2000, 2000]
    with torch.device("meta"):  # where nothing is made, as for counting parameters
        assert ct.models.build("mlp:width=2000", classes=10, input_shape=(2000,))


PARAMETERS = 20 * 64 + 64 + 64 * 64 + 64 + 64 * 4 + 4  # of the mlp below
STATES = {
    "dfedavg": 100 * 4 * PARAMETERS,  # everybody's model
    "ditto": 101 * 4 * PARAMETERS,  # and the server's
    "dispfl": 100 * 5 * PARAMETERS,  # and a byte for every entry that is dead or alive
}


@pytest.mark.parametrize("method", STATES)
def test_all_clients_together_must_fit(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = ct.data.federate("synthetic:size=400,classes=4", clients=100, partition="iid")
    module = ct.models.build("mlp", federation)
    monkeypatch.setattr("coterie.core.memory.free_memory", lambda: 1_000_000)
    algorithm = getattr(ct.algorithms, method)(epochs=1)
    words = f"{method} with 100 clients would take {scaled(STATES[method], 'B')} of memory, and 1 MB"
    with pytest.raises(UserError, match=words):
        ct.fit(module, federation, algorithm, rounds=1, out=tmp_path / "run", progress=False)
    assert list(tmp_path.iterdir()) == []
    one_model = ct.algorithms.fedavg(epochs=1, participation=2)
    assert len(ct.fit(module, federation, one_model, rounds=1, progress=False).clients) == 100


def test_a_rate_of_zero_is_a_rate() -> None:
    """Nothing moves, and the trial before the first round must not take that for a loss that reaches nothing."""
    federation = ct.data.federate("synthetic:size=200,classes=4", clients=2, partition="iid")
    algorithm = ct.algorithms.fedhmv2(lr=0, epochs=1, keep_layers=1)
    run = ct.fit(ct.models.build("mlp", federation), federation, algorithm, rounds=1, progress=False)
    assert run.history[0]["train_loss"] is not None
