"""One model on the samples of all clients, beside plain torch on the concatenated data; nothing of it is federated."""

from typing import Any

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.core.errors import UserError
from coterie.engines import Serial, Vectorized
from coterie.measure.compare.answer import Leads, answer
from coterie.measure.compare.gains import gains
from gained import told
from helpers_cli import Cli
from same_numbers import graphed_for
from shards import SHARD_OF, assert_close, conduct, shards_of
from toys import experiment, net, play, ragged

SETTINGS: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "clip": 1.0, "lr_decay": 0.5}


def pooled(engine: Any = None, rounds: int = 3, **settings: Any) -> Any:
    algorithm = ct.algorithms.pooled(**{**SETTINGS, **settings})
    return experiment(net("mlp"), ragged("mlp"), algorithm, engine, rounds=rounds)


def test_beside_plain_torch_on_the_concatenated_data() -> None:
    """Three rounds of two passes over all samples, which one batch holds."""
    e = pooled(batch_size=None, epochs=2)
    module = net("mlp").double()
    everything = torch.cat([*e.train.owned])
    x, y = e.train.x[everything], e.train.y[everything]
    for t in range(3):
        sgd = torch.optim.SGD(module.parameters(), 0.1 * 0.5**t, momentum=0.9, weight_decay=0.01)
        for _ in range(2):
            sgd.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            sgd.step()
    found = play(e, 3).state.u
    for k, v in module.named_parameters():
        torch.testing.assert_close(found[k], v.detach(), rtol=1e-10, atol=1e-12)


def test_a_round_is_as_many_gradients_as_one_of_all_clients_and_sends_nothing() -> None:
    e, settings = pooled(batch_size=4, epochs=2), {**SETTINGS, "batch_size": 4, "epochs": 2}
    served = experiment(net("mlp"), ragged("mlp"), ct.algorithms.fedavg(participation=1.0, **settings))
    now, row = e.run_round(e.start(), 0, evaluate=True)
    assert row["flops"] == served.run_round(served.start(), 0, evaluate=False)[1]["flops"]
    assert (row["bytes_sent"], row["messages_sent"], row["consensus_distance"]) == (0, 0, 0)
    clients = e.clients(now.state)
    assert all(torch.equal(v, clients[0].shared[k]) for c in clients for k, v in c.shared.items())


def test_engines_and_shards_agree() -> None:
    e = pooled(Serial(), batch_size=4, epochs=2, keep_optimizer_state=True)
    now, expected = e.run_round(play(e, 1), 1, evaluate=False)
    for engine in (Vectorized(3), graphed_for(2)):
        other = pooled(engine, batch_size=4, epochs=2, keep_optimizer_state=True)
        assert_close(other.saved(play(other, 2)), other.saved(now))
    shards = shards_of(e, SHARD_OF[5])
    conduct(shards, "start")
    conduct(shards, "run_round", 0, False)
    results = conduct(shards, "run_round", 1, False)
    for _, saved in results:
        assert_close(
            {k: v for k, v in saved.items() if k.startswith("u/")}, {f"u/{k}": v for k, v in now.state.u.items()}
        )
    assert sum(part.costs.flops for part, _ in results) == expected["flops"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epochs": (1, 2)}, "give epochs one number"),
        ({"robust": "clip"}, "averages nothing"),
        ({"quantize": 8}, "sends nothing"),
    ],
    ids=["epochs", "robust", "quantize"],
)
def test_what_means_nothing_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        pooled(**settings).check()


def test_it_says_that_it_is_not_federated(cli: Cli, tmp_path: Any) -> None:
    small = ("--data", "synthetic:size=200", "--clients", "3", "--rounds", "1")
    done = cli.succeed("compare", "pooled", "local", *small, "--out", "a", cwd=tmp_path)
    assert "pooled trains one model on the samples of all clients in one place: it is not federated." in done.out
    assert "not federated" in cli.succeed("list", "pooled", cwd=tmp_path).out
    cli.refuse("run", "pooled", *small, "--drop-messages", "0.1", cwd=tmp_path, names=("pooled",))


@pytest.mark.parametrize(
    ("federated", "alone", "said"),
    [
        (0.6, 0.5, "fedper helps 2 of 2 clients and harms none, against training alone (local), "),
        (0.4, 0.5, "fedper helps none of 2 clients and harms 2, against training alone (local), "),
        (None, 0.5, "pooled helps 2 of 2 clients and harms none, against training alone (local), "),
        (0.4, 0.95, "Training alone (local) is best on average: fedper helps none of 2 clients and harms 2, "),
    ],
)
def test_the_answer_is_what_federating_gives(federated: float | None, alone: float, said: str) -> None:
    """What is not federated may be best on average, and then that is the next sentence."""
    means = {"pooled": 0.9, "local": alone} | ({} if federated is None else {"fedper": federated})
    methods = []
    for name, value in means.items():
        config = {"in_one_place": True} if name == "pooled" else {}
        one = told([value] * 2, [[value] * 2] * 2, name, config=config)
        one.runs[0].summary["personal_accuracy"] = {"after_mix": {"final": value, "std": 0.0}}  # type: ignore[typeddict-item]
        methods.append(one)
    first, lead = answer(methods, gains(methods), Leads("", "", {}))
    assert first.startswith(said)
    assert lead.startswith("pooled (90.0 %, not federated) is " if alone < 0.9 else "local (95.0 %) is ")
