"""A batch of one sample, where a model takes statistics of the batch: what is left out, who idles, what is refused."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.core.schema import Precision
from coterie.data import Federation
from coterie.data.batches import Amount, Batches, Samples
from coterie.engines import Engine, Serial, Vectorized
from coterie.training.experiment import Experiment
from same_numbers import graphed_for
from toys import experiment, models, net, ragged

SIZES = (9, 4, 13, 1, 8)  # in batches of four: two clients have one sample left over, one has no other
LOCAL = ct.algorithms.local(epochs=2, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.01, clip=None, lr_decay=1.0)


def normalized(**options: bool) -> nn.Module:
    """A model whose channels are single numbers: one sample has no variance."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6, **options), nn.ReLU(), nn.Linear(6, 3)
        return nn.Sequential(*layers).double()


@cache
def federation(sizes: tuple[int, ...] = SIZES) -> Federation:
    return ragged("mlp", sizes=sizes)


@cache
def of(kind: str) -> Experiment:
    module = normalized() if kind == "normalized" else net(kind)
    return experiment(module, federation(), LOCAL)


@pytest.mark.parametrize("sizes", [(9, 4, 13, 1, 8), (2, 3, 5), (0, 1, 6)])
@pytest.mark.parametrize("batch_size", [2, 3, 4, None])
@pytest.mark.parametrize("amount", [Amount(epochs=3), Amount(steps=5)])
def test_no_batch_has_one_sample(sizes: tuple[int, ...], batch_size: int | None, amount: Amount) -> None:
    """Counted by hand: a pass is cut into batches, and a last one of one sample is dropped."""
    x = torch.arange(sum(sizes))
    samples = Samples(x, x, torch.split(x, list(sizes)))
    batches = Batches(samples, np.arange(len(sizes)), amount, batch_size, key=5, smallest=2)
    seen = 0
    for client, size in enumerate(sizes):
        width = size if batch_size is None else min(size, batch_size)
        pass_of = [min(width, size - k) for k in range(0, size, max(width, 1))]
        pass_of = pass_of[:-1] if pass_of and pass_of[-1] == 1 else pass_of
        many = 0 if not pass_of else 5 if amount.steps else 3 * len(pass_of)
        wanted = [pass_of[k % len(pass_of)] for k in range(many)]
        stream = batches.one(client)
        drawn = [stream.batch(k).y.tolist() for k in range(stream.steps)]
        assert [len(batch) for batch in drawn] == wanted
        for k in range(0, many - len(pass_of) + 1, max(len(pass_of), 1)):
            one_pass = [i for batch in drawn[k : k + len(pass_of)] for i in batch]
            assert len(set(one_pass)) == len(one_pass) >= size - 1
        seen += sum(wanted)
    assert batches.seen == seen


def test_every_sample_has_its_turn() -> None:
    x = torch.arange(9)
    samples = Samples(x, x, (x,))
    stream = Batches(samples, np.arange(1), Amount(epochs=40), 4, key=5, smallest=2).one(0)
    left = [set(range(9)) - {i for k in (0, 1) for i in stream.batch(2 * e + k).y.tolist()} for e in range(40)]
    assert set.union(*left) == set(range(9))


def test_only_who_cannot_train_on_one_sample_leaves_it_out() -> None:
    """Batch normalization of images has many numbers per channel, and a batch of one trains as it always did."""
    assert {kind: of(kind).smallest_batch for kind in ("normalized", "batchnorm", "groupnorm", "mlp")} == {
        "normalized": 2,
        "batchnorm": 1,
        "groupnorm": 1,
        "mlp": 1,
    }


ENGINES: dict[str, Engine] = {
    "vectorized": Vectorized(5),
    "vectorized, exact": Vectorized(2, exact=True),
    "graphed": graphed_for(3),
    "graphed alone": graphed_for(1),
}


@cache
def one_by_one() -> dict[str, Tensor]:
    return models(of("normalized"), rounds=2)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_agree(engine: str) -> None:
    e = of("normalized").changed(engine=ENGINES[engine])
    for k, v in models(e, rounds=2).items():
        torch.testing.assert_close(v, one_by_one()[k], rtol=1e-10, atol=1e-10)


