"""Every client ends with its own model: the form it can hold is measured, returned, saved and loaded."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms import update
from coterie.core.tensors import rows
from coterie.engines import Serial, Vectorized
from coterie.measure.evaluate import pooled_statistics
from coterie.submodels import LowRank, factorize_tensors
from coterie.training.experiment import Experiment
from coterie.training.run import Run
from laws import COMMON
from sample_by_sample import answers
from toys import experiment, net, play, ragged

alg = ct.algorithms
ONE = {**COMMON, "epochs": 1}
OWN: dict[str, dict[str, Any]] = {
    "heterofl": {"capacities": "1-0.5"},
    "fedrolex": {"capacities": "1-0.5"},
    "feddropout": {"capacities": "1-0.5", "mask_ce": True},
    "depthfl": {"capacities": "2-1"},
    "flanc": {"capacities": "1-0.5"},
    "progfed": {},
    "fedhm": {"capacities": "1-0.25", "keep_layers": 1},
    "fedhmv2": {"rank_ratio": 0.25, "keep_layers": 1},
    "pfedlmt": {"capacities": "1-0.25", "keep_layers": 1},
}
STAGES = ("depthfl", "flanc", "progfed")


def problem(name: str, engine: Any = None, rounds: int = 8, **settings: Any) -> Experiment:
    kind = "residual" if name in STAGES else "groupnorm"
    algorithm = alg.build(name, **ONE, participation=3, **(OWN[name] | settings))
    return experiment(net(kind), ragged(kind), algorithm, engine or Serial(), rounds=rounds)


@pytest.mark.parametrize("engine", [Serial(), Vectorized(2)], ids=["serial", "vectorized"])
@pytest.mark.parametrize("name", OWN)
def test_what_is_returned_is_what_was_measured_after_mixing(name: str, engine: Any) -> None:
    e = problem(name, engine)
    now = play(e, 3)
    measured = e.values(now.state, now.after_train, e.settings.rounds - 1)["after_mix"][:, 0]
    clients = e.clients(now.state)
    assert [answers(e, c, i) for i, c in enumerate(clients)] == pytest.approx(measured.tolist())
    sizes = [sum(p.numel() for p in c.module().parameters()) for c in clients]
    if name in ("progfed", "fedhmv2"):  # everybody has the same
        assert len(set(sizes)) == 1
    else:
        assert sizes[0] == sizes[1] > sizes[2] == sizes[4]
    for client in clients:  # nothing of the common form beside what the module has
        assert (client.shared | client.personal).keys() == dict(client.module().state_dict()).keys()


@pytest.mark.parametrize("direction", [1, -1])
def test_the_window_of_the_last_round_by_hand(direction: int) -> None:
    """Hidden units t .. t + 3 of 8, around the end, of the mixed model: cut out with plain indices."""
    settings = {**ONE, "participation": 1.0, "capacities": "1x2-0.5x3", "direction": direction}
    e = experiment(net("mlp"), ragged("mlp"), alg.fedrolex(**settings), rounds=7)
    now = play(e, 7)
    u, own = now.state.u, e.clients(now.state)[4].shared
    kept = [(direction * 6 + k) % 8 for k in range(4)]
    wanted = {"1.weight": u["1.weight"][kept], "1.bias": u["1.bias"][kept], "3.weight": u["3.weight"][:, kept]}
    for k, v in (wanted | {"3.bias": u["3.bias"]}).items():
        assert torch.equal(own[k], v), k
    assert torch.equal(e.clients(now.state)[0].shared["1.weight"], u["1.weight"])  # who has all keeps their order


def test_a_narrow_model_holds_the_first_channels() -> None:
    e = problem("heterofl")
    now = play(e, 3)
    u, small = now.state.u, net("groupnorm").at_width(0.5).double()
    cut = {k: now.state.u[k][tuple(map(slice, v.shape))] for k, v in small.state_dict().items() if k != "4.weight"}
    cut["4.weight"] = u["4.weight"].view(8, 4, 16)[:4, :2].reshape(4, 32)  # sixteen places a channel
    own = e.clients(now.state)[4].shared
    assert own.keys() == cut.keys()
    assert all(torch.equal(own[k], v) for k, v in cut.items())


def test_a_low_rank_model_is_the_nearest_one() -> None:
    e = problem("fedhm")
    now = play(e, 3)
    client = e.clients(now.state)[4]
    low = client.module()
    wanted = factorize_tensors(low, now.state.u)
    assert all(torch.equal(client.shared[k], v) for k, v in wanted.items())
    (layer,) = [m for m in low.modules() if isinstance(m, LowRank)]
    W, rank = now.state.u["4.weight"], layer.U.shape[1]
    left = torch.linalg.svdvals(W)[rank:].square().sum().sqrt()
    torch.testing.assert_close(torch.linalg.matrix_norm(W - layer.U @ layer.V.T), left, rtol=1e-8, atol=1e-10)


def test_classes_a_client_has_stay_with_it() -> None:
    """Which classes are masked is nobody else's: it lies in the personal part, and does not count as sent."""
    masked, plain = (problem("heterofl", mask_ce=m) for m in (True, False))
    state = masked.start().state
    clients = masked.clients(state)
    for i, client in enumerate(clients):
        present = [float(c in masked.train.y[masked.train.owned[i]]) for c in range(3)]
        assert {k: v.tolist() for k, v in client.personal.items()} == {"present": present}
    sent = [e.program.traffic(e.start().state, e.round(0)).totals.parameters for e in (masked, plain)]
    assert sent[0] == sent[1]


