"""Golden values, closed forms and invariants of the papers' methods on the quadratic toy problem."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.core.errors import UserError
from coterie.data.batches import Amount
from coterie.engines import Serial, Vectorized
from coterie.local.corrections import Sam
from coterie.models.model import Model
from coterie.training.experiment import Experiment
from coterie.training.schedule import Schedule
from quadratic import (
    ENGINES,
    ETA_V,
    K_U,
    OWN,
    PUSH,
    RING,
    a,
    b,
    c,
    close,
    column,
    d,
    plain,
    printed,
    s,
    shared_only,
    u0,
)
from toys import Coupled, Quadratic, experiment, golden, mean_output, net, play, ragged, scattered


def pull(t: int) -> Tensor:
    """Row-stochastic, in-sets as the out-sets of PUSH."""
    support = (PUSH.T > 0).double()
    return support / support.sum(1, keepdim=True)


def with_cohorts(e: Experiment, monkeypatch: pytest.MonkeyPatch, *cohorts: list[int]) -> Experiment:
    monkeypatch.setattr(Schedule, "cohort", lambda self, t: np.array(cohorts[t]))
    return e


class TestDFedSalt:
    """Perturbing the shared part, the personal part, or both."""

    def state(self, sam_on: str, engine: Any, rho: float = 0.1, **own: Any) -> Any:
        algorithm = plain("dfedsalt", topology="ring", rho=rho, sam_on=sam_on, **OWN, **{"sam": "plain", **own})
        e = experiment(Quadratic(), golden(), algorithm, engine)
        return play(e, 1, scattered(e)).state

    @ENGINES
    def test_golden(self, engine: Any) -> None:
        on_u, on_v, on_both = (self.state(where, engine) for where in ("shared", "personal", "both"))
        without = self.state("shared", engine, rho=0.0)
        printed(on_u.x["u"], [0.316, 0.64, 0.4213333333, 0.8866666667])
        close(on_v.x["v"], [0.56, 1, 0.58, 1.44])
        assert torch.equal(on_u.x["v"], without.x["v"])
        assert torch.equal(on_v.x["u"], without.x["u"])
        assert torch.equal(on_both.x["u"], on_u.x["u"])
        assert torch.equal(on_both.x["v"], on_v.x["v"])

    @ENGINES
    def test_each_part_has_its_own_radius(self, engine: Any) -> None:
        """v - lr c (v + rho sign(v - d) - d) in closed form; the shared part keeps the other radius."""
        apart, same = self.state("both", engine, personal_rho=0.4), self.state("both", engine)
        close(apart.x["v"], 1 - ETA_V * c * (1 - d + 0.4 * (1 - d).sign()))
        assert torch.equal(apart.x["u"], same.x["u"])
        alone = self.state("personal", engine, personal_rho=0.4)
        assert torch.equal(alone.x["v"], apart.x["v"])
        assert torch.equal(self.state("both", engine, personal_rho=0.1).x["v"], same.x["v"])
        with pytest.raises(UserError, match="sam_on=both"):
            self.state("shared", engine, personal_rho=0.4)

    def test_the_perturbation_has_length_rho(self) -> None:
        points = []

        def grad(x: Any, frozen: Any, batch: Any) -> Any:
            points.append(x["u"])
            return {"u": torch.tensor([3.0, 4.0])}, None

        probe = type("Batch", (), {"y": torch.zeros(1)})()
        Sam(0.7).direction(grad, {})({"u": torch.zeros(2)}, {}, probe)
        assert float((points[1] - points[0]).norm()) == pytest.approx(0.7)

    def test_both_passes_see_the_same_dropout(self) -> None:
        draws = []

        def grad(x: Any, frozen: Any, batch: Any) -> Any:
            draws.append(torch.rand(3))
            return {"u": torch.ones(1)}, None

        probe = type("Batch", (), {"y": torch.zeros(1)})()
        for _ in range(2):
            Sam(0.1).direction(grad, {})({"u": torch.zeros(1)}, {}, probe)
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[1], draws[2])  # and the next step draws anew


@ENGINES
def test_dfedsam_and_its_gossip_steps(engine: Any) -> None:
    def after(**settings: Any) -> Tensor:
        e = experiment(shared_only(), golden(), plain("dfedsam-mgs", topology="ring", rho=0.1, **settings), engine)
        return play(e, 1, scattered(e)).state.x["u"]

    printed(after(gossip_steps=1), [0.316, 0.64, 0.4213333333, 0.8866666667])
    printed(after(gossip_steps=4), [0.5713580247, 0.5541234568, 0.5752592593, 0.5632592593])
    z = torch.tensor([1, -0.396, 1.316, 0.344], dtype=torch.float64)
    for q in (1, 2, 3, 7):
        close(after(gossip_steps=q), torch.linalg.matrix_power(RING, q) @ z)
        assert float(after(gossip_steps=q).mean()) == pytest.approx(0.566, abs=1e-12)


@ENGINES
def test_fedsam(engine: Any) -> None:
    alg = plain("fedsam", rho=0.1, participation=1.0, weighting="uniform")
    e = experiment(shared_only(), golden(), alg, engine)
    close(e.program.train(e.start().state, e.round(0)).models["u"], [0.614, -0.076, 1.316, 0.884])
    close(play(e, 1).state.u["u"], 0.6845)


@ENGINES
def test_fedrep_alternates(engine: Any) -> None:
    x = torch.tensor([[0.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
    pair = (x, torch.zeros(1, dtype=torch.float64))
    fed = ct.data.from_tensors(train=[pair], test=[pair])
    state = play(experiment(Coupled(), fed, plain("fedrep", participation=1, steps=1, **OWN), engine), 1).state
    close(state.u["u"], 0.54)
    close(state.v["v"], [1.1])
    joint = plain(
        "fedavg-p", personal="v", personal_lr=ETA_V, participation=1, steps=1, outer_lr=1.0, personal_outer_lr=1.0
    )
    state = play(experiment(Coupled(), fed, joint, engine), 1).state
    close(state.u["u"], 0.55)
    close(state.v["v"], [1.1])


class TestFedAvgP:
    """Inner and outer step sizes."""

    def state(self, eta: tuple[float, float], engine: Any, rounds: int = 1, **settings: Any) -> Any:
        settings = {"participation": 1.0, "personal": "v", "personal_lr": ETA_V, **settings}
        alg = plain("fedavg-p", outer_lr=eta[0], personal_outer_lr=eta[1], **settings)
        return play(experiment(Quadratic(), golden(), alg, engine), rounds).state

    @ENGINES
    def test_golden(self, engine: Any) -> None:
        close(self.state((1, 1), engine).u["u"], 0.66)
        close(self.state((1, 1), engine).v["v"], [0.36, 1, 0.28, 1.64])
        close(self.state((2, 1.5), engine).u["u"], 0.82)
        close(self.state((2, 1.5), engine).v["v"], [0.04, 1, -0.08, 1.96])

    @ENGINES
    def test_sampled(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Schedule, "cohort", lambda self, t: np.array([0, 2]))
        state = self.state((2, 1.5), engine)
        close(state.u["u"], 1.36)
        close(state.v["v"], [0.04, 1, -0.08, 1])

    def test_one_step_depends_on_the_product_of_step_sizes_alone(self) -> None:
        one = self.state((1, 1), Serial(), steps=1, lr=0.1)
        two = self.state((4, 2), Serial(), steps=1, lr=0.025, personal_lr=ETA_V / 2)
        close(one.u["u"], two.u["u"])
        close(one.v["v"], two.v["v"])

    @ENGINES
    def test_the_personal_part_decays_and_moves_with_its_own_rate(self, engine: Any) -> None:
        """v <- v - personal_lr (g clip / |(g_u, g_v)| + weight_decay v), also where lr is 0."""
        decayed = self.state((1, 1), engine, steps=1, lr=0.2, personal_lr=0.02, weight_decay=0.5)
        close(decayed.v["v"], 1 - 0.02 * (c * (1 - d) + 0.5))
        close(decayed.u["u"], (0.5 - 0.2 * (a * (0.5 - b) + 0.25)).mean())
        still = self.state((1, 1), engine, lr=0.0, personal_lr=0.02, steps=1)
        close(still.u["u"], 0.5)
        close(still.v["v"], 1 - 0.02 * c * (1 - d))
        short = self.state((1, 1), engine, steps=1, lr=0.2, personal_lr=0.02, clip=0.3)
        g, h = a * (0.5 - b), c * (1 - d)
        scale = (0.3 / ((g**2 + h**2).sqrt() + 1e-6)).clamp(max=1)
        close(short.v["v"], 1 - 0.02 * scale * h)

    @pytest.mark.parametrize("eta", [0.5, 1.0, 1.5])
    def test_fixed_point(self, eta: float) -> None:
        state = self.state((eta, 1), Serial(), rounds=150)
        close(state.u["u"], ((1 - s) * b).sum() / (1 - s).sum())
        close(state.v["v"], d)


class TestScaffold:
    """Control variates: golden values, the mean of c_i, the right limit."""

    def run(self, engine: Any, rounds: int, monkeypatch: Any = None, cohorts: Any = (), **settings: Any) -> Any:
        e = experiment(shared_only(), golden(), plain("scaffold", **{"participation": 1.0, **settings}), engine)
        if cohorts:
            with_cohorts(e, monkeypatch, *cohorts)
        return play(e, rounds).state

    @ENGINES
    def test_golden(self, engine: Any) -> None:
        one, two = self.run(engine, 1), self.run(engine, 2)
        close(one.u["u"], 0.66)
        close(one.c_i["u"], [-0.475, 2.7, -3.825, -1.6])
        close(one.c["u"], -0.8)
        close(two.u["u"], 0.764375)
        close(two.c_i["u"], [-0.30675, 3.338, -3.87075, -1.248])
        close(two.c["u"], -0.521875)
        close(self.run(engine, 1, c_init="gradient").u["u"], 0.675)
        close(self.run(engine, 2, c_init="gradient").u["u"], 0.775)

    @ENGINES
    def test_sampled(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        cohorts = ([0, 2], [1, 3])
        one, two = (self.run(engine, k, monkeypatch, cohorts) for k in (1, 2))
        close(one.u["u"], 0.93)
        close(one.c["u"], -1.075)
        close(two.u["u"], 0.78775)
        close(two.c["u"], -0.181875)

    @pytest.mark.parametrize("steps", [1, 2, 5])
    @pytest.mark.parametrize("option", ["I", "II"])
    def test_the_limit_is_the_optimum_for_any_number_of_steps(self, steps: int, option: str) -> None:
        close(self.run(Serial(), 150, steps=steps, option=option).u["u"], (a * b).sum() / a.sum())

    def test_options_agree_on_one_full_batch_step(self) -> None:
        one, two = (self.run(Serial(), 3, steps=1, option=o) for o in ("I", "II"))
        close(one.u["u"], two.u["u"])
        close(one.c_i["u"], two.c_i["u"])

    @pytest.mark.parametrize("method", ["scaffold", "scaffold-p"])
    @pytest.mark.parametrize("key", ["momentum", "weight_decay", "clip"])
    def test_anything_but_plain_sgd_is_refused(self, key: str, method: str) -> None:
        with pytest.raises(ct.UserError, match=key):
            ct.algorithms.build(method, **{key: 0.5})


class TestScaffoldP:
    """The paper's own initialization and two step sizes."""

    def run(self, engine: Any, rounds: int, **settings: Any) -> Any:
        settings = {"participation": 1.0, "personal": "v", "personal_lr": ETA_V, "outer_lr": 1.0, **settings}
        e = experiment(Quadratic(), golden(), plain("scaffold-p", **{"personal_outer_lr": 1.0, **settings}), engine)
        return play(e, rounds).state

    @ENGINES
    def test_golden(self, engine: Any) -> None:
        one = self.run(engine, 1)
        close(one.u["u"], 0.675)
        close(one.c_i["u"], [-0.45, 3.1, -4.35, -1.8])
        close(one.c["u"], -0.875)
        close(self.run(engine, 2).u["u"], 0.775)
        close(self.run(engine, 1, outer_lr=2.0).u["u"], 0.85)
        close(one.v["v"], [0.36, 1, 0.28, 1.64])

    def test_the_limit_is_the_optimum(self) -> None:
        state = self.run(Serial(), 150)
        close(state.u["u"], 0.9)
        close(state.v["v"], d)

    @pytest.mark.parametrize("method", ["scaffold", "scaffold-p"])
    def test_the_mean_of_c_i_is_c_in_every_round(self, method: str) -> None:
        alg = ct.algorithms.build(method, lr=0.05, steps=4, batch_size=4, participation=3)
        e = experiment(net("mlp"), ragged("mlp"), alg)
        now = e.start()
        for t in range(4):
            now, _ = e.run_round(now, t, evaluate=False)
            for k in now.state.c:
                torch.testing.assert_close(now.state.c_i[k].mean(0), now.state.c[k], rtol=1e-9, atol=1e-12)
        assert all(float(v.abs().max()) > 1e-3 for v in now.state.c.values())  # else the mean of zeros is zero
        assert all(float(v.std(0).max()) > 1e-3 for v in now.state.c_i.values())

    def test_c_i_is_the_mean_of_the_gradients_that_were_taken(self) -> None:
        """(x - y_K) / (K lr) undone: the corrected steps give back the batch gradients' mean."""
        alg = ct.algorithms.scaffold(lr=0.05, steps=3, batch_size=4, participation=1.0)
        e = experiment(net("mlp"), ragged("mlp"), alg)
        start = e.start().state
        trained = e.program.train(start, e.round(0))
        plain_steps = (start.u["1.weight"] - trained.models["1.weight"]) / (3 * 0.05)  # c = c_i = 0 in round 0
        torch.testing.assert_close(trained.private[1]["1.weight"], plain_steps, rtol=1e-9, atol=1e-12)