def test_it_is_what_torch_makes_of_the_same_batches() -> None:
    e = of("normalized")
    for client in range(len(SIZES)):
        module = normalized().train()
        for t in range(2):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
            stream = e.round(t).batches(0, Amount(epochs=2), 4).one(client)
            for k in range(stream.steps):
                batch = stream.batch(k)
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(batch.x), batch.y).backward()
                optimizer.step()
        for k, v in (*module.named_parameters(), *module.named_buffers()):
            torch.testing.assert_close(one_by_one()[k][client], v.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_who_does_not_train_is_named(precision: Precision, capsys: pytest.CaptureFixture[str]) -> None:
    module = normalized().float()
    fed = ragged("mlp", torch.float32, SIZES)
    run = ct.fit(module, fed, LOCAL, rounds=1, engine="serial", precision=precision)
    assert capsys.readouterr().err.splitlines()[0].startswith("client 3 has one sample, on which alone this model")
    mine = run.clients[3].shared | run.clients[3].personal
    assert all(torch.equal(v, mine[k]) for k, v in (*module.named_parameters(), *module.named_buffers()))
    assert run.history[0]["train_loss"] > 0


def test_a_model_that_trains_on_one_sample_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ct.fit(net("mlp"), federation(), LOCAL, rounds=1, engine="serial")
    assert "one sample" not in capsys.readouterr().err


# The sizes of the clients, the batch size, options of the normalization, and the sentence.
REFUSED = {
    "batches of one": ((9, 4), 1, {}, "there are batches of one sample only: choose two samples or more"),
    "clients of one": ((1, 1), 4, {}, "there are clients of one sample only: choose two samples or more"),
    "a test sample alone": (
        (9, 4),
        4,
        {"track_running_stats": False},
        "a test sample of client 0 is evaluated alone.*: give its batch normalization running statistics",
    ),
}


@pytest.mark.parametrize("engine", ["auto", "serial", "vectorized"])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(kind: str, engine: str) -> None:
    sizes, batch_size, options, sentence = REFUSED[kind]
    whole = ragged("mlp", sizes=sizes)
    pairs = [(whole.x[own], whole.y[own]) for own in whole.train]
    tests = [(x[: 1 + i], y[: 1 + i]) for i, (x, y) in enumerate(pairs)]
    fed = ct.data.from_tensors(train=pairs, test=tests if options else pairs, classes=3)
    algorithm = ct.algorithms.local(epochs=1, batch_size=batch_size)
    with pytest.raises(ct.UserError, match=sentence):
        ct.fit(normalized(**options), fed, algorithm, rounds=1, engine=engine, progress=False)


def test_evaluation_by_the_batch_agrees_on_all_engines() -> None:
    """Without running statistics a model is evaluated by those of each client's own test samples."""
    module, fed = normalized(track_running_stats=False), ragged("mlp", sizes=(9, 5, 8))
    found = [Serial(), Vectorized(3), Vectorized(1)]
    rows = [experiment(module, fed, LOCAL, engine) for engine in found]
    measured = [e.run_round(e.start(), 0, evaluate=True)[1]["personal_accuracy_after_mix"] for e in rows]
    assert measured[0] == measured[1] == measured[2]


def test_the_one_model_is_refused_where_a_sample_of_all_clients_is_left_alone() -> None:
    """Batches of all clients' samples are as wide as the largest client: four, four, and one of nine."""
    x, y = torch.randn(9, 16), torch.arange(9) % 3
    tests = list(zip(x.split([3, 4, 2]), y.split([3, 4, 2]), strict=True))
    fed = ct.data.from_tensors(train=[(x[:4], y[:4])] * 3, test=tests, classes=3)
    algorithm = ct.algorithms.fedavg(epochs=1, batch_size=2, participation=1.0)
    with pytest.raises(ct.UserError, match="a test sample of all clients together is evaluated alone"):
        ct.fit(normalized(track_running_stats=False).float(), fed, algorithm, rounds=1, progress=False)
