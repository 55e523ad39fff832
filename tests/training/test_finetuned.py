"""The closing fine-tune, for every method: in closed form, in each client's own form, and beside the state."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import coterie as ct
from coterie.algorithms import update
from coterie.core.errors import UserError
from coterie.engines import Serial, Vectorized
from coterie.measure.compare import Comparison, MethodRuns, RunData
from coterie.store import flatten
from coterie.training.experiment import Experiment
from coterie.training.run import Run
from laws import COMMON, METHODS, STAGES
from sample_by_sample import answers
from toys import PLAIN, Quadratic, experiment, golden, net, play, ragged

alg = ct.algorithms
A, B = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2, 3, 4], [1.0, -1, 2, 1]))
C, D = (torch.tensor(v, dtype=torch.float64) for v in ([2.0, 1, 1, 2], [0.0, 1, -1, 2]))
TUNED = {"finetune_epochs": 2, "finetune_lr": 0.05}


def descended(x: torch.Tensor, slope: torch.Tensor, middle: torch.Tensor, lr: float, steps: int) -> torch.Tensor:
    """Momentum 0.9 on slope/2 (x - middle)^2, by hand."""
    buffer = torch.zeros_like(x)
    for _ in range(steps):
        buffer = 0.9 * buffer + slope * (x - middle)
        x = x - lr * buffer
    return x


@pytest.mark.parametrize("engine", [Serial(), Vectorized(2)], ids=["serial", "vectorized"])
@pytest.mark.parametrize("method", ["fedavg", "fedavg-ft", "fedper", "dfedalt", "dfedpgp", "scaffold", "ditto"])
def test_in_closed_form(method: str, engine: Any) -> None:
    """From each client's own model after aggregation; lr where no other rate is given, a momentum of its own."""
    own = {"topology": "ring"} if method.startswith("d") and method != "ditto" else {"participation": 1.0}
    own |= {"personal": "v"} if method in ("fedper", "dfedalt", "dfedpgp") else {}
    algorithm = alg.build(method, **PLAIN, **own, lr=0.02, epochs=1, finetune_epochs=3, finetune_momentum=0.9)
    e = experiment(Quadratic(), golden(), algorithm, engine)
    state = play(e, 2).state
    mixed = e.program.models(state)
    (form,) = e.program.finetune(state, e.everybody(1))
    torch.testing.assert_close(form.models["u"], descended(mixed["u"], A, B, 0.02, 3), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(form.models["v"], descended(mixed["v"], C, D, 0.02, 3), rtol=1e-12, atol=1e-12)


ROWS = {name: settings for name, settings in METHODS.values() if name not in ("dispfl", "fedbabu", "fedavg-ft")}


@pytest.mark.parametrize("name", ROWS)
def test_every_method_has_it_and_goes_on_as_without(name: str) -> None:
    """The state is the same to the last bit, clients are the tuned models, and those are what was measured."""
    kind = "residual" if name in STAGES else "mlp"

    def made(**more: Any) -> Any:
        algorithm = alg.build(name, **{**COMMON, **ROWS[name], **more})
        return experiment(net(kind), ragged(kind), algorithm, rounds=4)

    e, plain = made(**TUNED), made()
    now, without = play(e, 2), play(plain, 2)
    measured = e.values(now.state, now.after_train, 3)
    for k, v in flatten(without.state).items():
        assert torch.equal(v, flatten(now.state)[k]), k
    assert torch.equal(
        measured["after_mix"].nan_to_num(),
        plain.values(without.state, without.after_train, 3)["after_mix"].nan_to_num(),
    )
    clients = e.clients(now.state)
    assert not any(client.shared for client in clients)
    assert answers(e, clients[4], 4) == pytest.approx(float(measured["after_finetune"][4]))
    moved = plain.clients(without.state)[4]
    assert any(not torch.equal(v, clients[4].personal[k]) for k, v in (moved.shared | moved.personal).items())


def test_some_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    e = experiment(net("mlp"), ragged("mlp"), alg.fedavg(**COMMON, participation=3, **TUNED))
    state = play(e, 1).state
    whole = e.clients(state)
    monkeypatch.setattr(update, "NUMBERS", 1)
    assert len(list(e.program.finetune(state, e.everybody(0)))) == 5
    for left, right in zip(whole, e.clients(state), strict=True):
        assert all(torch.equal(v, right.personal[k]) for k, v in left.personal.items())


def test_small_clients_tune_what_they_hold() -> None:
    """The narrow model that a client holds, tuned by itself: as ``local`` trains it, in full batches."""
    settings = {**COMMON, "epochs": 1, "participation": 1.0, "capacities": "1x2-0.5x3", "batch_size": None}
    fed = ragged("mlp")
    e = experiment(net("mlp"), fed, alg.heterofl(**settings, **TUNED))
    state = play(e, 2).state
    small, u = net("mlp").at_width(0.5).double(), state.u
    frozen = {"1.weight": u["1.weight"][:4], "1.bias": u["1.bias"][:4], "3.weight": u["3.weight"][:, :4]}
    small.load_state_dict(frozen | {"3.bias": u["3.bias"]})
    own = [(fed.x[fed.train[4]], fed.y[fed.train[4]])]
    steps = {**PLAIN, "momentum": 0.9, "lr": 0.05, "epochs": 2}
    alone = play(experiment(small, ct.data.from_tensors(own, own, classes=3), alg.local(**steps)), 1).state.x
    tuned = e.clients(state)[4].personal
    assert tuned.keys() == alone.keys()
    for k, v in alone.items():
        torch.testing.assert_close(tuned[k], v[0], rtol=1e-12, atol=1e-12)


def test_a_run_with_it_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own protocol in every evaluated row, clients as they were measured, and the same bits when continued."""
    fed = ct.data.federate("synthetic:size=200", clients=4, partition="dirichlet:0.5")
    algorithm = alg.fedavg(participation=2, epochs=1, batch_size=16, lr=0.05, quantize=8, finetune_epochs=2)

    def run(folder: str, resume: bool = False) -> Run:
        how: dict[str, Any] = {"rounds": 4, "progress": False, "evaluate_every": 2, "resume": resume}
        return ct.fit(ct.models.build("logreg", fed), fed, algorithm, out=tmp_path / folder, **how)

    whole = run("a")
    tuned = [row["personal_accuracy_after_finetune"] for row in whole.history]
    assert [value is None for value in tuned] == [True, False, True, False]
    assert whole.summary["personal_accuracy"]["after_finetune"]["final"] == tuned[-1]
    for i, client in enumerate(ct.load(tmp_path / "a").clients):
        x, y = fed.test_x[fed.test[i]], fed.test_y[fed.test[i]]
        assert torch.equal(client.module()(x), whole.clients[i].module()(x))
        right = float((client.module()(x).argmax(1) == y).double().mean())
        assert right == pytest.approx(whole.client_summary["accuracy"]["after_finetune"][i])
    play = Experiment.run_round

    def interrupted(self: Experiment, before: Any, t: int, evaluate: bool) -> Any:
        if t == 2:
            raise KeyboardInterrupt
        return play(self, before, t, evaluate)

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "run_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run("b")
    for left, right in zip(whole.clients, run("b", resume=True).clients, strict=True):
        assert all(torch.equal(v, right.personal[k]) for k, v in left.personal.items())


def test_sparse_models_are_not_filled() -> None:
    with pytest.raises(UserError, match="dispfl keeps most entries"):
        alg.dispfl(finetune_epochs=1)


def test_a_verdict_is_of_the_models_that_clients_end_with() -> None:
    """FedAvg whose clients tune their copies is compared as it is deployed, not as it was averaged."""
    fed = ct.data.federate("digits:renamed=4", clients=6, partition="iid", seed=0)
    plain = {"lr": 0.1, "batch_size": 16, "epochs": 1}
    runs = {
        "shared": ct.algorithms.fedavg(**plain),
        "tuned": ct.algorithms.fedavg(**plain, finetune_epochs=5),
    }
    done = {name: ct.fit(ct.models.build("logreg", fed), fed, a, rounds=2, progress=False) for name, a in runs.items()}
    told = {k: RunData(r.config, r.history, r.summary, r.client_summary) for k, r in done.items()}
    methods = [MethodRuns(name, [run]) for name, run in told.items()]
    (first, lead), how = Comparison(methods).answer, Comparison(methods).details[0]
    tuned, shared = (done[name].client_summary["accuracy"] for name in ("tuned", "shared"))
    better = sum(a > b for a, b in zip(tuned["after_finetune"], shared["after_mix"], strict=True))
    assert better > 4
    assert first.startswith("tuned has the highest personal accuracy after fine-tuning, ")
    assert f"ahead of shared ({100 * fmean(shared['after_mix']):.1f} %)" in lead
    assert f"better for {better} of 6 clients" in lead
    assert "personal accuracy after fine-tuning where a method does so, else after aggregation" in how
    said = "FLOPs and seconds are without the final fine-tuning of tuned."
    assert said in Comparison(methods).legend("*")[0]
    of = {column.title: column.of for column in Comparison(methods).columns}
    assert of["FLOPs"] == of["seconds"] == "without the final fine-tuning"
    assert "fine-tuning" not in Comparison(methods[:1]).legend("*")[0]