def test_scaffold_against_a_second_implementation() -> None:
    """Written from the definition with modules and autograd, sharing only the batches."""
    lr, rounds = 0.1, 3
    alg = ct.algorithms.scaffold(lr=lr, epochs=2, batch_size=4, participation=3, outer_lr=0.7)
    fed = ragged("mlp")
    e = experiment(net("mlp"), fed, alg)
    x = [p.detach().clone() for p in net("mlp").parameters()]
    server_c = [torch.zeros_like(p) for p in x]
    client_c = [[torch.zeros_like(p) for p in x] for _ in range(fed.clients)]
    for t in range(rounds):
        r = e.round(t)
        batches = r.batches(0, Amount(epochs=2), 4)
        deltas, corrections = [], []
        for place, i in enumerate(r.cohort):
            module, stream = net("mlp"), batches.one(place)
            with torch.no_grad():
                for p, value in zip(module.parameters(), x, strict=True):
                    p.copy_(value)
            for k in range(stream.steps):
                batch = stream.batch(k)
                module.zero_grad()
                torch.nn.functional.cross_entropy(module(batch.x), batch.y).backward()
                with torch.no_grad():
                    for p, ci, cc in zip(module.parameters(), client_c[i], server_c, strict=True):
                        p -= lr * (p.grad - ci + cc)
            y = [p.detach() for p in module.parameters()]
            fresh = [
                ci - cc + (v - w) / (stream.steps * lr)
                for ci, cc, v, w in zip(client_c[i], server_c, x, y, strict=True)
            ]
            deltas.append([w - v for v, w in zip(x, y, strict=True)])
            corrections.append([f - ci for f, ci in zip(fresh, client_c[i], strict=True)])
            client_c[i] = fresh
        m = len(r.cohort)
        x = [v + 0.7 / m * sum(dd[j] for dd in deltas) for j, v in enumerate(x)]
        server_c = [v + sum(cc[j] for cc in corrections) / fed.clients for j, v in enumerate(server_c)]
    state = play(e, rounds).state
    for name, expected in zip(dict(net("mlp").named_parameters()), x, strict=True):
        torch.testing.assert_close(state.u[name], expected, rtol=1e-9, atol=1e-11)


