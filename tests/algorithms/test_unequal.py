"""Clients of unequal capacity: what every server entry becomes, products and factors, stages, and who is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms.base import Assigned, Submodel
from coterie.algorithms.update import prepared
from coterie.algorithms.widths import mask_absent
from coterie.core.errors import UserError
from coterie.core.tensors import rows
from coterie.engines import Serial, Vectorized
from coterie.exchange.mixing import average
from coterie.models.resnet import ResNet
from coterie.submodels import (
    bank_names,
    factor_pairs,
    factorize,
    factorize_tensors,
    front_names,
    recover_tensors,
    with_depth,
)
from coterie.submodels.staged import STAGE
from coterie.training.experiment import Experiment
from laws import COMMON
from toys import PLAIN, experiment, models, net, play, ragged

alg = ct.algorithms
ONE = {**COMMON, "epochs": 1}
NARROW = {**ONE, "capacities": "1-0.5", "participation": 4}
ENGINES = pytest.mark.parametrize("engine", [Serial(), Vectorized(2)], ids=["serial", "vectorized"])


def four_layers() -> nn.Module:
    """Linear layers with fixed values; 3 and 5 become products of low rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        layers = [nn.Linear(a, b, dtype=torch.float64) for a, b in ((16, 6), (6, 6), (6, 6), (6, 3))]
    return nn.Sequential(nn.Flatten(), *(m for layer in layers for m in (layer, nn.Tanh())))[:-1]


