"""What happens to messages: some are not delivered, some are rounded; nothing is lost for good."""

from typing import Any

import pytest
import torch
from torch import Tensor

import coterie as ct
from between_peers import PEERS
from coterie.algorithms.bind import SCALE_BYTES, quantized, rounded
from coterie.core.errors import UserError
from coterie.core.tensors import replicate
from coterie.engines import Serial
from coterie.models.model import Model
from coterie.training.experiment import Experiment
from laws import COMMON, METHODS, STAGES, build
from quadratic import ENGINES, PUSH, close, column, plain, shared_only
from toys import experiment, golden, net, play, ragged, scattered

alg = ct.algorithms


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """|u - c|^2 / 2 for samples that are the unit vectors."""
    return (outputs[:, 0] - targets).square().mean() * 4


SILENT = ("local", "pooled")  # methods that send nothing


class TestSilence:
    """Each message is dropped with a probability; its weight stays with the receiver, or push-sum's with the sender."""

    def matrices(self, algorithm: Any, drop_messages: float, rounds: int) -> list[Tensor]:
        e = experiment(net("mlp"), ragged("mlp"), algorithm, drop_messages=drop_messages)
        return [e.round(t).W for t in range(rounds)]  # type: ignore[misc]

    @pytest.mark.parametrize("row", PEERS)
    def test_every_method_keeps_its_sums(self, row: str) -> None:
        e = experiment(net("mlp"), ragged("mlp"), build(row), drop_messages=0.4)
        axis = 0 if e.program.weight_stays_with == "sender" else 1
        for t in range(20):
            W = e.round(t).W
            assert W is not None
            close(W.sum(axis), torch.ones(5, dtype=torch.float64))
            assert bool((W >= 0).all())

    def test_the_missing_weight_goes_where_it_should(self) -> None:
        whole = self.matrices(alg.dfedavg(topology="full"), 0.0, 1)[0]
        for W in self.matrices(alg.dfedavg(topology="full"), 0.5, 20):
            lost = (W == 0) & (whole > 0)
            close(W.diag(), 0.2 + 0.2 * lost.sum(1).double())  # a receiver gives it to itself
        for W in self.matrices(alg.osgp(topology="full"), 0.5, 20):
            lost = (W == 0) & (whole > 0)
            close(W.diag(), 0.2 + 0.2 * lost.sum(0).double())  # a sender keeps it

    def test_messages_are_dropped_as_often_as_asked(self) -> None:
        rounds = self.matrices(alg.dfedavg(topology="full"), 0.2, 500)
        lost = sum(int((W == 0).sum()) for W in rounds)
        assert abs(lost - 2000) < 5 * (10_000 * 0.2 * 0.8) ** 0.5
        assert any(not torch.equal(rounds[0], W) for W in rounds)
        assert torch.equal(self.matrices(alg.dfedavg(topology="full"), 0.2, 3)[2], rounds[2])

    @pytest.mark.parametrize("pushes", [1, 3])
    def test_push_sum_keeps_its_mass_and_its_mean(self, pushes: int) -> None:
        """Nobody trains: with a fifth of the messages lost, z still converges to the average of the start."""
        still = plain("dfedpgp", topology=column, personal="none", steps=0, gossip_steps=pushes)
        e = experiment(shared_only(), golden(), still, drop_messages=0.2)
        now = scattered(e)
        for t in range(200):
            now, _ = e.run_round(now, t, evaluate=False)
            close(now.state.mu.sum(), 4)
            close(now.state.x["u"].sum(), 0.5)
        close(e.program.models(now.state)["u"], [0.125] * 4)
        assert PUSH.shape == (4, 4)

    def test_gossip_reaches_agreement_though_not_the_mean(self) -> None:
        e = experiment(shared_only(), golden(), plain("dfedavg", topology="ring", steps=0), drop_messages=0.2)
        now = play(e, 100, scattered(e))
        u = now.state.x["u"]
        close(u, u[:1].expand(4))
        assert -1 < float(u[0]) < 1
        assert abs(float(u[0]) - 0.125) > 1e-3  # the mean of the start, which messages without loss would keep

    def test_overlapping_messages_lose_nothing(self) -> None:
        e = experiment(shared_only(), golden(), plain("osgp", topology=column, tau=2, steps=0), drop_messages=0.3)
        now = scattered(e)
        for t in range(30):
            now, _ = e.run_round(now, t, evaluate=False)
            close(now.state.mu.sum() + now.state.flying_mu.sum(), 4)
            close(now.state.x["u"].sum() + now.state.flying["u"].sum(), 0.5)

    @pytest.mark.parametrize("row", PEERS)
    def test_total_silence_is_training_alone(self, row: str) -> None:
        method, settings = METHODS[row]
        quiet, alone = (
            experiment(net("mlp"), ragged("mlp"), alg.build(method, **{**COMMON, **settings, **extra}), drop_messages=p)
            for p, extra in ((1.0, {}), (0.0, {"topology": "none"}))
        )
        left, right = (e.program.models(play(e, 2).state) for e in (quiet, alone))
        for k in left:
            torch.testing.assert_close(left[k], right[k], rtol=1e-9, atol=1e-9)
        assert quiet.program.traffic(quiet.start().state, quiet.round(0)).totals.messages == 0

    def test_it_is_refused_around_a_server(self) -> None:
        with pytest.raises(UserError, match="participation"):
            experiment(net("mlp"), ragged("mlp"), alg.fedavg(), drop_messages=0.2).check()
        with pytest.raises(UserError, match="between 0 and 1"):
            experiment(net("mlp"), ragged("mlp"), alg.dfedavg(topology="ring"), drop_messages=1.2).check()

    def test_a_run_remembers_it(self, tmp_path: Any) -> None:
        fed = ct.data.federate("synthetic:size=400", clients=5, partition="iid")
        algorithm = alg.dfedavg(topology="ring", epochs=1)
        settings = {"rounds": 2, "drop_messages": 0.5, "progress": False}
        run = ct.fit(ct.models.build("logreg", fed), fed, algorithm, out=tmp_path / "a", **settings)
        assert run.config["drop_messages"] == 0.5
        whole = ct.fit(ct.models.build("logreg", fed), fed, algorithm, rounds=2, progress=False)
        assert 0 < run.summary["bytes_sent"] < whole.summary["bytes_sent"]