class TestDitto:
    """The personal models; the global one is FedAvg's."""

    @ENGINES
    def test_golden(self, engine: Any) -> None:
        for prox, expected in (
            ("gradient", [0.9315625, 0.2453125, 1.4265625, 0.9428125]),
            ("split", [0.93128125, 0.29095, 1.3954, 0.9416875]),
        ):
            e = experiment(shared_only(), golden(), plain("ditto", lam=0.75, prox=prox, participation=1.0), engine)
            now = e.start()
            own = now.state.own._replace(p={**now.state.own.p, "u": torch.ones(4, dtype=torch.float64)})
            state = play(e, 1, now._replace(state=now.state._replace(own=own))).state
            close(state.own.p["u"], expected)
            close(state.server.u["u"], 0.66)

    def test_fixed_point_of_one_client(self) -> None:
        e = experiment(shared_only(), golden(), plain("ditto", lam=0.75, participation=1.0))
        state = play(e, 150).state
        close(state.own.p["u"], (a * b + 0.75 * state.server.u["u"]) / (a + 0.75))


class TestPushSum:
    """Numerators and weights: mass is kept, ratios converge to the average."""

    def run(self, method: str, topology: Any, engine: Any, rounds: int, **settings: Any) -> Any:
        own = OWN if method == "dfedpgp" else {}
        e = experiment(Quadratic(), golden(), plain(method, topology=topology, **{**own, **settings}), engine)
        state = play(e, rounds, scattered(e)).state
        return e.program.models(state)["u"], state

    @ENGINES
    def test_dfedpgp_golden(self, engine: Any) -> None:
        z, state = self.run("dfedpgp", column, engine, 1)
        printed(state.x["u"], [0.895, 0.1533333333, 0.575, 0.5616666667])
        close(state.mu, [7 / 6, 5 / 6, 7 / 6, 5 / 6])
        printed(z, [0.7671428571, 0.184, 0.4928571429, 0.674])
        z, state = self.run("dfedpgp", column, engine, 2)
        printed(z, [0.9606719772, 0.2252786939, 0.5323099307, 1.0356547896])
        close(state.mu, [43 / 36, 29 / 36, 43 / 36, 29 / 36])

    @ENGINES
    def test_dfedpgp_by_rows(self, engine: Any) -> None:
        z, state = self.run("dfedpgp", pull, engine, 1)
        printed(z, [0.635, 0.4525, 0.8483333333, 0.64])
        close(state.mu, [1, 1, 1, 1])

    @ENGINES
    def test_closed_form_of_the_shared_phase(self, engine: Any) -> None:
        """z_K = b + (1 - lr a / mu)^K (z - b), u = mu z."""
        e = experiment(Quadratic(), golden(), plain("dfedpgp", topology=column, **OWN), engine)
        now = play(e, 1, scattered(e))
        z, mu = e.program.models(now.state)["u"], now.state.mu
        trained = e.program.train(now.state, e.round(1))
        close(trained.models["u"], b + (1 - 0.1 * a / mu) ** K_U * (z - b))
        close(trained.private.x["u"], mu * trained.models["u"])

    @ENGINES
    @pytest.mark.parametrize("graph", [column, pull])
    def test_several_pushes_of_steps_that_climb_from_the_ratio(self, graph: Any, engine: Any) -> None:
        """u <- P^3 u and mu <- P^3 mu, after steps along the gradient at z + rho (|z| + eta) sign(z - b)."""
        sharp = {"gossip_steps": 3, "rho": 0.1, "sam": "adaptive", "sam_eta": 0.02}
        e = experiment(Quadratic(), golden(), plain("dfedpgp", topology=graph, **OWN, **sharp), engine)
        now, P = scattered(e), torch.linalg.matrix_power(graph(0), 3)
        u, mu = now.state.x["u"], torch.ones(4, dtype=torch.float64)
        for t in range(3):
            now, _ = e.run_round(now, t, evaluate=False)
            for _ in range(K_U):
                z = u / mu
                u = u - 0.1 * a * (z + 0.1 * (z.abs() + 0.02) * torch.sign(z - b) - b)
            u, mu = P @ u, P @ mu
            close(now.state.x["u"], u)
            close(now.state.mu, mu)
        close(e.program.models(now.state)["u"], u / mu)

    @ENGINES
    @pytest.mark.parametrize("tau", [0, 1, 3])
    def test_nothing_is_lost_and_all_agree_in_the_end(self, engine: Any, tau: int) -> None:
        e = experiment(Quadratic(), golden(), plain("osgp", topology=column, steps=0, tau=tau), engine)
        now = scattered(e)
        for t in range(120 * (1 + tau)):  # the later messages arrive, the longer it takes
            now, _ = e.run_round(now, t, evaluate=False)
            mass = now.state.mu.sum() + (now.state.flying_mu.sum() if tau else 0)
            sent = float(now.state.flying["u"].sum()) if tau else 0
            assert float(mass) == pytest.approx(4, abs=1e-12)
            assert float(now.state.x["u"].sum()) + sent == pytest.approx(float(u0.sum()), abs=1e-12)
        close(e.program.models(now.state)["u"], torch.full((4,), 0.125))
        if tau == 0:
            close(now.state.mu, [1.2, 0.8, 1.2, 0.8])

    def test_a_graph_that_is_connected_only_over_time(self) -> None:
        """Each round has a single directed link; together they make a ring."""

        def one_link(t: int) -> Tensor:
            P = torch.eye(4, dtype=torch.float64)
            i = t % 4
            P[i, i], P[(i + 1) % 4, i] = 0.5, 0.5
            return P

        z, state = self.run("dfedpgp", one_link, Serial(), 400, steps=0, personal_steps=0)
        close(z, torch.full((4,), 0.125))
        assert float(state.mu.sum()) == pytest.approx(4, abs=1e-12)

    @ENGINES
    def test_osgp_overlapping_golden(self, engine: Any) -> None:
        e = experiment(shared_only(), golden(), plain("osgp", topology=column, tau=1), engine)
        one = play(e, 1, scattered(e)).state
        printed(one.x["u"], [0.3333333333, -0.18, 0.4216666667, 0.14])
        close(one.mu, [1 / 3, 1 / 2, 1 / 3, 1 / 2])
        assert float(one.flying_mu.sum()) == pytest.approx(7 / 3)
        close(e.program.models(one)["u"], [1, -0.36, 1.265, 0.28])
        two = play(e, 2, scattered(e)).state
        printed(e.program.models(two)["u"], [0.7123529412, 0.2416, 0.3967823529, 1.1390857143])

    @pytest.mark.parametrize("topology", ["ring", "exponential", "full"])
    def test_doubly_stochastic_graphs_need_no_weights(self, topology: str) -> None:
        z, state = self.run("dfedpgp", topology, Serial(), 3)
        e = experiment(Quadratic(), golden(), plain("dfedalt", topology=topology, **OWN))
        close(z, play(e, 3, scattered(e)).state.x["u"])
        close(state.mu, torch.ones(4))

    def test_weights_stay_positive_and_sum_to_n(self) -> None:
        alg = ct.algorithms.dfedpgp(topology="random-push:2", lr=0.05, batch_size=4, epochs=1)
        e = experiment(net("mlp"), ragged("mlp"), alg, Vectorized(5))
        now = e.start()
        for t in range(10):
            now, _ = e.run_round(now, t, evaluate=False)
            assert float(now.state.mu.min()) > 0
            assert float(now.state.mu.sum()) == pytest.approx(5, abs=1e-12)

    def test_what_push_sum_agrees_on_is_the_mean_of_numerators(self) -> None:
        e = experiment(Quadratic(), golden(), plain("osgp", topology=column, tau=1))
        now = play(e, 3, scattered(e))
        agreed = e.program.consensus(now.state)["u"]
        close(agreed, (now.state.x["u"].sum() + now.state.flying["u"].sum()) / 4)