class Rewritten:
    """Algorithm 2 of FedLMT's paper, FedHMv2, on four linear layers in matrices of its own, with full batches."""

    def __init__(self, rank: int, lr: float) -> None:
        self.rank, self.lr, self.module = rank, lr, four_layers()
        self.w = {k: v.detach().clone() for k, v in self.module.state_dict().items()}
        self.x = self.decomposed(self.w)

    def decomposed(self, w: dict[str, Tensor]) -> dict[str, Tensor]:
        """The best product of this rank in place of each middle layer, its factors equally large."""
        x = dict(w)
        for k in (3, 5):
            u, s, v = np.linalg.svd(x.pop(f"{k}.weight").numpy())
            root = np.sqrt(s[: self.rank])
            x[f"{k}.U"], x[f"{k}.V"] = torch.tensor(u[:, : self.rank] * root), torch.tensor(v.T[:, : self.rank] * root)
        return x

    def recovered(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """The whole matrices."""
        products = {f"{k}.weight": x[f"{k}.U"] @ x[f"{k}.V"].T for k in (3, 5)}
        return {k: products[k] if k in products else x[k] for k in self.w}

    def trained(self, x: dict[str, Tensor], samples: Tensor, targets: Tensor, steps: int) -> dict[str, Tensor]:
        """Plain gradient descent on the factors."""
        for _ in range(steps):
            own = {k: v.clone().requires_grad_() for k, v in x.items()}
            out = torch.func.functional_call(self.module, self.recovered(own), samples)
            grads = torch.autograd.grad(nn.functional.cross_entropy(out, targets), list(own.values()))
            x = {k: (v - self.lr * g).detach() for (k, v), g in zip(own.items(), grads, strict=True)}
        return x

    def round(self, data: list[tuple[Tensor, Tensor]], steps: int, decompose: bool) -> None:
        """One round of those who take part, with equal weights."""
        each = [self.trained(self.x, *own, steps) for own in data]
        whole = [self.recovered(x) for x in each]
        self.w = {k: sum(x[k] for x in whole) / len(whole) for k in self.w}
        mean = {k: sum(x[k] for x in each) / len(each) for k in self.x}
        self.x = self.decomposed(self.w) if decompose else mean


def same(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert left.keys() == right.keys()
    for k, v in right.items():
        torch.testing.assert_close(left[k], v, rtol=tolerance, atol=tolerance, msg=lambda m, k=k: f"{k}: {m}")


class TestWidths:
    """HeteroFL, FedRolex, FedDropout."""

    def test_the_mean_over_those_who_hold_an_entry(self) -> None:
        """(10, 20, 30, 40): one trains all of it to (1, 2, 3, 4), one the half to (5, 6)."""
        old = {"a": torch.tensor([10.0, 20, 30, 40])}
        sent = torch.tensor([[1.0, 2, 3, 4], [5, 6, 0, 0]])
        mass = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])

        def mean(who: list[int]) -> list[float]:
            row = torch.full((len(who),), 1 / len(who))
            return average(Serial(), row, {"a": sent[who]}, {"a": mass[who]}, old)["a"].tolist()

        assert mean([0, 1]) == [3, 4, 3, 4]
        assert mean([1]) == [5, 6, 30, 40]

    @ENGINES
    @pytest.mark.parametrize("name", ["heterofl", "fedrolex", "feddropout"])
    @pytest.mark.parametrize("kind", ["groupnorm", "batchnorm"])
    def test_every_entry_by_hand(self, name: str, kind: str, engine: Any) -> None:
        """The server's entries after a round, from each client trained alone and a loop over all of them."""
        e = experiment(net(kind), ragged(kind), alg.build(name, **NARROW), replace_exact(engine))
        before = play(e, 1).state
        r = e.round(1)
        assigned = e.program.submodels(r)
        total = {k: torch.zeros_like(v) for k, v in before.u.items()}
        count = {k: torch.zeros_like(v) for k, v in before.u.items()}
        trained = e.program.train(before, r)
        for form, (places, submodel, index) in zip(trained.groups, assigned, strict=True):
            for row in range(len(places)):
                values, mass = submodel.embed(rows(form.models, row), rows(index, row))
                for k in total:
                    total[k] += values[k]
                    count[k] += mass[k]
        after = e.program.exchange(before, trained, r).u
        for k, v in after.items():
            if v.is_floating_point():
                wanted = torch.where(count[k] > 0, total[k] / count[k].clamp(min=1), before.u[k])
                torch.testing.assert_close(v, wanted, rtol=1e-12, atol=1e-12)
        assert any(bool((c == 0).any()) or int(c.max()) > int(c.min()) for c in count.values())

    @pytest.mark.parametrize("name", ["heterofl", "fedrolex", "feddropout"])
    def test_without_a_step_nothing_changes(self, name: str) -> None:
        e = experiment(net("groupnorm"), ragged("groupnorm"), alg.build(name, **{**NARROW, "epochs": 0}))
        same(play(e, 3).state.u, e.model.start)

    def test_a_single_narrow_client_changes_its_slice_only(self) -> None:
        settings = {**ONE, "capacities": "0.5", "participation": 1}
        e = experiment(net("mlp"), ragged("mlp", sizes=(9,)), alg.heterofl(**settings))
        after, start = play(e, 1).state.u, e.model.start
        assert torch.equal(after["1.weight"][4:], start["1.weight"][4:])
        assert torch.equal(after["3.weight"][:, 4:], start["3.weight"][:, 4:])
        assert not torch.equal(after["1.weight"][:4], start["1.weight"][:4])
        alone = net("mlp").at_width(0.5).double()
        alone.load_state_dict(
            {k: v[:4] if k.startswith("1") else v for k, v in start.items()} | {"3.weight": start["3.weight"][:, :4]}
        )
        left = play(experiment(alone, ragged("mlp", sizes=(9,)), alg.fedavg(**ONE, participation=1)), 1).state.u
        torch.testing.assert_close(after["1.weight"][:4], left["1.weight"], rtol=1e-12, atol=1e-12)

    def test_the_first_window_is_the_prefix(self) -> None:
        left, right = (
            play(experiment(net("groupnorm"), ragged("groupnorm"), alg.build(name, **NARROW)), 1).state.u
            for name in ("fedrolex", "heterofl")
        )
        same(left, right)

    def test_windows_move_and_draws_differ(self) -> None:
        rolling = experiment(net("mlp"), ragged("mlp"), alg.fedrolex(**NARROW))
        starts = [rolling.program.submodels(rolling.round(t))[-1][2][8][0].tolist() for t in (0, 1, 6)]
        assert starts == [[0, 1, 2, 3], [1, 2, 3, 4], [6, 7, 0, 1]]
        drawn = experiment(
            net("mlp"), ragged("mlp", sizes=(4,) * 12), alg.feddropout(**{**NARROW, "participation": 12})
        )
        where = drawn.program.submodels(drawn.round(0))[-1][2][8]
        assert len({tuple(row.tolist()) for row in where}) > 1
        assert torch.equal(where, drawn.program.submodels(drawn.round(0))[-1][2][8])
        assert not torch.equal(where, drawn.program.submodels(drawn.round(1))[-1][2][8])

    def test_channels_are_drawn_evenly(self) -> None:
        settings = {**NARROW, "capacities": "0.25", "participation": 1.0}
        e = experiment(net("mlp"), ragged("mlp", sizes=(4,) * 10), alg.feddropout(**settings))
        drawn = torch.cat([e.program.submodels(e.round(t))[0][2][8].flatten() for t in range(200)])
        counts = drawn.bincount(minlength=8).double()
        assert float(((counts - 500) ** 2 / 500).sum()) < 30  # chi-square with 7 degrees of freedom

    def test_bytes_and_flops_are_the_slices(self) -> None:
        e = experiment(
            net("mlp"), ragged("mlp"), alg.heterofl(**{**NARROW, "participation": 1.0, "capacities": "1x2-0.5x3"})
        )
        full, half = (sum(p.numel() for p in net("mlp").at_width(r).parameters()) for r in (1.0, 0.5))
        sent = e.program.traffic(e.start().state, e.round(0))
        assert sent.totals.parameters == 2 * (2 * full + 3 * half)
        assert sent.totals.bytes == 8 * sent.totals.parameters
        row = e.run_round(e.start(), 0, evaluate=True)[1]
        macs = {r: 16 * round(8 * r) + round(8 * r) * 3 for r in (1.0, 0.5)}
        assert row["flops"] == 3 * (macs[1.0] * (5 + 4) + macs[0.5] * (7 + 2 + 6))

    def test_the_scaler_is_for_training_only(self) -> None:
        settings = {**NARROW, "scaler": True}
        scaled, plain = (
            experiment(net("groupnorm"), ragged("groupnorm"), alg.heterofl(**s)) for s in (settings, NARROW)
        )
        forms = [e.program.submodels(e.round(0))[-1][1].model for e in (scaled, plain)]
        x, start = ragged("groupnorm").x[:3], forms[1].start
        assert torch.equal(forms[0].outputs(start, x), forms[1].outputs(start, x))
        trained = [torch.func.functional_call(m.training, start, (x,)) for m in forms]
        assert not torch.equal(*trained)

    def test_absent_classes_are_masked_and_their_rows_left_out(self) -> None:
        fed = ragged("mlp", sizes=(9,))
        absent = [c for c in range(3) if c not in fed.y]
        assert absent
        settings = {**ONE, "capacities": "1", "participation": 1, "mask_ce": True}
        e = experiment(net("mlp"), fed, alg.heterofl(**settings))
        after, start = play(e, 1).state.u, e.model.start
        assert torch.equal(after["3.weight"][absent], start["3.weight"][absent])
        assert not torch.equal(after["1.weight"], start["1.weight"])
        x, form = fed.x[:2], e.program.submodels(e.round(0))[0].submodel.model
        present = {"present": torch.tensor([c in fed.y for c in range(3)]).double()}
        training = torch.func.functional_call(form.training, start | present, (x,))
        assert torch.equal(training, e.model.outputs(start, x) * present["present"])
        assert torch.equal(form.outputs(start | present, x), e.model.outputs(start, x))

    def test_logits_of_absent_classes_are_zero_at_every_token(self) -> None:
        class Last(nn.Linear):
            """A head whose classes are dimension 1, as losses of tokens take them."""

            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x).transpose(1, 2)

        module = nn.Sequential(Last(4, 3))
        mask_absent(module)
        module.get_buffer("present")[1] = 0
        logits = module.train()(torch.randn(2, 5, 4))
        assert (logits == 0).all(2).all(0).tolist() == [False, True, False]

    def test_a_mask_of_all_classes_is_none(self) -> None:
        x = ragged("mlp").x
        even = [(x[i : i + 3], torch.arange(3)) for i in (0, 5, 10)]
        fed = ct.data.from_tensors(train=even, test=even, classes=3)
        left, right = (
            play(experiment(net("mlp"), fed, alg.heterofl(**{**NARROW, "participation": 1.0}, mask_ce=m)), 2).state.u
            for m in (True, False)
        )
        same(left, right)


