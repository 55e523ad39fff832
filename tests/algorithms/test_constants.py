"""What training never changes of a model is there once: in no state, message or file of a client."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import coterie as ct
from coterie.core.tensors import entries, leaves, size_in_bytes
from coterie.engines.capture import flat, lifted
from coterie.engines.pieces import cut, in_turn
from coterie.models.model import Model, cross_entropy
from coterie.models.trials import settled
from coterie.net.setup.agreement import _constants
from coterie.training.config import fingerprint
from local_peers import participants, run_together
from same_numbers import graphed_for
from toys import experiment, models

HEAD = 16 * 3 + 3  # numbers
Pair = tuple[Tensor, Tensor]


def backbone() -> nn.Module:
    """Return layers whose outputs are exact in single precision, in whatever order they are summed."""
    layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
    with torch.no_grad():
        for p in layers.parameters():
            p.copy_(torch.randint(-8, 9, p.shape, generator=torch.Generator().manual_seed(1)) / 8)
    return layers.requires_grad_(False)


def head() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Linear(16, 3)


def net() -> nn.Module:
    return nn.Sequential(backbone(), head())


def sites(see: Callable[[Tensor], Tensor]) -> ct.data.Federation:
    """Return four clients of unequal size, whose samples somebody has looked at before."""
    g, drawn = torch.Generator().manual_seed(0), list[Pair]()
    for count in (9, 5, 7, 4) * 2:
        y = torch.randint(0, 3, (count,), generator=g)
        drawn.append((see(torch.randint(-8, 9, (count, 6), generator=g) / 8 + y[:, None]), y))
    return ct.data.from_tensors(train=drawn[:4], test=drawn[4:], classes=3)


def plain() -> ct.data.Federation:
    return sites(lambda x: x)


METHODS = {
    "fedavg": ct.algorithms.fedavg(participation=3, epochs=2, batch_size=4, momentum=0.5),
    "dfedsam": ct.algorithms.dfedsam(topology="ring", epochs=1, batch_size=4),
    "scaffold": ct.algorithms.scaffold(participation=3, epochs=1, batch_size=4),
    "ditto": ct.algorithms.ditto(participation=3, epochs=1, batch_size=4),
    "osgp": ct.algorithms.osgp(topology="random-push:2", epochs=1, batch_size=4, keep_optimizer_state=True),
}


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("method", METHODS)
def test_a_frozen_backbone_trains_as_a_head_on_its_features(method: str, engine: str) -> None:
    """To the last bit, in every number of every round but the FLOPs; and nothing more is sent."""
    how: dict[str, Any] = {"rounds": 3, "engine": engine, "progress": False, "device": "cpu"}
    whole = ct.fit(net, plain(), METHODS[method], **how)
    alone = ct.fit(lambda: nn.Sequential(head()), sites(backbone()), METHODS[method], **how)
    clock = {"seconds", "evaluation_seconds", "flops", "forward_flops"}
    for one, other in zip(whole.history, alone.history, strict=True):
        assert {k: v for k, v in one.items() if k not in clock} == {k: v for k, v in other.items() if k not in clock}
    for mine, theirs in zip(whole.clients, alone.clients, strict=True):
        for a, b in ((mine.shared, theirs.shared), (mine.personal, theirs.personal)):
            assert [*a] == [k.replace("0.", "1.", 1) for k in b]
            assert all(torch.equal(v, w) for v, w in zip(a.values(), b.values(), strict=True))


@pytest.mark.parametrize("chunk", [1, 3])
def test_replayed_steps_close_over_constants(chunk: int) -> None:
    args = net(), plain(), METHODS["fedavg"]
    slow, fast = models(experiment(*args), rounds=2), models(experiment(*args, graphed_for(chunk)), rounds=2)
    for name, value in slow.items():
        torch.testing.assert_close(fast[name], value, rtol=1e-5, atol=1e-6)


def test_a_program_takes_frozen_weights_as_inputs() -> None:
    """They stay where the model has them, and no part of a program that is compiled elsewhere holds them."""
    layer = nn.Linear(6, 4).requires_grad_(False)

    def body(x: Tensor) -> list[Tensor]:
        return [layer(x).sum() * x]

    x = torch.ones(2, 6)
    graph = flat(body, [x])
    weights = lifted(graph)
    assert [v.data_ptr() for v in weights] == [layer.weight.data_ptr(), layer.bias.data_ptr()]
    pieces = cut(graph, 1)
    assert not any(v.op == "get_attr" for piece in pieces for v in piece.module.graph.nodes)
    program = in_turn(graph, pieces, [lambda t, run=piece.module: run(*t) for piece in pieces])  # type: ignore[misc]
    wanted = body(x)[0]
    program([x, *weights])
    assert torch.equal(x, wanted)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("method", ["fedavg", "dfedsam"])
def test_states_messages_and_files_hold_what_trains(method: str, engine: str, tmp_path: Path) -> None:
    run = ct.fit(net, plain(), METHODS[method], rounds=2, engine=engine, out=tmp_path / "a", progress=False)
    for row in run.history:
        assert row["parameters_sent"] == row["messages_sent"] * HEAD
        assert row["bytes_sent"] == 4 * row["parameters_sent"]
    assert {k.split("/")[-1] for k in run.final if "/" in k} - {"after_train"} == {"1.weight", "1.bias"}
    assert size_in_bytes(run.final.values()) < 4 * HEAD * 10
    assert set(load_file(tmp_path / "a/clients/common.safetensors")) >= {"constant/0.0.weight", "constant/0.0.bias"}
    own = tmp_path / "a/clients/client-0002.safetensors"
    assert own.exists() == (method != "fedavg")
    assert all(k.endswith(("1.weight", "1.bias")) for k in (load_file(own) if own.exists() else ()))
    assert sum(run.client_summary["personal_parameters"]) == 0


def test_all_clients_and_all_copies_have_one_memory() -> None:
    e = experiment(net(), plain(), METHODS["fedavg"])
    weight = e.model.constants["0.0.weight"]
    modules = e.model.module, e.model.training, e.model.evaluation
    assert {m.get_parameter("0.0.weight").data_ptr() for m in modules} == {weight.data_ptr()}
    assert entries(leaves(e.start().state)) == HEAD
    assert e.program.message(e.model.start).keys() == {"1.weight", "1.bias"}


def test_the_first_lines_say_what_trains(capsys: pytest.CaptureFixture[str]) -> None:
    ct.fit(net, plain(), ct.algorithms.dfedalt(topology="ring", personal="1.bias"), rounds=1)
    assert capsys.readouterr().err.splitlines()[0] == (
        "model: 163 numbers, 51 train; 48 shared, 3 personal, 112 constant"
    )


class Tokens(nn.Module):
    """Positions and a mask, as transformers hold them, beside a counter."""

    positions: Tensor
    mask: Tensor
    seen: Tensor

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late, self.head = late, nn.Linear(6, 3)
        self.register_buffer("positions", torch.arange(6))
        self.register_buffer("mask", torch.tensor([0.0] * 5 + [-torch.inf]))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        if self.late and self.seen > 20:
            self.mask[0] -= 1
        out: Tensor = self.head((x[:, self.positions] + self.mask).softmax(1))
        return out


def test_buffers_that_no_pass_writes_are_constants() -> None:
    """Statistics of a batch normalization are written without a trace; all others leave one."""
    model = settled(Model(nn.Sequential(Tokens(), nn.BatchNorm1d(3)), cross_entropy), torch.randn(8, 6))
    assert model.constants.keys() == {"0.positions", "0.mask"}
    assert model.running == ("0.seen", "1.running_mean", "1.running_var", "1.num_batches_tracked")
    run = ct.fit(Tokens, plain(), METHODS["fedavg"], rounds=1, progress=False)
    assert run.clients[0].shared.keys() == {"head.weight", "head.bias", "seen"}
    assert torch.equal(run.clients[0].module().get_buffer("mask"), Tokens().mask)


def test_a_constant_that_is_written_later_is_refused() -> None:
    with pytest.raises(ct.UserError, match=r"the buffer mask changes in training, .*: write into it in every pass"):
        ct.fit(lambda: Tokens(late=True), plain(), ct.algorithms.fedavg(epochs=30), rounds=1, progress=False)


def test_a_folder_is_complete_without_the_module_that_it_began_with(tmp_path: Path) -> None:
    """What was frozen is in one file, which load, export, predictions and personalization read."""
    run = ct.fit(net, plain(), METHODS["fedavg"], rounds=1, out=tmp_path / "a", progress=False)
    x, other = plain().test_x, lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 3))
    again = ct.load(tmp_path / "a", model=other)
    assert torch.equal(again.clients[2].module()(x), run.clients[2].module()(x))
    assert torch.equal(again.clients[2].predict(x), run.clients[2].predict(x))
    assert again.clients[2].shared.keys() == run.clients[2].shared.keys()
    ct.export.save(again, 2, tmp_path / "mine.safetensors")
    assert torch.equal(load_file(tmp_path / "mine.safetensors")["0.0.weight"], backbone()[0].weight)  # type: ignore[index]
    new = plain()
    for source in (run, tmp_path / "a"):
        site = ct.export.personalize(source, new, model=other)[0]
        assert torch.equal(site.client.module().get_parameter("0.0.weight"), backbone()[0].weight)  # type: ignore[index]
    copied = ct.load(ct.load(tmp_path / "a", model=other).save(tmp_path / "b"), model=other)
    assert torch.equal(copied.clients[1].module()(x), run.clients[1].module()(x))
    with pytest.raises(ct.UserError, match=r"common\.safetensors.* does not fit the model: 0\.0\.bias is \[16\]"):
        ct.load(tmp_path / "a", model=nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(16, 3)))


def test_a_named_model_may_be_frozen_in_part(tmp_path: Path) -> None:
    """The name builds it whole again, and the folder says what of it was frozen."""

    def frozen() -> nn.Module:
        module = ct.models.build("mlp:width=8", classes=3, input_shape=(6,))
        module.get_submodule("1").requires_grad_(False)
        return module

    run = ct.fit(frozen(), plain(), METHODS["fedavg"], rounds=1, out=tmp_path / "a", progress=False)
    again = ct.load(tmp_path / "a")
    assert torch.equal(again.clients[0].module()(plain().x), run.clients[0].module()(plain().x))
    ct.export.save(tmp_path / "a", 0, tmp_path / "mine.safetensors")
    loaded = ct.export.load(tmp_path / "mine.safetensors")
    assert torch.equal(loaded(plain().x), run.clients[0].module()(plain().x))


def test_a_run_goes_on_with_its_own_constants(tmp_path: Path) -> None:
    def fit(build: Callable[[], nn.Module], rounds: int, **more: Any) -> ct.Run:
        return ct.fit(build, plain(), METHODS["dfedsam"], rounds=rounds, progress=False, **more)

    class Stop:
        name = "stop"

        def begin(self, *given: Any) -> str:
            return ""

        def round(self, row: Any) -> None:
            if row["round"] == 2:
                raise KeyboardInterrupt

        def end(self, summary: Any) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        fit(net, 4, out=tmp_path / "a", trackers=[Stop()])

    def another() -> nn.Module:
        module = net()
        nn.init.ones_(module.get_parameter("0.0.weight"))
        return module

    with pytest.raises(ct.UserError, match=r"fingerprints\.model"):
        fit(another, 4, out=tmp_path / "a", resume=True)
    resumed, whole = fit(net, 4, out=tmp_path / "a", resume=True), fit(net, 4)
    assert all(torch.equal(v, whole.final[k]) for k, v in resumed.final.items())


def test_who_draws_a_model_of_its_own_has_the_common_constants() -> None:
    def drawn() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16).requires_grad_(False), nn.Linear(16, 3))

    own = ct.algorithms.dfedavg(topology="ring")
    run = ct.fit(drawn, plain(), own, rounds=1, init="per-client", progress=False)
    first, *rest = (client.module() for client in run.clients)
    assert all(torch.equal(m.get_parameter("0.weight"), first.get_parameter("0.weight")) for m in rest)


def test_one_tensor_of_two_layers_is_frozen_under_both_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.b.weight = self.a.weight
            self.a.weight.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.b(self.a(x)))
            return out

    for engine in ("serial", "vectorized"):
        run = ct.fit(Tied, plain(), METHODS["fedavg"], rounds=1, engine=engine, progress=False)
        assert run.clients[0].shared.keys() == {"a.bias", "b.bias", "head.weight", "head.bias"}
    with pytest.raises(ct.UserError, match=r"names only constants \(b\.weight\)"):
        ct.fit(Tied, plain(), ct.algorithms.fedper(personal="b.weight"), rounds=1, progress=False)


CUT = r"is frozen, and this method {}.*: set requires_grad of all parameters"
REFUSED: dict[str, tuple[Callable[[], nn.Module], ct.algorithms.Algorithm, str]] = {
    "a personal part of constants": (
        net,
        ct.algorithms.dfedalt(topology="ring", personal="0.*"),
        r"pattern '0\.\*' names only constants \(0\.0\.bias, 0\.0\.weight\), .*: name a part that trains",
    ),
    "a frozen head": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 3).requires_grad_(False)),
        ct.algorithms.fedper(),
        r"pattern 'head' names only constants \(1\.bias, 1\.weight\)",
    ),
    "nothing to train": (
        net,
        ct.algorithms.fedbabu(finetune_epochs=0),
        "fedbabu trains nothing of this model, .*: set requires_grad",
    ),
    "a cut": (net, ct.algorithms.heterofl(capacities="1-0.5"), CUT.format("cuts every layer")),
    "a basis": (net, ct.algorithms.flanc(capacities="1-0.5"), CUT.format("composes every layer")),
    "a frozen table that is written": (
        lambda: nn.Sequential(Table(), nn.Linear(24, 3)),
        METHODS["fedavg"],
        r"the model writes into its parameter 0\.table\.weight",
    ),
}


class Table(nn.Module):
    """A frozen embedding that shortens its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, max_norm=0.1).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.table((4 * x.abs()).long().clamp(max=8)).flatten(1)
        return out