class TestQuantized:
    """Few bits a number, and what rounding takes goes into the next message."""

    def test_rounding(self) -> None:
        x = torch.randn(1000, dtype=torch.float64)
        for bits in (2, 4, 8):
            q, step = rounded(x, bits), float(x.abs().max()) / (2 ** (bits - 1) - 1)
            assert len(q.unique()) <= 2**bits - 1
            assert float((q - x).abs().max()) <= step / 2 + 1e-12
        assert not rounded(torch.zeros(3), 4).any()
        assert float(rounded(torch.tensor(-2.5), 2)) == -2.5  # a single number has its own scale

    @ENGINES
    def test_one_round_in_closed_form(self, engine: Any) -> None:
        """Vectors of three: the neighbors' rounded models are mixed, the remainders stay behind."""
        start = torch.tensor([[1.0, 0.3, -0.2], [0.5, -1.0, 0.1], [2.0, 0.9, 0.0]], dtype=torch.float64)
        W = ct.topology.full(3)(0)
        e, state = self.averaging(start, 3, engine)
        q = torch.stack([torch.round(row / (row.abs().max() / 3)) * row.abs().max() / 3 for row in start])
        close(state.inner.x["weight"][:, 0], start)
        after = e.run_round(e.start()._replace(state=state), 0, evaluate=False)[0].state
        close(after.inner.x["weight"][:, 0], W @ q)
        close(after.residue["weight"][:, 0], start - q)

    def averaging(self, start: Tensor, bits: int, engine: Any = None) -> tuple[Any, Any]:
        pair = (torch.zeros(1, start.shape[1], dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
        pairs = [pair] * len(start)
        module = torch.nn.Linear(start.shape[1], 1, bias=False, dtype=torch.float64)
        algorithm = plain("dfedavg", topology="full", steps=0, quantize=bits)
        e = experiment(module, ct.data.from_tensors(pairs, pairs), algorithm, engine)
        state = e.start().state
        return e, state._replace(inner=state.inner._replace(x={"weight": start[:, None, :]}))

    def test_nothing_is_lost(self) -> None:
        """Over a doubly stochastic graph the mean of models and remainders together is kept, whatever the bits."""
        start = torch.randn(4, 50, dtype=torch.float64)
        e, state = self.averaging(start, 2)
        now = e.start()._replace(state=state)
        for t in range(50):
            now, _ = e.run_round(now, t, evaluate=False)
            whole = now.state.inner.x["weight"] + now.state.residue["weight"]
            close(whole[:, 0].mean(0), start.mean(0))

    def test_push_sum_pushes_few_bits_and_keeps_its_mass(self) -> None:
        settings = {**COMMON, "topology": "random-push:2"}
        few, full = (
            experiment(net("mlp"), ragged("mlp"), alg.build("dfedpgp", quantize=bits, **settings)) for bits in (4, None)
        )
        now, whole = play(few, 5), play(full, 5)
        close(now.state.inner.mu.sum(), 5)
        sent, in_full = (e.program.traffic(e.start().state, e.round(0)).totals for e in (few, full))
        assert sent.messages == in_full.messages
        assert sent.bytes < in_full.bytes / 8  # of double precision
        for name in whole.state.x.keys() & now.state.residue.keys():
            assert 0 < float((now.state.inner.x[name] - whole.state.x[name]).abs().max()) < 0.5, name

    def test_an_entry_that_a_client_does_not_hold_waits_with_its_error(self) -> None:
        """A narrow client's window moves: what was rounded off an entry stays until the client holds it again."""
        settings = {**COMMON, "capacities": "1-0.5", "participation": 1.0, "quantize": 2, "clip": None}
        e = experiment(net("mlp"), ragged("mlp"), alg.build("fedrolex", **settings))
        first, _ = e.run_round(e.start(), 0, evaluate=False)
        held = e.program.train(first.state, e.round(1)).mass
        second, _ = e.run_round(first, 1, evaluate=False)
        assert held is not None
        waiting = 0
        for name, before in first.state.residue.items():
            absent = held[name] == 0
            assert torch.equal(second.state.residue[name][absent], before[absent]), name
            waiting += int((before[absent] != 0).sum())
        assert waiting > 0

    def test_without_feedback_the_mean_would_be_another(self) -> None:
        """F_i = |u - c_i|^2 / 2 with 2 bits a number: u hovers about the mean of the c_i, the fixed point of FedAvg."""
        torch.manual_seed(0)
        center = torch.randn(4, 8, dtype=torch.float64)
        pairs = [(torch.eye(8, dtype=torch.float64), c) for c in center]
        settings = {"participation": 1.0, "weighting": "uniform", "lr": 0.2, "steps": 3, "quantize": 2}
        model = Model(torch.nn.Linear(8, 1, bias=False, dtype=torch.float64), squared)
        fed, algorithm = ct.data.from_tensors(pairs, pairs), plain("fedavg", **settings)
        e = Experiment.of(model, fed, algorithm, Serial(), seed=0, rounds=400)

        def hovers_about(feedback: float) -> float:
            now, seen = e.start(), []
            for t in range(400):
                now, _ = e.run_round(now, t, evaluate=False)
                residue = {k: feedback * v for k, v in now.state.residue.items()}
                now = now._replace(state=now.state._replace(residue=residue))
                seen.append(now.state.inner.u["weight"][0])
            return float((torch.stack(seen[100:]).mean(0) - center.mean(0)).abs().max())

        assert hovers_about(feedback=1.0) < 0.01
        assert hovers_about(feedback=0.0) > 0.05

    @pytest.mark.parametrize("bits", [2, 8])
    def test_bytes_are_those_of_the_bits(self, bits: int) -> None:
        fed, module = ragged("mlp", torch.float32), net("mlp", torch.float32)
        sizes = [p.numel() for p in module.parameters()]

        def sent(name: str, **settings: Any) -> Any:
            e = experiment(module, fed, alg.build(name, **COMMON, epochs=1, **settings))
            return e.program.traffic(e.start().state, e.round(0))

        message = -(-sum(sizes) * bits // 8) + SCALE_BYTES * len(sizes)
        assert sent("dfedavg", topology="ring", quantize=bits).totals.bytes == 10 * message
        assert sent("osgp", topology="ring", quantize=bits).totals.bytes == 10 * (message + 8)
        assert sent("fedavg", participation=3, quantize=bits).totals.bytes == 3 * (message + 4 * sum(sizes))
        several = sent("dfedsam", topology="ring", gossip_steps=3, quantize=bits).totals
        assert several.bytes == 10 * message + 20 * 4 * sum(sizes)
        assert several.parameters == 30 * sum(sizes)
        pushed = sent("dfedpgp", topology="ring", personal="none", gossip_steps=3, quantize=bits).totals
        assert (pushed.messages, pushed.bytes) == (30, several.bytes + 30 * 8)
        assert sent("dfedavg", topology="ring").totals.bytes == 10 * 4 * sum(sizes)

    @pytest.mark.parametrize("name", alg.BUILDERS)
    def test_every_method_can_use_it(self, name: str) -> None:
        known = {"topology": "ring"} if "topology" in alg.build(name).settings else {}
        known |= {"participation": 3} if "participation" in alg.build(name).settings else {}
        known |= {"depthfl": {"capacities": "2-1"}, "flanc": {"n_basis": 0.5, "basis_fraction": 0.5}}.get(name, {})
        module, rounds = net("residual" if name in STAGES else "mlp"), {}
        for bits in (None, 16, 4):
            e = experiment(module, ragged("mlp"), alg.build(name, quantize=bits, batch_size=4, epochs=1, **known))
            rounds[bits] = e.program.models(play(e, 2).state)
        differences = [
            max(float((rounds[bits][k] - v).abs().max()) for k, v in rounds[None].items()) for bits in (16, 4)
        ]
        assert differences[0] < 0.01
        if name in SILENT:
            assert differences == [0, 0]
        else:
            assert 0 < differences[0] < differences[1]

    @pytest.mark.parametrize("bits", [1, 17, 0])
    def test_bits_out_of_range_are_refused(self, bits: int) -> None:
        with pytest.raises(UserError, match="quantize"):
            alg.dfedavg(quantize=bits)

    def test_it_wraps_any_program(self) -> None:
        """The wrapper by itself, around a program bound by hand."""
        e = experiment(net("mlp"), ragged("mlp"), alg.dfedavg(**COMMON, topology="ring"))
        asked = experiment(net("mlp"), ragged("mlp"), alg.dfedavg(**COMMON, topology="ring", quantize=5))
        program = quantized(e.program, 5)
        state = program.init(e.model.start, replicate(e.model.start, 5))
        r = e.round(0)
        by_hand = program.models(program.exchange(state, program.train(state, r), r))
        assert all(torch.equal(by_hand[k], v) for k, v in asked.program.models(play(asked, 1).state).items())
