"""What all clients share is one tensor in memory and one file on disk, and a client is made when it is asked for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie as ct
from coterie.cluster.ray_backend import gathered_clients
from coterie.core.tensors import replicate
from coterie.measure.evaluate import chosen_rows
from coterie.models.model import Model, cross_entropy
from coterie.training.client import Client, common_parts, folded, unfolded
from coterie.training.run import Run

SMALL: dict[str, Any] = {"rounds": 2, "progress": False, "device": "cpu"}
FED = ct.data.federate("synthetic:size=200,classes=3", clients=6, seed=0)
CUTS = ct.algorithms.heterofl(capacities="1-0.5", participation=1.0)
METHODS: dict[str, tuple[Any, int, int]] = {  # the method, its client files, its common parts
    "fedavg": (ct.algorithms.fedavg(participation=3, epochs=1), 0, 1),
    "fedper": (ct.algorithms.fedper(participation=3, epochs=1), 6, 1),
    "heterofl": (CUTS, 3, 2),
    "dfedavg": (ct.algorithms.dfedavg(topology="ring", epochs=1), 6, 0),
    "fedbabu": (ct.algorithms.fedbabu(participation=3, epochs=1, finetune_epochs=1), 6, 0),
    "local": (ct.algorithms.local(epochs=1), 6, 0),
}


def fit(method: str, out: Path | None = None, **more: Any) -> Run:
    return ct.fit(ct.models.build("mlp:width=8", FED), FED, METHODS[method][0], out=out, **{**SMALL, **more})


def memory(client: Client) -> set[int]:
    return {v.data_ptr() for v in client.shared.values()}


def assert_equal(one: Run, other: Run) -> None:
    for a, b in zip(one.clients, other.clients, strict=True):
        assert a.shared.keys() == b.shared.keys()
        assert a.personal.keys() == b.personal.keys()
        for mine, theirs in ((a.shared, b.shared), (a.personal, b.personal)):
            assert all(torch.equal(v, theirs[k]) for k, v in mine.items())


@pytest.mark.parametrize("method", METHODS)
def test_one_tensor_one_file(method: str, tmp_path: Path) -> None:
    """Whichever way a run comes, its clients have the same values; what is common has one memory."""
    _, files, parts = METHODS[method]
    run = fit(method, tmp_path / "a")
    names = {path.name for path in (tmp_path / "a/clients").iterdir()}
    assert len(names - {"common.safetensors"}) == files
    assert ("common.safetensors" in names) == (parts > 0)
    again = ct.load(tmp_path / "a")
    for found in (run, again):
        assert len(folded(found.clients).common) == parts * len(found.clients[0].shared)
        assert len({frozenset(memory(client)) for client in found.clients if client.same is not None}) == parts
    assert_equal(run, again)
    assert_equal(run, fit(method))
    assert_equal(run, ct.load(again.save(tmp_path / "b")))
    listed = json.loads((tmp_path / "a/digests.json").read_text())["sha256"]
    assert {path for path in listed if path.startswith("clients/")} == {f"clients/{name}" for name in names}


def test_a_client_file_holds_what_is_its_own(tmp_path: Path) -> None:
    run = fit("fedper", tmp_path / "a")
    own = load_file(tmp_path / "a/clients/client-0004.safetensors")
    assert own.keys() == {f"personal/{k}" for k in run.clients[4].personal}
    common = load_file(tmp_path / "a/clients/common.safetensors")
    assert common.keys() == {f"shared/{k}" for k in run.clients[4].shared}


def test_views_of_the_state_are_no_copies() -> None:
    """Between peers a client's model is its rows of the last state, and with a server the one model of that."""
    for method, slot in (("dfedavg", "x/"), ("fedavg", "u/")):
        run = fit(method)
        for name, value in run.clients[2].shared.items():
            assert value.untyped_storage().data_ptr() == run.final[slot + name].untyped_storage().data_ptr()