@pytest.mark.parametrize("case", REFUSED)
def test_a_sentence_refuses_it(case: str, tmp_path: Path) -> None:
    build, algorithm, sentence = REFUSED[case]
    with pytest.raises(ct.UserError, match=sentence) as caught:
        ct.fit(build, plain(), algorithm, rounds=1, out=tmp_path / "a", progress=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "algorithm",
    [
        ct.algorithms.fedlmt(rank_ratio=0.5, keep_layers="none"),
        ct.algorithms.pfedlmt(capacities="0.75-0.5", keep_layers="none"),
        ct.algorithms.fedhm(capacities="0.75-0.5", keep_layers="none"),
        ct.algorithms.fedhmv2(rank_ratio=0.5, keep_layers="none"),
    ],
    ids=lambda algorithm: str(algorithm.name),
)
def test_low_rank_leaves_frozen_layers_whole(algorithm: ct.algorithms.Algorithm) -> None:
    """A factor of a frozen weight would not learn, and random factors would forget what it holds."""
    for engine in ("serial", "vectorized"):
        run = ct.fit(net, plain(), algorithm, rounds=2, engine=engine, progress=False)
        for client in run.clients:
            assert torch.equal(client.module().get_parameter("0.0.weight"), backbone()[0].weight)  # type: ignore[index]
            assert not {k for k in (client.shared | client.personal) if k.startswith("0.")}