@ENGINES
def test_dfedavgm_p_has_two_rates_in_one_phase(engine: Any) -> None:
    """Together, both gradients at one point: v is one rate ahead of u, and nothing else tells it how far to go."""
    alg = plain("dfedavgm-p", topology="none", personal="v", personal_lr=ETA_V, steps=1)
    state = play(experiment(Coupled(), golden(), alg, engine), 1).state
    close(state.x["u"], 0.5 - 0.1 * (1.5 - b))
    close(state.x["v"], 1 - ETA_V * (1.5 - b))
    same = plain("dfedavgm-p", topology="none", personal="v", steps=1)
    close(play(experiment(Coupled(), golden(), same, engine), 1).state.x["v"], 1 - 0.1 * (1.5 - b))


@pytest.mark.parametrize("length", ["personal_epochs", "personal_steps"])
def test_dfedavgm_p_together_has_no_phase_of_its_own_for_the_personal_part(length: str) -> None:
    with pytest.raises(UserError, match=f"one phase for both parts.*{length}.*schedule=alternate"):
        ct.algorithms.dfedavgm_p(**{length: 2})


def test_dfedavgm_p_in_turns_has_five_personal_epochs_where_nothing_is_said() -> None:
    for given, expected in (({}, (5, None)), ({"personal_steps": 3}, (None, 3)), ({"personal_epochs": 2}, (2, None))):
        settings = ct.algorithms.build("dfedavgm-p", schedule="alternate", **given).settings
        assert (settings["personal_epochs"], settings["personal_steps"]) == expected


def test_a_phase_has_epochs_or_steps() -> None:
    for method in ("dfedalt", "dfedsalt", "dfedpgp", "fedrep"):
        with pytest.raises(UserError, match="give one"):
            ct.algorithms.build(method, personal_epochs=2, personal_steps=3)
    for both in ({"epochs": 3, "steps": 2}, {"lr_decay": 0.5, "lr_min": 0.1}):
        with pytest.raises(UserError, match="give one of them"):
            ct.algorithms.fedavg(**both)


def test_toy_losses_are_what_they_say() -> None:
    fed = golden()
    model = Model(Quadratic(), mean_output)
    expected = (a / 2 * (0.5 - b) ** 2 + c / 2 * (1 - d) ** 2).mean()
    close(model.outputs(model.start, fed.x).mean(), expected)