def test_the_global_model_is_measured_whole() -> None:
    """On all test samples and, as 002 prints it, as the mean over the clients' own."""
    e = problem("heterofl")
    now, row = e.run_round(play(e, 2), 2, evaluate=True)
    u, x, y = now.state.u, e.tests.x, e.tests.y
    right = (e.model.outputs(u, x).argmax(1) == y).double()
    assert row["global_accuracy"] == pytest.approx(float(right.mean()))
    each = [float(right[own].mean()) for own in e.tests.owned]
    assert row["global_accuracy_local"] == pytest.approx(float(np.mean(each)))
    assert np.mean(each) != pytest.approx(float(right.mean()))  # test sets are unequally large


def test_tests_that_several_clients_share() -> None:
    """All samples count once for the global accuracy, and for whom they belong to in the mean over clients."""
    fed = ragged("mlp")
    shared = (fed.test[0], torch.cat([fed.test[0], fed.test[1]]), *fed.test[2:])
    e = experiment(net("mlp"), ct.data.Federation(**{**vars(fed), "test": shared}), alg.fedavg(**ONE))
    row = e.run_round(e.start(), 0, evaluate=True)[1]
    state = e.run_round(e.start(), 0, evaluate=False)[0].state
    right = (e.model.outputs(state.u, e.tests.x).argmax(1) == e.tests.y).double()
    assert row["global_accuracy"] == pytest.approx(float(right.mean()))
    assert row["global_accuracy_local"] == pytest.approx(np.mean([float(right[own].mean()) for own in shared]))
    places, kept = pooled_statistics(e.engine, e.model, state.u, e.tests, e.local_clients, e.metrics)
    assert places.tolist() == list(range(len(e.tests.y)))
    assert kept[:, 0].tolist() == right.tolist()


def test_few_at_a_time_are_the_same_models(monkeypatch: pytest.MonkeyPatch) -> None:
    e = problem("feddropout")
    state = play(e, 2).state
    whole = [(f.places.tolist(), f.models) for f in e.groups(state, 1)]
    monkeypatch.setattr(update, "NUMBERS", 1)
    single = list(e.groups(state, 1))
    assert [f.places.tolist() for f in single] == [[place] for places, _ in whole for place in places]
    parts = [rows(models, i) for places, models in whole for i in range(len(places))]
    for form, own in zip(single, parts, strict=True):
        assert all(torch.equal(form.models[k][0], v) for k, v in own.items())


def test_one_cut_for_all_is_made_once() -> None:
    """A server's model costs a client nothing: a group that sees it alike sees one tensor."""
    e = problem("fedrolex")
    for form in e.groups(play(e, 2).state, 1):
        assert all(v.stride(0) == 0 for v in form.models.values())


@cache
def saved(name: str, root: Path) -> tuple[Run, Path]:
    """A run of two rounds with a model by name, in its folder."""
    fed = ct.data.federate("digits", clients=4, partition="iid", seed=0)
    module = ct.models.build("resnet8-bn:width=8" if name in STAGES else "small-cnn", fed)
    own = {**OWN[name], **({"capacities": "3-1"} if name == "depthfl" else {})}
    algorithm = alg.build(name, steps=1, batch_size=8, participation=1.0, **own)
    rounds = 6 if name == "progfed" else 1
    return ct.fit(module, fed, algorithm, rounds=rounds, progress=False, out=root / name), root / name


@pytest.mark.parametrize("name", OWN)
def test_files_hold_each_ones_own_model(name: str, tmp_path: Path) -> None:
    run, folder = saved(name, tmp_path)
    loaded = ct.load(folder)
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for i, (client, again) in enumerate(zip(run.clients, loaded.clients, strict=True)):
        assert torch.equal(client.module()(x), again.module()(x))
        file = ct.export.save(folder, i, folder / f"{i}.safetensors")
        torch.testing.assert_close(ct.export.load(file)(x), client.module()(x), rtol=1e-4, atol=1e-5)


def test_the_size_of_everybodys_model_is_told() -> None:
    fed = ct.data.federate("digits", clients=4, partition="iid", seed=0)
    algorithm = alg.heterofl(capacities="1-0.5", steps=1, batch_size=8, participation=1.0)
    run = ct.fit(ct.models.build("mlp:width=8", fed), fed, algorithm, rounds=1, progress=False)
    wide, narrow = (64 * h + h + h * h + h + h * 10 + 10 for h in (8, 4))
    assert run.client_summary["parameters"] == [wide, wide, narrow, narrow]