def test_peers_send_what_trains(tmp_path: Path) -> None:
    """They come to what a simulation comes to, and every message holds the head alone."""
    algorithm, fed = METHODS["dfedsam"], replace(plain(), names=tuple("abcd"))
    e = experiment(net(), fed, algorithm)
    now = e.start()
    for t in range(2):
        now, _ = e.run_round(now, t, evaluate=True)
    peers = participants(lambda: Model(net(), cross_entropy), fed, algorithm, 2, tmp_path, wait=3.0)
    run_together(peers)
    for p, client in zip(peers, e.clients(now.state), strict=True):
        files = {path.name: load_file(path) for path in (p.folder / "clients").iterdir()}
        common = files.pop("common.safetensors")
        (own,) = files.values()
        assert common.keys() == {"constant/0.0.weight", "constant/0.0.bias"}
        assert own.keys() == {f"shared/{k}" for k in client.shared}
        for k, v in client.shared.items():
            torch.testing.assert_close(own[f"shared/{k}"], v, rtol=1e-5, atol=1e-6)
        rows = (p.folder / "metrics.jsonl").read_text().splitlines()
        assert {json.loads(row)["parameters_sent"] for row in rows} == {2 * HEAD}


def test_members_agree_on_what_is_frozen() -> None:
    """Another backbone changes the digests of the part that it is in; a trained layer has none."""
    other = net()
    nn.init.zeros_(other.get_parameter("0.0.bias"))
    ours, theirs = _constants(net())["constants"], _constants(other)["constants"]
    assert ours.keys() == theirs.keys() == {"0"}
    assert ours != theirs
    assert _constants(head()) == {}
    thawed = net().requires_grad_(True)
    assert fingerprint(Model(thawed, cross_entropy)) != fingerprint(Model(net(), cross_entropy))