def test_a_client_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    """A file that is lost is missed by those who ask for its client, and by nobody else."""
    fit("fedper", tmp_path / "a")
    (tmp_path / "a/clients/client-0002.safetensors").unlink()
    run = ct.load(tmp_path / "a")
    assert run.clients[1].predict(FED.test_x).shape == (len(FED.test_x),)
    with pytest.raises(ct.UserError, match=r"client-0002\.safetensors is damaged, because it is missing"):
        run.clients[2]
    (tmp_path / "a/clients/common.safetensors").unlink()
    with pytest.raises(ct.UserError, match=r"common\.safetensors is damaged, because it is missing"):
        ct.load(tmp_path / "a")


@pytest.mark.parametrize("method", ["fedavg", "dfedavg", "heterofl"])
@pytest.mark.parametrize("select", ["best-validation", "best-validation-per-client"])
def test_what_is_chosen_on_the_way(method: str, select: str, tmp_path: Path) -> None:
    """A run that stops and goes on ends with the same clients, each of its own round."""
    more: dict[str, Any] = {"select": select, "validation": 0.3, "rounds": 4}
    whole = fit(method, tmp_path / "a", **more)

    class Stop:
        name = "stop"

        def begin(self, *given: Any) -> str:
            return ""

        def round(self, row: Any) -> None:
            if row["round"] == 3:
                raise KeyboardInterrupt

        def end(self, summary: Any) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        fit(method, tmp_path / "b", trackers=[Stop()], **more)
    assert_equal(whole, fit(method, tmp_path / "b", resume=True, **more))
    assert_equal(whole, ct.load(tmp_path / "a"))


def test_folding_goes_back_and_forth() -> None:
    one, other = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    alone = Client({"w": torch.full((2,), 5.0)}, {"b": torch.zeros(1)}, None)
    clients = [Client(one, {}, None, same="a"), Client(other, {}, None, same="b"), alone]
    clients += [Client(other, {}, None, same="b"), Client(one, {}, None, same="a"), Client(one, {}, None, same="c")]
    common, own = folded(clients)
    parts = common_parts(common)
    back = [unfolded(tensors, parts, None) for tensors in own]
    assert [*common] == ["shared/w", "1/shared/w"]
    assert [len(tensors) for tensors in own] == [0, 1, 2, 1, 0, 1]
    assert [client.shared["w"].tolist() for client in back] == [c.shared["w"].tolist() for c in clients]
    assert back[0].shared is back[4].shared
    assert back[5].shared is not back[0].shared


def test_shards_send_their_common_model_once() -> None:
    """A server's model is the same on all of them, and it is in memory once."""
    head = {"w": torch.ones(2)}
    model = Model(nn.Linear(2, 1), cross_entropy)
    shards = [
        {"common": {"shared/w": head["w"].clone()}, "0": {"personal/b": torch.zeros(1)}, "2": {}},
        {"common": {"shared/w": head["w"].clone()}, "1": {"personal/b": torch.ones(1)}},
    ]
    clients = gathered_clients(shards, np.array([0, 1, 0]), [model] * 3)
    assert [client.personal.get("b", torch.tensor([5.0])).item() for client in clients] == [0.0, 1.0, 5.0]
    assert len({client.shared["w"].data_ptr() for client in clients}) == 1
    assert [client.same for client in clients] == [0, 0, 0]


def test_one_model_is_not_copied_to_be_measured() -> None:
    models = replicate({"w": torch.ones(3)}, 1000) | {"b": torch.arange(1000.0)}
    some = chosen_rows(models, np.array([1, 5, 7]))
    assert some["w"].untyped_storage().nbytes() == 12
    assert some["b"].tolist() == [1.0, 5.0, 7.0]


def test_many_clients_of_one_model_take_no_more_than_it() -> None:
    """With 20,000 clients of a model of 0.1 MB, a copy for each would be 2 GB."""
    count = 20_000
    x, y = torch.randn(count, 8), torch.randint(0, 2, (count,))
    pairs = [(x[i : i + 1], y[i : i + 1]) for i in range(count)]
    fed = ct.data.from_tensors(train=pairs, test=pairs, classes=2)
    alg = ct.algorithms.fedavg(participation=5, epochs=1)
    run = ct.fit(ct.models.build("mlp:width=160", fed), fed, alg, rounds=1, progress=False, device="cpu")
    assert len(run.clients) == count
    assert memory(run.clients[0]) == memory(run.clients[count - 1])
    assert sum(v.untyped_storage().nbytes() for v in run.final.values()) < 2**21