def replace_exact(engine: Any) -> Any:
    """BatchNorm may not be padded."""
    return Vectorized(2, exact=True) if isinstance(engine, Vectorized) else engine


LOW = {**ONE, "keep_layers": 1, "participation": 3}


class TestLowRank:
    """FedLMT, pFedLMT, FedHM and FedHMv2."""

    def test_fedlmt_is_fedavg_on_the_factorized_module(self) -> None:
        low = factorize(net("groupnorm"), 0.5, 1, "spectral")
        left = play(
            experiment(net("groupnorm"), ragged("groupnorm"), alg.fedlmt(**LOW, rank_ratio=0.5, init="spectral")), 3
        )
        right = play(experiment(low, ragged("groupnorm"), alg.fedavg(**ONE, participation=3)), 3)
        same(left.state.u, right.state.u)

    def test_the_regularizer_is_in_the_gradient(self) -> None:
        """One full-batch step with lr 1: the difference is the gradient of the penalty."""
        plain = {"lr": 1.0, "lr_decay": 1.0, "momentum": 0.0, "weight_decay": 0.0, "steps": 1, "batch_size": None}
        own = {**plain, "participation": 1, "keep_layers": 1, "rank_ratio": 0.5, "init": "spectral"}
        runs = [
            experiment(net("groupnorm"), ragged("mlp", sizes=(9,)), alg.fedlmt(**own, regularizer=r))
            for r in ("none", "frobenius=0.1,l2=0.01")
        ]
        without, decayed = (play(e, 1).state.u for e in runs)
        (pair,) = factor_pairs(runs[0].model.module)
        U, V = (runs[0].model.start[k] for k in (pair.U, pair.V))
        wanted = 0.1 * 2 * U @ V.T @ V + 0.01 * 2 * U
        torch.testing.assert_close(without[pair.U] - decayed[pair.U], wanted, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("kind", ["mlp", "batchnorm", "tokens"])
    def test_pfedlmt_with_one_rank_is_fedper_on_the_factorized_module(self, kind: str) -> None:
        settings = {**LOW, "capacities": "0.5"}
        low = factorize(net(kind), 0.5, 1, "spectral")
        personal = sorted(set(dict(low.state_dict())) - front_names(low))
        left = experiment(net(kind), ragged(kind), alg.pfedlmt(**settings))
        right = experiment(low, ragged(kind), alg.fedper(**ONE, participation=3, personal=personal))
        assert left.program.shared == right.program.shared
        same(models(left, 3), models(right, 3))

    def test_pfedlmt_by_turns_is_fedrep_with_the_steps_divided(self) -> None:
        low = factorize(net("groupnorm"), 0.5, 1, "spectral")
        settings = {**{k: v for k, v in ONE.items() if k != "epochs"}, "participation": 3}
        left = alg.pfedlmt(**settings, keep_layers=1, capacities="0.5", schedule="alternate", steps=5)
        personal = sorted(set(dict(low.state_dict())) - front_names(low))
        own = {"personal": personal, "personal_lr": 0.05, "personal_steps": 3}
        right = alg.fedrep(**settings, **own, steps=2)
        same(
            models(experiment(net("groupnorm"), ragged("groupnorm"), left), 3),
            models(experiment(low, ragged("groupnorm"), right), 3),
        )

    @ENGINES
    @pytest.mark.parametrize("topology", [None, "ring", "random-push:2"])
    def test_columns_beyond_a_clients_rank_stay_zero(self, topology: str | None, engine: Any) -> None:
        settings = {**ONE, "keep_layers": 1, "capacities": "1-0.25", "topology": topology, "participation": 4}
        e = experiment(net("groupnorm"), ragged("groupnorm"), alg.pfedlmt(**settings), engine)
        after = models(e, 3)
        (pair, *_) = factor_pairs(e.model.module)
        U = after[pair.U]
        full, few = U.shape[2], round(0.25 * U.shape[1])
        assert few < full
        assert bool((U[:2, :, few:] != 0).any())  # the first half of the clients has the larger rank
        assert not U[2:, :, few:].any()
        assert bool((U[2:, :, :few] != 0).all())

    def test_padding_changes_nothing(self) -> None:
        """A small client beside large ones trains as it would among its like."""
        mixed = {**ONE, "keep_layers": 1, "topology": "none"}
        both = models(experiment(net("groupnorm"), ragged("groupnorm"), alg.pfedlmt(**mixed, capacities="1-0.5")), 3)
        small = models(experiment(net("groupnorm"), ragged("groupnorm"), alg.pfedlmt(**mixed, capacities="0.5")), 3)
        for k, v in small.items():
            have = both[k][3:]
            cut = have[tuple(slice(0, n) for n in v[3:].shape)]
            torch.testing.assert_close(cut, v[3:], rtol=1e-10, atol=1e-12)

    def test_at_full_rank_everybody_starts_with_the_common_model(self) -> None:
        x = ragged("groupnorm").test_x
        full = net("groupnorm")(x).detach()
        for capacities, equal in (("1-1", True), ("1-0.125", False)):
            e = experiment(net("groupnorm"), ragged("groupnorm"), alg.pfedlmt(**LOW, capacities=capacities))
            state = e.program.models(e.start().state)
            answers = [e.model.outputs(rows(state, i), x) for i in (0, 4)]
            torch.testing.assert_close(answers[0], full, rtol=1e-5, atol=1e-5)
            assert torch.allclose(answers[1], full, atol=1e-5) is equal

    def test_only_the_front_travels(self) -> None:
        e = experiment(net("groupnorm"), ragged("groupnorm"), alg.pfedlmt(**LOW, capacities="1-0.25"))
        front = front_names(e.model.module)
        trained = e.program.train(e.start().state, e.round(0))
        assert set(trained.sent) == front
        size = sum(e.model.start[k].numel() for k in front)
        assert e.program.traffic(e.start().state, e.round(0)).totals.parameters == 6 * size

    def test_fedhm_without_a_step_leaves_the_best_approximation(self) -> None:
        still = {**LOW, "epochs": 0, "participation": 1.0}
        for ratio in (0.5, 4.0):
            e = experiment(net("groupnorm"), ragged("groupnorm"), alg.fedhm(**still, capacities=str(ratio)))
            once, twice = (play(e, n).state.u for n in (1, 2))
            same(once, twice, 1e-9)
            start, after = e.model.start["4.weight"], once["4.weight"]
            sigma = torch.linalg.svdvals(start)[round(ratio * 8) :]
            assert float((start - after).square().sum()) == pytest.approx(float(sigma.square().sum()), abs=1e-10)

    @ENGINES
    def test_fedhm_averages_the_recovered_models(self, engine: Any) -> None:
        """Each member trained as FedAvg would train its factors; then products, then their mean."""
        fed, kind = ragged("groupnorm"), "groupnorm"
        e = experiment(net(kind), fed, alg.fedhm(**LOW, capacities="1-0.25"), engine)
        state, r = play(e, 1).state, e.round(1)
        total = {k: torch.zeros_like(v) for k, v in state.u.items()}
        for i in r.cohort:
            low = factorize(net(kind), 1.0 if i < 2 else 0.25, 1)
            alone = experiment(low, fed, alg.fedavg(**ONE))
            start = alone.start().state._replace(u=factorize_tensors(low, state.u))
            trained = alone.program.train(start, replace(alone.round(1), cohort=np.array([i]))).models
            for k, v in recover_tensors(low, rows(trained, 0)).items():
                total[k] += v / 3
        after = e.program.exchange(state, e.program.train(state, r), r).u
        same(after, total, 1e-10)

    def test_fedhm_decomposes_once_for_all_ranks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A layer of a common model, however many ranks there are, when it is trained and when it is measured."""
        fed, calls, decompose = ragged("groupnorm"), [], torch.linalg.svd
        e = experiment(net("groupnorm"), fed, alg.fedhm(**{**LOW, "participation": 1.0}, capacities="1-0.5-0.25"))
        layers = len(factor_pairs(factorize(net("groupnorm"), 1.0, 1)))
        monkeypatch.setattr(torch.linalg, "svd", lambda *given, **how: calls.append(given) or decompose(*given, **how))
        now = e.start()
        calls.clear()
        now, _ = e.run_round(now, 0, evaluate=False)
        assert len(calls) == layers
        groups = list(e.program.submodels(e.round(0)))
        assert len(groups) == 3
        e.run_round(now, 1, evaluate=True)
        assert len(calls) == 3 * layers

    @pytest.mark.parametrize("one_model", [True, False])
    def test_what_is_prepared_is_that_of_every_member(self, one_model: bool) -> None:
        """Whether all have one model or each its own, the same preparation of several submodels is made once."""
        start = {"w": torch.arange(6.0).reshape(3, 2)}
        models = {k: v[:1].expand(3, -1) if one_model else v for k, v in start.items()}
        calls = []

        def doubled(x: dict[str, Tensor]) -> dict[str, Tensor]:
            calls.append(x)
            return {"w": 2 * x["w"]}

        plain = Submodel(
            experiment(net("mlp"), ragged("mlp"), alg.fedavg()).model, lambda x, i: x, lambda x, i: (x, {})
        )
        forms = [plain._replace(prepare=doubled), plain, plain._replace(prepare=doubled)]
        found = [
            common["w"] for _, common in prepared([Assigned(np.array([i]), f, {}) for i, f in enumerate(forms)], models)
        ]
        assert len(calls) == 1
        for factor, common in zip((2, 1, 2), found, strict=True):
            assert torch.equal(common, factor * models["w"])

    def test_fedhmv2_lies_between_fedhm_and_fedlmt(self) -> None:
        fed = ragged("groupnorm")
        own = {**LOW, "rank_ratio": 0.25}
        every = play(experiment(net("groupnorm"), fed, alg.fedhmv2(**own, svd_every=1)), 3).state
        fedhm = play(experiment(net("groupnorm"), fed, alg.fedhm(**LOW, capacities="0.25")), 3).state.u
        same(every.w, fedhm, 1e-5)
        never = play(experiment(net("groupnorm"), fed, alg.fedhmv2(**own, svd_every=100)), 3).state
        fedlmt = play(
            experiment(net("groupnorm"), fed, alg.fedlmt(**own, init="spectral", weighting="uniform")), 3
        ).state
        same(never.x, fedlmt.u)
        assert not torch.allclose(never.w["4.weight"], every.w["4.weight"], atol=1e-6)

    @ENGINES
    @pytest.mark.parametrize("svd_every", [1, 2, 3, 10])
    def test_fedhmv2_reports_the_mean_of_the_recovered_models_in_every_round(self, svd_every: int, engine: Any) -> None:
        """Algorithm 2 rewritten: the full model w, and what the clients deploy, in every round."""
        settings = {"keep_layers": 1, "rank_ratio": 0.5, "svd_every": svd_every, "participation": 3}
        algorithm = alg.fedhmv2(**settings, **PLAIN, epochs=2, lr=0.3)
        e = experiment(four_layers(), ragged("mlp"), algorithm, engine)
        now, theirs = e.start(), Rewritten(rank=3, lr=0.3)
        for t in range(4):
            data = [(e.train.x[own], e.train.y[own]) for own in (e.train.owned[i] for i in e.round(t).cohort)]
            theirs.round(data, steps=2, decompose=(t + 1) % svd_every == 0)
            now, row = e.run_round(now, t, evaluate=True)
            same(e.consensus_model(now.state), theirs.w, 1e-12)
            assert int(torch.linalg.matrix_rank(theirs.w["3.weight"])) > 3  # of three clients
            deployed = recover_tensors(e.modules(t)[0].module, e.clients(now.state, t)[0].shared)
            same(deployed, theirs.recovered(theirs.x), 1e-12)
            assert row["consensus_distance"] == 0  # all clients have one model

    @pytest.mark.parametrize("topology", ["ring", "random-push:3"])
    @pytest.mark.parametrize("name", ["fedlmt", "pfedlmt"])
    def test_they_train_between_peers(self, name: str, topology: str) -> None:
        fed = ct.data.federate("digits", clients=6, partition="dirichlet:0.3", seed=0)
        settings = {"lr": 0.02, "lr_decay": 1.0, "batch_size": 16, "epochs": 3, "keep_layers": 1, "weight_decay": 0.0}
        run = ct.fit(
            ct.models.build("small-cnn", fed),
            fed,
            alg.build(name, **settings, topology=topology, clip=10.0),  # as the presets do: without it some diverge
            rounds=4,
            progress=False,
        )
        assert run.summary["personal_accuracy"]["after_mix"]["final"] > 0.7
        assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]


class TestStages:
    """DepthFL, ProgFed and FLANC."""

    def deep(self, **settings: Any) -> Any:
        return experiment(net("residual"), ragged("mlp"), alg.depthfl(**ONE, **settings))

    def test_full_depth_everywhere_is_deeply_supervised_fedavg(self) -> None:
        e = self.deep(capacities="2", distill="none", participation=3)
        right = Experiment.of(
            e.model, e.federation, alg.fedavg(**ONE, participation=3, weighting="uniform"), Serial(), 0, 10
        )
        same(play(e, 3).state.u, play(right, 3).state.u)

    def test_shallow_clients_leave_the_rest_alone(self) -> None:
        e = self.deep(capacities="1", participation=3)
        after, start = play(e, 2).state.u, e.model.start
        deeper = [k for k in start if k.startswith(("stages.1", "linear"))]
        assert deeper
        assert all(torch.equal(after[k], start[k]) for k in deeper)
        assert not torch.equal(after["stem.weight"], start["stem.weight"])

    def test_distillation_matters_and_grows(self) -> None:
        ends = [
            play(self.deep(capacities="2-1", participation=4, **how), 2).state.u["stem.weight"]
            for how in ({"distill": "none"}, {"distill": "mutual"}, {"distill": "deepest", "teaching": 0.5})
        ]
        assert all(not torch.equal(ends[i], ends[j]) for i in range(3) for j in range(i))

    def test_depths_send_what_they_hold(self) -> None:
        e = self.deep(capacities="2x2-1x3", participation=1.0)
        sizes = [sum(p.numel() for p in with_depth(net("residual"), d).parameters()) for d in (2, 1)]
        sent = e.program.traffic(e.start().state, e.round(0))
        assert sent.totals.parameters == 2 * (2 * sizes[0] + 3 * sizes[1])

    def growing(self, rounds: int = 8, **settings: Any) -> Any:
        return experiment(
            net("residual"), ragged("mlp"), alg.progfed(**ONE, **settings, participation=3), rounds=rounds
        )

    def test_it_grows(self) -> None:
        e = self.growing()  # two stages in eight rounds: two rounds, then six
        now, start, seen = e.start(), e.model.start, []
        for t in range(4):
            sent = e.program.traffic(now.state, e.round(t)).totals.parameters
            before = now.state.u
            now, _ = e.run_round(now, t, evaluate=True)
            later = [k for k in start if k.startswith(("stages.1", "linear"))]
            seen.append((sent, all(torch.equal(now.state.u[k], start[k]) for k in later), now.state.u[STAGE].tolist()))
            if t == 1:
                first = {k: v for k, v in now.state.u.items() if k.startswith(("stem", "stages.0"))}
            if t == 2:  # what was trained is carried over
                assert all(torch.equal(before[k], v) for k, v in first.items())
        assert [whole for _, whole, _ in seen] == [True, True, False, False]
        assert [chosen for _, _, chosen in seen] == [[1, 0], [1, 0], [0, 1], [0, 1]]
        assert seen[0][0] < seen[2][0] == 6 * sum(p.numel() for p in net("residual").parameters())

    def test_the_last_stage_is_the_full_model(self) -> None:
        e = self.growing()
        state = play(e, 8).state
        whole = net("residual").eval()
        whole.load_state_dict({k: v for k, v in state.u.items() if not k.startswith("heads") and k != STAGE})
        x = ragged("mlp").test_x
        torch.testing.assert_close(e.model.outputs(state.u, x), whole(x), rtol=1e-12, atol=1e-12)

    def test_one_stage_is_fedavg(self) -> None:
        torch.manual_seed(0)
        module = ResNet(1, 3, (4,), 1, lambda c: nn.GroupNorm(1, c)).double()
        settings = {**ONE, "participation": 3}
        left = play(experiment(module, ragged("mlp"), alg.progfed(**settings)), 3).state.u
        right = play(experiment(module, ragged("mlp"), alg.fedavg(**settings)), 3).state.u
        same({k: v for k, v in left.items() if k != STAGE}, right)

    def basis(self, **settings: Any) -> Any:
        own = {"n_basis": 0.5, "basis_fraction": 0.5, **settings}
        return experiment(net("residual"), ragged("mlp"), alg.flanc(**ONE, **own))

    def test_one_width_is_fedavg_on_the_composed_net(self) -> None:
        e = self.basis(capacities="1", participation=3)
        right = Experiment.of(
            e.model, e.federation, alg.fedavg(**ONE, participation=3, weighting="uniform"), Serial(), 0, 10
        )
        same(play(e, 3).state.u, play(right, 3).state.u)

    def test_widths_do_not_leak(self) -> None:
        e = self.basis(capacities="1x4-0.5x1", participation=1)
        now, banks = e.start(), bank_names(e.model.module)
        t = next(t for t in range(50) if e.schedule.cohort(t)[0] == 4)  # the narrow client alone
        after = e.run_round(now, t, evaluate=False)[0].state.u
        for k, v in now.state.u.items():
            mine = k.startswith("others.0_5.") or k in banks
            assert mine or torch.equal(after[k], v), k
        assert any(not torch.equal(after[k], now.state.u[k]) for k in banks)
        assert not torch.equal(after["others.0_5.linear.weight"], now.state.u["others.0_5.linear.weight"])


# What is asked, and what the sentence says.
REFUSED: dict[str, tuple[Any, str]] = {
    "a width above one": (lambda: ("heterofl", {"capacities": "1-1.5"}, "mlp"), "rate=1.5"),
    "no width": (lambda: ("heterofl", {"capacities": "0-1"}, "mlp"), "rate=0.0"),
    "a rank of zero": (lambda: ("fedhm", {"capacities": "0-1", "keep_layers": 1}, "groupnorm"), "rank_ratio=0.0"),
    "no rank": (lambda: ("fedlmt", {"rank_ratio": 0.0, "keep_layers": 1}, "mlp"), "rank_ratio=0.0"),
    "too many stages": (lambda: ("depthfl", {"capacities": "3-1"}, "residual"), "3 stages: this network has 2"),
    "half a stage": (lambda: ("depthfl", {"capacities": "1.5"}, "residual"), "1.5 stages"),
    "sizes that do not add up": (
        lambda: ("heterofl", {"capacities": "b4x3-b2x1"}, "mlp"),
        "4 clients, but there are 5",
    ),
    "sizes for some": (lambda: ("heterofl", {"capacities": "b4x3-b2"}, "mlp"), "to each"),
    "an unknown level": (lambda: ("heterofl", {"capacities": "b9"}, "mlp"), "'b9'"),
    "no stages": (lambda: ("progfed", {}, "mlp"), "not built in stages"),
    "a regularizer": (lambda: ("fedlmt", {"regularizer": "frobenius"}, "mlp"), "frobenius=1e-4"),
    "an unknown term": (lambda: ("fedlmt", {"regularizer": "l3=1"}, "mlp"), "regularizer 'l3'"),
    "lasting momentum": (lambda: ("fedhm", {"keep_optimizer_state": True}, "mlp"), "keep_optimizer_state"),
    "nothing to do": (lambda: ("fedlmt", {"capacities": "b4"}, "mlp"), "capacities=b4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    ask, sentence = REFUSED[case]
    name, settings, kind = ask()
    with pytest.raises(UserError, match=sentence):
        experiment(net(kind), ragged("mlp"), alg.build(name, **settings)).check()


def test_groups_that_a_narrow_layer_cannot_hold_are_refused() -> None:
    fed = ct.data.federate("digits", clients=4, partition="iid")
    module = ct.models.build("resnet8-gn", fed)
    with pytest.raises(UserError, match="groups=8 does not divide a layer's 4 channels"):
        experiment(module, fed, alg.heterofl(capacities="1-0.25")).check()


def test_a_short_run_cannot_grow() -> None:
    with pytest.raises(UserError, match="4 rounds"):
        experiment(net("residual"), ragged("mlp"), alg.progfed(), rounds=3).check()


def test_one_rank_for_everybody_suits_the_smallest() -> None:
    assert alg.fedhmv2(capacities="b4-b3-b2").settings["rank_ratio"] == 0.15
    assert alg.fedhmv2(rank_ratio=0.5).settings["rank_ratio"] == 0.5
    lowest = alg.fedlmt(capacities="b4-b3").settings
    assert (lowest["keep_layers"], lowest["rank_ratio"]) == (5, 0.4)
    assert alg.fedlmt(capacities="b4-b1", keep_layers=2).settings["keep_layers"] == 2
    assert alg.fedlmt(keep_layers=2, rank_ratio=0.5).settings["rank_ratio"] == 0.5
    for name, both in (("fedhmv2", {"rank_ratio": 0.5}), ("fedlmt", {"rank_ratio": 0.5, "keep_layers": 2})):
        with pytest.raises(UserError, match="does not use capacities"):
            alg.build(name, capacities="b4-b1", **both)


@pytest.mark.parametrize("name", ["fedlmt", "pfedlmt", "fedhm", "fedhmv2"])
def test_every_method_of_low_rank_takes_the_rank_of_definition_3_1(name: str) -> None:
    """Three by three kernels from 4 to 4 channels: of rank 2, a half of 4, or 6, a half of 12; both are trained."""
    settings = {**ONE, "keep_layers": 1, "participation": 5}
    ratio = {"rank_ratio": 0.5} if name in ("fedlmt", "fedhmv2") else {"capacities": "0.5"}
    found = []
    for mode in ("channels", "definition"):
        e = experiment(net("residual"), ragged("mlp"), alg.build(name, **settings, **ratio, rank_mode=mode))
        e.run_round(e.start(), 0, evaluate=True)
        sent = e.program.traffic(e.start().state, e.round(0)).totals.parameters
        found.append((e.algorithm.settings["rank_mode"], sent))
    more = 10 * 4 * 3 * (4 + 4) * 2 if name != "pfedlmt" else 0  # five down and up; pFedLMT's factors stay at home
    assert found[0][0] == "channels"
    assert found[1][1] - found[0][1] >= more


def test_as_many_layers_as_there_are_is_fedavg() -> None:
    """rho = L: no layer is factorized, and FedLMT trains the full model."""
    settings = {**ONE, "participation": 3}
    left = play(experiment(net("residual"), ragged("mlp"), alg.fedlmt(**settings, keep_layers=18)), 2).state.u
    same(left, play(experiment(net("residual"), ragged("mlp"), alg.fedavg(**settings)), 2).state.u)
