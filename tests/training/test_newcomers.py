"""Clients who come later: kept out of training, then given what the others share and trained on their own samples."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import coterie as ct
from coterie.core.errors import UserError
from coterie.data.sources import another_site
from coterie.engines import Serial
from coterie.export.formats import silence
from coterie.models.model import Model, cross_entropy, products
from coterie.training.experiment import Experiment
from coterie.training.newcomers import hold_out, personalized
from helpers_cli import Cli, assert_same_run, reseal
from laws import FIRST, build, kind_like
from toys import net, ragged

PLAIN = {"lr": 0.05, "lr_decay": 1.0, "momentum": 0.0, "weight_decay": 0.0, "batch_size": None, "epochs": 3}


@cache
def federation() -> ct.data.Federation:
    return ct.data.federate("synthetic:size=240,classes=3", clients=6, partition="dirichlet:1", seed=0)


def trained(method: str, rounds: int = 2, model: str = "mlp:width=8", **more: Any) -> ct.Run:
    fed, given = federation(), {"engine": "serial", "device": "cpu", "progress": False, "holdout_clients": 2, **more}
    settings = given.pop("settings", {})
    algorithm = ct.algorithms.build(method, **settings)
    return ct.fit(ct.models.build(model, fed), fed, algorithm, rounds=rounds, **given)


def test_who_comes_later() -> None:
    fed = federation()
    stay, later = hold_out(fed, 0.34, seed=3)
    assert later is not None
    assert (stay.clients, later.clients) == (4, 2)
    drawn = sorted(np.random.default_rng(ct.core.rng.key(3, "newcomers")).permutation(6)[:2].tolist())
    kept = [i for i in range(6) if i not in drawn]
    for some, which in ((stay, kept), (later, drawn)):
        for i, client in enumerate(which):
            assert torch.equal(some.x[some.train[i]], fed.x[fed.train[client]])
            assert torch.equal(some.y[some.train[i]], fed.y[fed.train[client]])
            assert torch.equal(some.test_x[some.test[i]], fed.test_x[fed.test[client]])
    assert len(stay.x) + len(later.x) == len(fed.x)
    assert hold_out(fed, 0, 0) == (fed, None)
    assert hold_out(fed, 0.01, 0)[0].clients == 5
    for wrong in (6, 1.0, 9):
        with pytest.raises(UserError, match="of 6 clients out of training: keep fewer out"):
            hold_out(fed, wrong, 0)


def test_who_takes_only_some_of_their_models_leaves_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    fed = federation()
    model = Model(ct.models.build("logreg", fed), cross_entropy)
    groups = personalized(Experiment.of(model, fed, ct.algorithms.fedavg(epochs=1), Serial(), 0, 1), model.start, fed)
    before = torch.backends.cudnn.allow_tf32
    assert next(groups).models
    assert torch.backends.cudnn.allow_tf32 == before
    with products("tf32"):
        pass


def test_the_others_never_see_them() -> None:
    """Training is that of a federation which does not have them."""
    stay, _ = hold_out(federation(), 2, seed=0)
    run = trained("dfedalt", settings={"topology": "ring"})
    alone = ct.fit(
        ct.models.build("mlp:width=8", stay),
        stay,
        ct.algorithms.dfedalt(topology="ring"),
        rounds=2,
        engine="serial",
        device="cpu",
        progress=False,
    )
    seconds = {"seconds", "evaluation_seconds"}
    assert [{k: v for k, v in row.items() if k not in seconds} for row in run.history] == [
        {k: v for k, v in row.items() if k not in seconds} for row in alone.history
    ]
    for one, other in zip(run.clients, alone.clients, strict=True):
        assert all(torch.equal(v, other.shared[k]) for k, v in one.shared.items())


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


@pytest.mark.parametrize(
    ("method", "settings", "trains"),
    [
        ("fedper", {"participation": 1.0}, ("5.weight", "5.bias")),
        ("dfedalt", {"topology": "ring", "personal_epochs": 2, "personal_lr": 0.3}, ("5.weight", "5.bias")),
        ("fedavg", {"participation": 1.0}, None),
        ("fedbabu", {"participation": 1.0, "finetune_epochs": 4, "finetune_lr": 0.02, "finetune_momentum": 0.9}, None),
    ],
)
def test_beside_a_plain_loop(method: str, settings: dict[str, Any], trains: tuple[str, ...] | None) -> None:
    """What a newcomer gets is what a loop in PyTorch with a frozen shared part gives."""
    run = trained(method, settings={**PLAIN, **settings})
    _, later = hold_out(federation(), 2, seed=0)
    assert later is not None
    assert run.newcomers is not None
    whole = [{**c.shared, **c.personal} for c in run.clients]
    if method == "fedbabu":  # the clients' models are tuned, the common one is in the state
        common = {k.partition("/")[2]: v for k, v in run.final.items() if k.startswith("u/")}
        common |= {k.partition("/")[2]: v[0] for k, v in run.final.items() if k.startswith("v/")}
    else:
        common = {k: torch.stack([c[k] for c in whole]).mean(0) for k in whole[0]}
    epochs = {"dfedalt": 2, "fedbabu": 4}.get(method, 3)
    lr, momentum = {"dfedalt": (0.3, 0.0), "fedbabu": (0.02, 0.9)}.get(method, (0.05, 0.0))
    for i in range(2):
        module = ct.models.build("mlp:width=8", federation())
        module.load_state_dict(common)
        x, y = later.x[later.train[i]], later.y[later.train[i]]
        test = later.test_x[later.test[i]], later.test_y[later.test[i]]
        assert run.newcomers["received"][i] == pytest.approx(accuracy(module, *test))
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(trains is None or name in trains)
        optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr, momentum)
        for _ in range(epochs):
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 10.0) if method != "fedbabu" else None
            optimizer.step()
        assert run.newcomers["personalized"][i] == pytest.approx(accuracy(module, *test))
        site = ct.export.personalize(run, later)[i]
        assert site.client.personal.keys() == set(trains or dict(module.named_parameters()))
        for name, value in {**site.client.shared, **site.client.personal}.items():
            torch.testing.assert_close(value, module.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("row", FIRST.values(), ids=FIRST)
def test_every_method(row: str) -> None:
    """Each gives newcomers something and lets them train, or says that it shares nothing."""
    kind = kind_like(row, "mlp")
    fed, algorithm = ragged(kind), build(row)
    run = ct.fit(
        net(kind), fed, algorithm, rounds=8, holdout_clients=1, evaluate_every=8, engine="serial", progress=False
    )
    newcomers = run.newcomers
    assert newcomers is not None
    assert len(run.clients) == fed.clients - 1
    found = newcomers["received"] + newcomers["personalized"]
    assert [value is None for value in found] == [algorithm.name == "local"] * 2
    _, later = hold_out(fed, 1, seed=0)
    assert later is not None
    if algorithm.name == "local":
        with pytest.raises(UserError, match="local shares nothing that a new site could begin with"):
            ct.export.personalize(run, later, model=net(kind))
        return
    (site,) = ct.export.personalize(run, later, model=net(kind))
    assert [site.received, site.trained] == found
    tested = later.test_x[later.test[0]], later.test_y[later.test[0]]
    assert accuracy(site.client.module(), *tested) == pytest.approx(site.trained)


def test_what_a_person_types(tmp_path: Path, cli: Cli) -> None:
    words = ["--data", "synthetic:size=240,classes=3", "--clients", "6", "--rounds", "1", "--model", "logreg"]
    done = cli.succeed("compare", "fedavg", "local", *words, "--holdout-clients", "0.3", "--out", "c", cwd=tmp_path)
    told = next(line for line in done.out.splitlines() if line.startswith("Newcomers: fedavg"))
    summary = json.loads((tmp_path / "c/fedavg-seed0/summary.json").read_text())["newcomers"]
    assert summary["clients"] == 2
    assert (
        f"fedavg {100 * summary['received']:.1f} % as received, {100 * summary['personalized']:.1f} % trained" in told
    )
    assert "local shares nothing that they could begin with." in told
    assert "Newcomers: clients that were kept out of training." in done.out
    assert json.loads((tmp_path / "c/fedavg-seed0/config.json").read_text())["data"]["clients"] == 4
    cli.succeed("run", "c/fedavg-seed0", "--out", "again", cwd=tmp_path)
    assert_same_run(tmp_path / "c/fedavg-seed0", tmp_path / "again")
    none = "is no number of clients"
    for number, said in (("6", "keeps 6 of 6 clients out of training"), ("2.5", none), ("inf", none)):
        cli.refuse("run", "fedavg", *words, "--holdout-clients", number, "--out", "n", cwd=tmp_path, names=(said,))


def table(path: Path, rows: int, seed: int, **columns: Any) -> str:
    """Rows of a few sites; ``columns``: others in place of the usual ones."""
    rng = np.random.default_rng(seed)
    age, ward = rng.integers(20, 90, rows), rng.choice(["icu", "general"], rows)
    values = {
        "site": [f"s{i % 4}" for i in range(rows)],
        "age": age,
        "ward": ward,
        "ill": np.where(age > 50, "yes", "no"),
    }
    values |= columns
    lines = [",".join(map(str, row)) for row in zip(*values.values(), strict=True)]
    path.write_text("\n".join([",".join(values), *lines]) + "\n")
    return path.name


def test_a_new_site(tmp_path: Path, cli: Cli) -> None:
    """Its table is prepared as those of the run were, and its model goes into a file."""
    table(tmp_path / "all.csv", 120, seed=0)
    small = ["--data", "csv:all.csv,target=ill,client=site", "--rounds", "2", "--model", "mlp:width=4"]
    cli.succeed("run", "fedper", *small, "--out", "run", cwd=tmp_path)
    new = table(tmp_path / "new.csv", 40, seed=1, age=np.arange(40) + 1000)
    done = cli.succeed("personalize", "run", "--data", new, "--out", "a.safetensors", "--epochs", "3", cwd=tmp_path)
    assert "fedper for new.csv: 30 training samples, accuracy on 10 test samples" in done.out
    columns = json.loads((tmp_path / "run/config.json").read_text())["columns"]
    fed = another_site({"source": "csv", "target": "ill", "client": "site"}, str(tmp_path / new), columns, seed=0)
    ages = (np.arange(40) + 1000 - columns["mean"][0]) / columns["std"][0]
    assert sorted(torch.cat([fed.x, fed.test_x])[:, 0].tolist()) == pytest.approx(ages.tolist())
    (site,) = ct.export.personalize(tmp_path / "run", fed, epochs=3)
    module = ct.export.load(tmp_path / "a.safetensors")
    assert torch.equal(module(fed.x), site.client.module()(fed.x))
    assert f"{100 * site.trained:.1f} % trained" in done.out


@pytest.mark.parametrize("target", ["ill", "age"])
def test_a_whole_model_takes_the_rows_of_a_table(tmp_path: Path, target: str) -> None:
    """What is standardized in training is standardized in the file, and numbers come out in their own units."""
    numbers = {"standardize": "all", "task": "regression"} if target == "age" else {}
    options = {"target": target, "client": "site", **numbers}
    fed = ct.data.from_csv(table_in(tmp_path), **options)
    loss = "mse" if target == "age" else None
    method = ct.algorithms.fedavg(participation=1.0, epochs=1)
    run = ct.fit(ct.models.build("mlp:width=4", fed), fed, method, rounds=1, loss=loss, progress=False)
    file = ct.export.save(run, 0, tmp_path / "a.pt")
    with silence():  # that TorchScript has successors
        model = torch.jit.load(str(file))
    known = fed.columns
    mean, std = (torch.tensor([s[i] for s in known.scales]) for i in (0, 1))
    raw = fed.test_x * std + mean  # the rows as the table has them
    expected = run.clients[0].module()(fed.test_x).detach()
    if target == "age":
        expected = expected * known.target_scales[0].std + known.target_scales[0].mean
        assert 20 < float(expected.mean()) < 90
    torch.testing.assert_close(model(raw), expected, rtol=1e-4, atol=1e-4)


def table_in(folder: Path) -> Path:
    table(folder / "t.csv", 80, seed=0)
    return folder / "t.csv"


def test_a_new_site_that_does_not_fit(tmp_path: Path, cli: Cli) -> None:
    table(tmp_path / "all.csv", 120, seed=0)
    small = ["--data", "csv:all.csv,target=ill,client=site", "--rounds", "1", "--model", "logreg"]
    cli.succeed("compare", "fedavg", "local", *small, "--out", "c", cwd=tmp_path)

    def refused(run: str, data: str, *said: str, out: str = "a.safetensors") -> None:
        cli.refuse("personalize", run, "--data", data, "--out", out, cwd=tmp_path, names=said)

    new = table(tmp_path / "new.csv", 40, seed=1)
    refused("c/local-seed0", new, "local shares nothing that a new site could begin with")
    refused("c/fedavg-seed0", "none.csv", "none.csv cannot be read")
    refused("c/fedavg-seed0", new, "does not tell the format", out="a.bin")
    refused("c/fedavg-seed0", "digits", "has learned from a table, and digits is none")
    refused("c", new, "config.json")
    refused(
        "c/fedavg-seed0", table(tmp_path / "b.csv", 40, 1, ill=["maybe"] * 40), "'maybe'", "its classes are no, yes"
    )
    refused(
        "c/fedavg-seed0",
        table(tmp_path / "b.csv", 40, 1, ward=range(40)),
        "ward",
        "holds numbers, and texts in the run",
    )
    refused("c/fedavg-seed0", table(tmp_path / "b.csv", 40, 1, extra=range(40)), "has not learned from extra")
    config = tmp_path / "c/fedavg-seed0/config.json"
    known = json.loads(config.read_text())
    for field, value, said in (("mean", [0.0], "too few means or too many"), ("std", [0.0] * 3, "columns.std[0]")):
        config.write_text(json.dumps({**known, "columns": {**known["columns"], field: value}}))
        reseal(config.parent)
        refused("c/fedavg-seed0", new, said)
        words = ["export", "c/fedavg-seed0", "--client", "0", "--out", "a.safetensors"]
        cli.refuse(*words, cwd=tmp_path, names=(said,))
    assert not (tmp_path / "a.safetensors").exists()
