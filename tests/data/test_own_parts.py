"""Data, topologies and partitions of one's own, named ``module:function`` or ``./file.py:function`` in a command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie as ct
from helpers_cli import DATA, Cli, assert_same_run

MINE = """
import numpy as np
import torch

def teams(n, size: int = 2):
    W = torch.zeros(n, n)
    for i in range(n):
        mates = [j for j in range(n) if j // size == i // size]
        W[i, mates] = 1 / len(mates)
    return W

def turning(n, seed=0):
    return lambda t: (torch.eye(n).roll(t % n, 0) + torch.eye(n)) / 2

def halves(labels, clients, rng, share: float = 0.5):
    order = rng.permutation(len(labels))
    cut = int(share * len(labels))
    return [order[:cut], *np.array_split(order[cut:], clients - 1)]

def one(labels, clients):
    return [[0]]

def outside(labels, clients):
    return [[len(labels)]] * clients

def text(n):
    return "ring"

def number(n):
    return n

def alone():
    return 3

def sites(size: int = 8, seed=0):
    import coterie as ct
    pairs = arrays(size, seed)
    return ct.data.from_tensors([pairs[0]] * 3, [pairs[1]] * 3, names=["mayo", "nice", "oslo"])

def arrays(size: int = 8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(size, 5, generator=draw), torch.arange(size) % 2
    return (x, y), (x, y)
"""
NAME = "parts_of_a_test"
OWN = ("--topology", f"{NAME}:teams,size=3", "--partition", f"./{NAME}.py:halves,share=0.6")
TRUST = ("--trust", f"{NAME}:teams", "--trust", f"./{NAME}.py:halves")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / f"{NAME}.py").write_text(MINE)
    return tmp_path


def test_they_run_and_are_repeated_by_whoever_trusts_them(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.succeed("run", "dfedavg", *DATA, "--clients", "6", "--rounds", "2", *OWN, "--out", "a", cwd=here)
    config = json.loads((here / "a/config.json").read_text())
    assert (config["settings"]["topology"], config["data"]["partition"]) == (OWN[1], OWN[3])
    clients = json.loads((here / "a/clients.json").read_text())
    assert clients["train_samples"] == [180, 24, 24, 24, 24, 24]  # 0.6 of 300, then equal shares
    assert {tuple(edge[:2]) for edge in clients["graph"]["edges"]} == {
        (i, j) for team in ((0, 1, 2), (3, 4, 5)) for i in team for j in team if i != j
    }
    cli.refuse("run", "a/config.json", cwd=here, names=("would run", *TRUST))
    cli.refuse("run", "a/config.json", *TRUST[:2], cwd=here, names=("would run", *TRUST))
    cli.succeed("run", "a/config.json", *TRUST, "--out", "b", cwd=here)
    assert_same_run(here / "a", here / "b")
    cli.refuse("export", "a", "--client", "0", "--out", "x.safetensors", cwd=here, names=(f"--trust {NAME}:teams",))
    cli.succeed("export", "a", "--client", "0", *TRUST, "--out", "x.safetensors", cwd=here)
    with pytest.raises(ct.UserError, match=f"add --trust {NAME}:teams"):
        ct.load(here / "a")
    cli.succeed("report", "a", cwd=here)  # reads names and numbers, and runs nothing


def test_a_matrix_or_a_function_of_the_round(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    fixed, turns = (ct.topology.build(f"./{NAME}.py:{name}", 4) for name in ("teams", "turning"))
    assert (fixed.fixed, turns.fixed) == (True, False)
    assert fixed.name == f"./{NAME}.py:teams"
    expected = torch.block_diag(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5)).double()
    assert fixed(3).equal(expected)
    assert not turns(1).equal(turns(2))
    fed = ct.data.federate("synthetic:size=40", clients=3, partition=f"./{NAME}.py:halves", seed=1)
    again = ct.data.federate(**fed.origin)
    assert (fed.sizes.tolist(), again.fingerprint()) == ([15, 8, 7], fed.fingerprint())
    assert np.array_equal(np.sort(torch.cat(fed.train).numpy()), np.arange(30))


WRONG = {
    ("--topology", f"{NAME}:tems"): ("did you mean teams",),
    ("--topology", f"{NAME}:teams,depth=2"): ("no option 'depth'", "size"),
    ("--topology", f"{NAME}:alone"): ("does not take n", "a function of n"),
    ("--topology", f"{NAME}:number"): ("returned int", "a matrix, a Topology or a function"),
    ("--topology", f"{NAME}:text"): ("returned str", "a matrix, a Topology or a function"),
    ("--topology", "not_there_at_all:teams"): ("not_there_at_all.py",),
    ("--partition", f"{NAME}:one"): ("rows for 1 clients, and 6 were asked for",),
    ("--partition", f"{NAME}:outside"): ("rows outside of the 300 samples",),
    ("--partition", f"{NAME}:alone"): ("does not take labels and clients",),
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_mistake_is_one_sentence(cli: Cli, here: Path, typed: tuple[str, str]) -> None:
    words = ("run", "dfedavg", *DATA, "--clients", "6", "--rounds", "1", *typed)
    cli.refuse(*words, cwd=here, names=WRONG[typed])


def test_data_are_a_federation_or_arrays_that_are_divided(cli: Cli, here: Path) -> None:
    """Saved, repeated by whoever trusts them, and compared; sites keep their names."""
    cli.succeed("run", "fedper", "--data", f"{NAME}:sites,size=12", "--rounds", "1", "--out", "a", cwd=here)
    config = json.loads((here / "a/config.json").read_text())["data"]
    assert config == {"source": f"{NAME}:sites", "clients": 3, "partition": "natural", "seed": 0, "size": 12}
    assert json.loads((here / "a/clients.json").read_text())["names"] == ["mayo", "nice", "oslo"]
    cli.refuse("run", "a/config.json", cwd=here, names=(f"--trust {NAME}:sites",))
    cli.succeed("run", "a/config.json", "--trust", f"{NAME}:sites", "--out", "b", cwd=here)
    assert_same_run(here / "a", here / "b")
    divided = ("--data", f"./{NAME}.py:arrays,size=40", "--clients", "4", "--partition", "iid", "--rounds", "1")
    cli.succeed("compare", "local", "fedavg", *divided, "--out", "c", cwd=here)
    assert json.loads((here / "c/local-seed0/clients.json").read_text())["train_samples"] == [10] * 4
    cli.succeed("run", "local", *divided, cwd=here)  # in a folder of its own below runs/
    typed = ("run", "local", "--rounds", "1", "--data")
    cli.refuse(*typed, f"{NAME}:sites", "--clients", "2", cwd=here, names=("federation of 3 clients: leave clients",))
    cli.refuse(*typed, f"{NAME}:alone", cwd=here, names=("returned int", "return a Federation"))
    cli.refuse(*typed, f"{NAME}:sitse", cwd=here, names=("did you mean sites",))
