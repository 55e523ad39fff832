"""FedBABU, Fed-RoD and DisPFL: golden values, closed forms and what they must keep."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms.dispfl import erk, random_scores, regrown
from coterie.algorithms.fedrod import TwoHeads
from coterie.core import rng
from coterie.core.errors import UserError
from coterie.engines import Vectorized
from coterie.local.optimizers import cosine
from coterie.store import flatten
from laws import COMMON
from quadratic import ENGINES, K_U, b, close, plain, s
from toys import A, B, C, D, Quadratic, experiment, golden, mean_output, models, net, play, ragged, scattered

alg = ct.algorithms


class TestFedBABU:
    """The head stays as it was drawn; fine-tuning is for measuring."""

    @ENGINES
    def test_golden(self, engine: Any) -> None:
        state = play(experiment(Quadratic(), golden(), plain("fedbabu", personal="v", participation=1.0), engine), 1)
        close(state.state.u["u"], 0.66)
        close(state.state.v["v"], [1, 1, 1, 1])

    @ENGINES
    @pytest.mark.parametrize(
        "optimizer",
        [
            {},
            {"finetune_momentum": 0.9},
            {"finetune_momentum": 0.5, "finetune_weight_decay": 0.3, "finetune_clip": 0.4},
        ],
        ids=["of training", "momentum", "all"],
    )
    def test_one_round_in_closed_form(self, engine: Any, optimizer: dict[str, float]) -> None:
        settings = {"personal": "v", "participation": 1.0, "finetune_epochs": 3, "finetune_lr": 0.05}
        e = experiment(Quadratic(), golden(), plain("fedbabu", **settings, **optimizer), engine)
        state = play(e, 1).state
        close(state.u["u"], float((b + s * (0.5 - b)).mean()))
        (tuned,) = e.program.finetune(state, e.round(0))
        for i in range(4):
            u, v = (x[i].clone().requires_grad_() for x in (state.u["u"].expand(4), state.v["v"]))
            momentum, decay = optimizer.get("finetune_momentum", 0.0), optimizer.get("finetune_weight_decay", 0.0)
            sgd = torch.optim.SGD([u, v], lr=0.05, momentum=momentum, weight_decay=decay)
            for _ in range(3):
                sgd.zero_grad()
                (A[i] / 2 * (u - B[i]) ** 2 + C[i] / 2 * (v - D[i]) ** 2).backward()
                torch.nn.utils.clip_grad_norm_([u, v], optimizer.get("finetune_clip", float("inf")))
                sgd.step()
            close(tuned.models["u"][i], u.detach())
            close(tuned.models["v"][i], v.detach())

    def test_the_head_never_moves(self) -> None:
        settings = {**COMMON, "participation": 3, "weight_decay": 0.1, "momentum": 0.9}
        e = experiment(net("mlp"), ragged("mlp"), alg.fedbabu(**settings))
        after = models(e, 4)
        for name in ("3.weight", "3.bias"):
            assert all(torch.equal(one, e.model.start[name]) for one in after[name])
        assert not torch.equal(after["1.weight"][0], e.model.start["1.weight"])

    def test_fine_tuning_is_measured_and_leaves_the_state_alone(self) -> None:
        e = experiment(net("mlp"), ragged("mlp"), alg.fedbabu(**COMMON, participation=3, finetune_lr=0.1))
        now = play(e, 1)
        before = {k: v.clone() for k, v in flatten(now.state).items()}
        each = e.values(now.state, now.after_train, 0)
        assert each is not None
        assert all(torch.equal(v, before[k]) for k, v in flatten(now.state).items())
        assert each["after_finetune"].nanmean() > each["after_mix"].nanmean()

    def test_without_fine_tuning_there_is_none(self) -> None:
        e = experiment(net("mlp"), ragged("mlp"), alg.fedbabu(**COMMON, participation=3, finetune_epochs=0))
        now = play(e, 1)
        each = e.values(now.state, now.after_train, 0)
        assert each is not None
        assert each.keys() == {"after_mix", "after_train"}
        for client in e.clients(now.state):
            assert all(torch.equal(v, now.state.u[k]) for k, v in client.shared.items())
            assert sorted(client.personal) == ["3.bias", "3.weight"]

    def test_what_is_deployed_is_fine_tuned(self, tmp_path: Any) -> None:
        fed = ct.data.federate("synthetic:size=400", clients=4, partition="dirichlet:0.5")
        algorithm = alg.fedbabu(participation=1.0, batch_size=16, epochs=2, lr=0.1, finetune_lr=0.05)
        run = ct.fit(ct.models.build("mlp", fed), fed, algorithm, rounds=3, progress=False, out=tmp_path / "a")
        client = ct.load(tmp_path / "a").clients[2]
        assert not client.shared
        right = client.module()(fed.test_x[fed.test[2]]).argmax(1) == fed.test_y[fed.test[2]]
        assert run.summary["personal_accuracy"]["after_finetune"]["final"] > 0.5
        assert float(right.double().mean()) > 0.4
        assert not torch.equal(client.personal["5.weight"], run.clients[1].personal["5.weight"])


def generic_part(models: dict[str, Tensor]) -> dict[str, Tensor]:
    """(body, generic head) under the names of the model without a second head."""
    return {k.replace(".generic", ""): v for k, v in models.items() if ".personal" not in k and ".counts" not in k}


class TestFedRoD:
    """Two heads, two losses, one body."""

    def test_balanced_softmax_has_the_printed_gradient(self) -> None:
        heads = TwoHeads(nn.Linear(2, 3, dtype=torch.float64), gamma=1.0, hyper=False)
        heads.counts = torch.tensor([3.0, 0.0, 5.0], dtype=torch.float64)
        z = torch.tensor([[0.3, -0.2, 0.7]], dtype=torch.float64, requires_grad=True)
        loss = ct.models.model.cross_entropy(heads.balanced(z), torch.tensor([2]))
        (g,) = torch.autograd.grad(loss, z)
        share = heads.counts * z.detach().exp()[0] / (heads.counts * z.detach().exp()[0]).sum()
        close(g[0], share - torch.tensor([0, 0, 1.0], dtype=torch.float64))
        assert float(g[0, 1]) == 0
        assert bool(loss.isfinite())

    @pytest.mark.parametrize("kind", ["mlp", "batchnorm", "tokens"])
    @pytest.mark.parametrize("engine", [None, Vectorized(2, exact=True)], ids=["serial", "vectorized"])
    def test_at_gamma_zero_the_generic_model_is_that_of_fedavg(self, kind: str, engine: Any) -> None:
        settings = {**COMMON, "epochs": 2, "participation": 3}
        e = experiment(net(kind), ragged(kind), alg.fedrod(**settings, gamma=0.0), engine)
        right = play(experiment(net(kind), ragged(kind), alg.fedavg(**settings), engine), 3).state.u
        left = generic_part(play(e, 3).state.u)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[k], right[k]) for k in right)

    def test_balanced_clients_train_the_generic_model_of_fedavg(self) -> None:
        x = ragged("mlp").x
        even = [(x[i : i + 3], torch.arange(3)) for i in (0, 5, 10)]
        data = ct.data.from_tensors(train=even, test=even, classes=3)
        settings = {**COMMON, "epochs": 1, "participation": 1.0}
        left = generic_part(play(experiment(net("mlp"), data, alg.fedrod(**settings)), 2).state.u)
        right = play(experiment(net("mlp"), data, alg.fedavg(**settings)), 2).state.u
        for k in right:
            torch.testing.assert_close(left[k], right[k], rtol=1e-6, atol=1e-9)

    def test_the_generic_model_does_not_know_the_personal_heads(self) -> None:
        settings = {**COMMON, "epochs": 2, "participation": 3}
        slow, fast = (
            play(experiment(net("mlp"), ragged("mlp"), alg.fedrod(**settings, personal_lr=lr)), 3).state
            for lr in (0.0, 0.3)
        )
        assert all(torch.equal(slow.u[k], fast.u[k]) for k in slow.u)
        assert not torch.equal(slow.v["3.personal.weight"], fast.v["3.personal.weight"])
        assert not slow.v["3.personal.weight"].any()

    def test_one_step_in_closed_form(self) -> None:
        """A single linear layer: h and q step along the printed gradients, each clipped by itself."""
        x, y = torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.tensor([0])
        fed = ct.data.from_tensors(train=[(x, y)], test=[(x, y)], classes=2)
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(2, 2, dtype=torch.float64))
        settings = {"lr": 0.1, "personal_lr": 0.2, "momentum": 0.0, "weight_decay": 0.0, "steps": 1, "clip": 0.1}
        state = play(experiment(module, fed, alg.fedrod(**settings, lr_decay=1.0, participation=1)), 1).state
        w, c = module[0].weight.detach(), module[0].bias.detach()
        z = x @ w.T + c
        # L_g: the client has only class 0, so the other one is masked and the gradient vanishes
        close(state.u["0.generic.weight"], w)
        g = torch.softmax(z, 1) - torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        full = torch.cat([(g.T @ x).flatten(), g[0]])
        step = 0.2 * full * min(1, 0.1 / (float(full.norm()) + 1e-6))
        close(state.v["0.personal.weight"][0].flatten(), -step[:4])
        close(state.v["0.personal.bias"][0], -step[4:])

    def test_a_personal_head_of_zero_answers_as_the_generic_one(self) -> None:
        e = experiment(net("mlp"), ragged("mlp"), alg.fedrod(**COMMON, participation=3))
        x = ragged("mlp").test_x[:4]
        start = e.model.start
        hidden = torch.tanh(x.flatten(1) @ start["1.weight"].T + start["1.bias"])
        close(e.model.outputs(start, x), hidden @ start["3.generic.weight"].T + start["3.generic.bias"])

    def test_clients_count_their_own_classes(self) -> None:
        fed = ragged("mlp")
        state = experiment(net("mlp"), fed, alg.fedrod(**COMMON, participation=3)).start().state
        for i, own in enumerate(fed.train):
            assert state.v["3.counts"][i].tolist() == fed.y[own].bincount(minlength=3).tolist()

    def test_a_made_head_is_shared_and_fits_the_client(self) -> None:
        anew = {"hyper": True, "keep_head": False, "personal_lr": 0.5}
        e = experiment(net("mlp"), ragged("mlp"), alg.fedrod(**COMMON, participation=1.0, **anew))
        state = play(e, 5).state
        assert set(state.v) == {"3.counts"}
        heads = [e.model.to_module(state.u | {k: v[i] for k, v in state.v.items()})[3] for i in (0, 1)]
        features = torch.ones(1, 8, dtype=torch.float64)
        assert not torch.allclose(heads[0].generated(features), heads[1].generated(features))

    def test_personal_heads_help(self, tmp_path: Any) -> None:
        fed = ct.data.federate("digits", clients=6, partition="pathological:2", seed=0)
        algorithm = alg.fedrod(lr=0.02, batch_size=16, epochs=2, participation=1.0, weight_decay=0.0)
        run = ct.fit(ct.models.build("small-cnn", fed), fed, algorithm, rounds=3, progress=False, out=tmp_path / "a")
        personal = run.summary["personal_accuracy"]["after_mix"]["final"]
        assert personal > run.summary["global_accuracy"]
        mine, again = (r.clients[0].module()(fed.test_x[fed.test[0]]) for r in (run, ct.load(tmp_path / "a")))
        assert mine.shape[1] == 10
        assert torch.equal(mine, again)

    def test_another_loss_is_refused(self) -> None:
        with pytest.raises(UserError, match="cross-entropy"):
            alg.fedrod().adapt(ct.models.model.Model(net("mlp"), mean_output))


class TestDisPFL:
    """Masks of constant density; a mean over those who have a coordinate."""

    def test_erk_spreads_the_density(self) -> None:
        shapes = {"a": (64, 3, 3, 3), "b": (64, 64, 3, 3), "c": (64,), "d": (10, 64), "e": (10,), "f": ()}
        total = sum(int(np.prod(s)) for s in shapes.values())
        for density in (0.05, 0.2, 0.5, 0.8, 1.0):
            alive = erk(shapes, density)
            assert all(alive[k] <= np.prod(shapes[k]) for k in shapes)
            assert abs(sum(alive.values()) - density * total) <= len(shapes)
        thin = erk(shapes, 0.05)
        assert thin["b"] / 36864 == pytest.approx(thin["a"] / 1728 * (134 / 36864) / (73 / 1728), rel=0.02)

    def test_the_moving_share_is_annealed(self) -> None:
        assert cosine(0.5, 0.0, 0, 100) == 0.5
        assert cosine(0.5, 0.0, 50, 100) == pytest.approx(0.25)
        assert cosine(0.5, 0.0, 100, 100) == pytest.approx(0)

    @pytest.mark.parametrize("regrow", ["random", "gradient"])
    def test_every_tensor_keeps_its_density(self, regrow: str) -> None:
        e = experiment(net("groupnorm"), ragged("groupnorm"), alg.dispfl(**COMMON, topology="ring", regrow=regrow))
        now = e.start()
        first = {k: v.flatten(1).sum(1) for k, v in now.state.mask.items()}
        moved = False
        for t in range(4):
            before = now.state.mask
            now, _ = e.run_round(now, t, evaluate=False)
            moved |= any(not torch.equal(before[k], v) for k, v in now.state.mask.items())
            for k, v in now.state.mask.items():
                assert torch.equal(v.flatten(1).sum(1), first[k])
                assert bool((now.state.x[k][~v] == 0).all())
        assert moved
        assert all(len({int(c) for c in count}) == 1 for count in first.values())

    def test_trained_models_are_zero_off_their_mask(self) -> None:
        e = experiment(net("mlp"), ragged("mlp"), alg.dispfl(**COMMON, topology="ring", density=0.3))
        start = e.start().state
        trained = e.program.train(start, e.round(0)).models
        assert all(bool((trained[k][~m] == 0).all()) for k, m in start.mask.items())

    def test_coordinates_are_averaged_over_those_who_have_them(self) -> None:
        """(2, 0), (4, 6), (0, 3) under masks (1, 0), (1, 1), (0, 1): the mean is (3, 4.5)."""
        x = torch.zeros(1, 2, dtype=torch.float64)
        pairs = [(x, torch.zeros(1, dtype=torch.float64))] * 3
        module = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        e = experiment(module, ct.data.from_tensors(pairs, pairs), alg.dispfl(topology="full", steps=0, prune_rate=0.0))
        w = torch.tensor([[2.0, 0], [4, 6], [0, 3]], dtype=torch.float64).view(3, 1, 2)
        mask = torch.tensor([[1, 0], [1, 1], [0, 1]]).bool().view(3, 1, 2)
        start = e.start()
        state = start.state._replace(x={"weight": w}, mask={"weight": mask})
        after = e.run_round(start._replace(state=state), 0, evaluate=False)[0].state
        close(after.x["weight"].view(3, 2), [[3, 0], [3, 4.5], [0, 4.5]])

    @ENGINES
    def test_one_round_in_closed_form(self, engine: Any) -> None:
        """Everybody has everything: a ring of equal weights."""
        e = experiment(Quadratic(), golden(), plain("dispfl", topology="ring", density=1.0), engine)
        state = play(e, 1, scattered(e)).state
        z = b + s * (torch.tensor([1, 0, 0.5, -1], dtype=torch.float64) - b)
        ring = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]], dtype=torch.float64) / 3
        close(state.x["u"], ring @ z)
        assert K_U == 2

    def test_the_smallest_are_dropped_and_the_best_regrown(self) -> None:
        w = torch.tensor([[3.0, -1.0, 2.0, 0.0, 0.0, 0.0]])
        mask = torch.tensor([[True, True, True, False, False, False]])
        score = torch.tensor([[9.0, 0.0, 9.0, 1.0, 5.0, 2.0]])
        assert regrown(w, mask, 0.3, score).tolist() == [[True, False, True, False, True, False]]
        again = torch.tensor([[9.0, 8.0, 9.0, 1.0, 5.0, 2.0]])  # what was dropped may come back
        assert torch.equal(regrown(w, mask, 0.3, again), mask)
        assert torch.equal(regrown(w, mask, 0.0, score), mask)

    def test_alone_with_a_mask_that_stays_is_sparse_local_training(self) -> None:
        settings = {**COMMON, "epochs": 1}
        e = experiment(net("mlp"), ragged("mlp"), alg.dispfl(**settings, topology="none", prune_rate=0.0))
        now, _ = e.run_round(e.start(), 0, evaluate=False)
        twice = e.run_round(now, 1, evaluate=False)[0].state
        assert all(torch.equal(twice.mask[k], e.start().state.mask[k]) for k in twice.mask)
        trained = e.program.train(now.state, e.round(1)).models
        assert all(torch.equal(trained[k], v) for k, v in twice.x.items())

    def test_only_what_is_alive_is_counted(self) -> None:
        e = experiment(net("mlp"), ragged("mlp"), alg.dispfl(**COMMON, topology="ring", density=0.25))
        state = e.start().state
        sent = e.program.traffic(state, e.round(0))
        alive = sum(int(m[0].sum()) for m in state.mask.values())
        entries = sum(m[0].numel() for m in state.mask.values())
        assert sent.totals.messages == 10
        assert sent.totals.parameters == 10 * alive
        assert sent.totals.bytes == 10 * (8 * alive + -(-entries // 8))
        assert alive < 0.26 * entries

    def test_every_client_draws_from_its_own_generator_tensor_by_tensor(self) -> None:
        """Clients draw at the same time; what each draws is what it would draw alone."""
        e = experiment(net("groupnorm"), ragged("groupnorm"), alg.dispfl(**COMMON, topology="ring", density=0.4))
        mask, r = e.start().state.mask, e.round(2)
        score, count = (
            random_scores(mask, e.settings.seed, r),
            erk({k: tuple(v.shape[1:]) for k, v in mask.items()}, 0.4),
        )
        for client in range(e.federation.clients):
            masks, scores = (rng.generator(e.settings.seed, "mask", t, client) for t in (0, 3))
            for k, v in mask.items():
                assert v[client].flatten().tolist() == (masks.permutation(v[0].numel()) < count[k]).tolist()
                assert score[k][client].flatten().tolist() == scores.random(v[0].numel(), np.float32).tolist()

    def test_random_and_gradient_regrowth_differ(self) -> None:
        left, right = (
            play(experiment(net("mlp"), ragged("mlp"), alg.dispfl(**COMMON, topology="ring", regrow=r)), 1).state.mask
            for r in ("random", "gradient")
        )
        assert any(not torch.equal(left[k], right[k]) for k in left)
