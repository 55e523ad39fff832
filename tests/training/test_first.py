"""First models: one for everybody, or everybody's own draw."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.cluster.shard import outline
from coterie.core import rng as rng
from coterie.core.errors import UserError
from coterie.engines import Engine, Vectorized
from coterie.store import RunFolder
from coterie.training.experiment import Experiment
from coterie.training.initial_models import first_models
from laws import COMMON, METHODS, OF, build, kind_like
from shards import SHARD_OF, assert_close, conduct, put_together, shards_of
from toys import STAGED, ZOO, experiment, net, play, ragged

# Methods whose clients keep something from round to round, but begin with the server's model, or with zeros.
KEEPING = ("scaffold", "fedrod", "pfedme")


def fresh(kind: str) -> nn.Module:
    """A small model that draws from torch's generator."""
    module = (ZOO | STAGED)[kind]().double()
    if kind in ZOO:
        module.at_width = ZOO[kind]
    return module


def by_hand(kind: str, client: int, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(rng.key(seed, "init", client))
    return {k: v.detach() for k, v in fresh(kind).state_dict().items()}


def scattered(kind: str, algorithm: Algorithm, engine: Engine | None = None) -> Experiment:
    e = experiment(net(kind), ragged(kind), algorithm, engine, rounds=8)
    given = experiment(net(kind), ragged(kind), ct.algorithms.local()).model
    return replace(e, first=first_models(lambda: fresh(kind), given, algorithm, 0))


def test_a_full_graph_meets_at_the_mean_of_the_draws() -> None:
    """Nobody trains: one exchange, and everybody has the mean of what torch draws with the clients' own keys."""
    e = scattered("mlp", ct.algorithms.dfedavg(topology="full", steps=0))
    draws = [by_hand("mlp", i) for i in range(5)]
    start, end = (e.program.models(play(e, rounds).state) for rounds in (0, 1))
    for k in draws[0]:
        drawn = torch.stack([draw[k] for draw in draws])
        assert torch.equal(start[k], drawn)
        assert not torch.equal(drawn[0], drawn[1])
        torch.testing.assert_close(end[k], drawn.mean(0).expand_as(drawn))


def test_around_a_server_only_what_is_personal_is_the_clients_own() -> None:
    e = scattered("mlp", ct.algorithms.fedper(participation=1.0, steps=0))
    state = e.start().state
    assert all(torch.equal(v, e.model.start[k]) for k, v in state.u.items())
    assert sorted(state.v) == ["3.bias", "3.weight"]
    assert all(torch.equal(v[i], by_hand("mlp", i)[k]) for k, v in state.v.items() for i in range(5))


@pytest.mark.parametrize("row", METHODS)
def test_every_method_begins_apart_or_says_that_it_cannot(row: str) -> None:
    e = scattered(kind_like(row, "groupnorm"), build(row))
    if row in OF[row].stateless or METHODS[row][0] in KEEPING or row == "feddropout, quantized":
        with pytest.raises(UserError, match="leave init out"):
            e.check()
        return
    e.check()
    models = e.program.models(e.start().state)
    assert any(not torch.equal(v[0], v[1]) for v in models.values())


@pytest.mark.parametrize("row", ["dfedpgp", "dispfl", "fedbabu", "pfedlmt", "scaffold-p", "ditto", "fedlmt, ring"])
def test_engines_and_shards_agree(row: str) -> None:
    e = scattered("mlp", build(row))
    now = play(e, 2)
    other = replace(e, engine=Vectorized(3))
    assert_close(other.saved(play(other, 2)), e.saved(now))
    shards = shards_of(e, SHARD_OF[2])
    conduct(shards, "start")
    conduct(shards, "run_round", 0, False)
    results = conduct(shards, "run_round", 1, False)
    assert_close(put_together(shards, [saved for _, saved in results], outline(e).stacked), e.saved(now))


def test_a_run_draws_remembers_and_goes_on(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = ct.data.federate("synthetic:size=200", clients=4, partition="iid")
    algorithm = ct.algorithms.dfedalt(topology="ring", epochs=1)
    append = RunFolder.append

    def fit(init: str, **settings: Any) -> ct.Run:
        model = ct.models.build("mlp:width=4", fed)
        return ct.fit(model, fed, algorithm, rounds=2, init=init, progress=False, **settings)

    def stop(folder: RunFolder, row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt
        append(folder, row)

    run, same = fit("per-client"), fit("common")
    assert (run.config["init"], same.config["init"]) == ("per-client", "common")
    assert run.history[0]["consensus_distance"] > 2 * same.history[0]["consensus_distance"]
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            fit("per-client", out=tmp_path / "a")
    again = fit("per-client", out=tmp_path / "a", resume=True)
    assert all(torch.equal(v, again.final[k]) for k, v in run.final.items())


def test_what_cannot_be_drawn_is_refused() -> None:
    fed = ct.data.federate("synthetic:size=200", clients=4, partition="iid")
    changed = ct.models.build("logreg", fed)
    with torch.no_grad():
        next(changed.parameters()).add_(1)
    own = nn.Sequential(nn.Flatten(), nn.Linear(fed.input_shape[0], 10))
    for model, said in (
        (own, "a function that builds it"),
        (changed, "values of its own"),
        (lambda: ct.models.build("logreg", fed), "builds the same again"),
    ):
        with pytest.raises(UserError, match=said):
            ct.fit(model, fed, ct.algorithms.local(**COMMON), rounds=1, init="per-client", progress=False)
    with pytest.raises(UserError, match="did you mean per-client"):
        ct.fit(own, fed, ct.algorithms.local(), rounds=1, init="per_client")
