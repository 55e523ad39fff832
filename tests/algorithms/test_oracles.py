"""Golden values and closed forms on the quadratic toy problem, in float64 to 1e-10."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.algorithms.options import Training
from laws import BY_METHOD, LAWS
from quadratic import ENGINES, ETA_U, ETA_V, K_U, K_V, RING, a, b, c, close, d, plain, printed, s, u0
from toys import Coupled, Quadratic, experiment, golden, play, scattered


def after(alg: Algorithm, engine: Any, rounds: int = 1, u: float = 0.5, v: float = 1.0, spread: bool = False) -> Any:
    e = experiment(Quadratic(u, v), golden(), alg, engine)
    return play(e, rounds, scattered(e) if spread else None).state


@ENGINES
@pytest.mark.parametrize("method", [law.method for law in LAWS if not isinstance(law.closed_form, str)])
def test_the_closed_form_of_the_row_of_laws(method: str, engine: Any) -> None:
    form = BY_METHOD[method].closed_form
    e = experiment(Quadratic(), golden(), plain(method, **form.settings), engine)
    now = e.start()
    for t in range(3):
        now, _ = e.run_round(now, t, evaluate=False)
        found = e.program.models(now.state)
        for name, expected in zip("uv", form.after(t + 1), strict=True):
            close(found[name], expected)


def test_every_method_has_a_closed_form() -> None:
    """In its row, or in the test that its row names."""
    for law in LAWS:
        if isinstance(law.closed_form, str):
            file, *names = law.closed_form.split("::")
            (path,) = Path(__file__).parents[1].glob(f"*/{file}")
            node: Any = ast.parse(path.read_text(encoding="utf-8"))
            for name in names:
                (node,) = (part for part in node.body if getattr(part, "name", None) == name)
            assert isinstance(node, ast.FunctionDef)


def dfedalt(**settings: Any) -> Algorithm:
    return plain("dfedalt", personal="v", topology="ring", personal_lr=ETA_V, personal_steps=K_V, **settings)


@ENGINES
def test_dfedalt(engine: Any) -> None:
    one, two = after(dfedalt(), engine, 1, spread=True), after(dfedalt(), engine, 2, spread=True)
    close(one.x["v"], [0.6, 1, 0.6, 1.4])
    close(one.x["u"], RING @ (b + s * (u0 - b)))
    torch.testing.assert_close(
        one.x["u"], torch.tensor([0.3066666667, 0.635, 0.395, 0.8483333333], dtype=torch.float64)
    )
    torch.testing.assert_close(
        two.x["u"], torch.tensor([0.4767333333, 0.5661166667, 0.7351166667, 0.8657833333], dtype=torch.float64)
    )
    close(two.x["v"], [0.36, 1, 0.28, 1.64])


@ENGINES
def test_dfedalt_shared_phase_before_mixing(engine: Any) -> None:
    e = experiment(Quadratic(), golden(), dfedalt(), engine)
    trained = e.program.train(scattered(e).state, e.round(0))
    close(trained.models["u"], [1, -0.36, 1.265, 0.28])


@ENGINES
def test_dfedavg_and_dfedavgm(engine: Any) -> None:
    close(after(plain("dfedavg", topology="ring"), engine, spread=True).x["u"], RING @ (b + s * (u0 - b)))
    e = experiment(Quadratic(), golden(), plain("dfedavgm", topology="ring", momentum=0.9), engine)
    close(e.program.train(scattered(e).state, e.round(0)).models["u"], [1, -0.54, 1.67, 1])
    mixed = play(e, 1, scattered(e)).state.x["u"]
    close(mixed, RING @ torch.tensor([1, -0.54, 1.67, 1], dtype=torch.float64))
    v = after(plain("dfedavg", topology="ring"), engine, spread=True).x["v"]
    printed(v, [1, 0.7533333333, 0.9933333333, 0.8733333333])


@ENGINES
def test_dpsgd_in_both_forms(engine: Any) -> None:
    lian = after(plain("dpsgd", topology="ring", variant="lian", steps=1), engine, spread=True).x["u"]
    close(lian, [0, 0.3, 0.85 / 3, 2.9 / 3])
    epoch = after(plain("dpsgd", topology="ring", steps=1), engine, spread=True).x["u"]
    close(epoch, [0.2, 1.75 / 3, 0.55 / 3, 1.75 / 3])
    assert float(lian.mean()) == pytest.approx(0.3875, abs=1e-12)  # both keep the mean of u - lr g
    assert float(epoch.mean()) == pytest.approx(0.3875, abs=1e-12)


@ENGINES
def test_dpsgd_lian_fixed_point(engine: Any) -> None:
    """The limit solves (I - W + lr diag(a)) x = lr a b."""
    x = after(plain("dpsgd", topology="ring", variant="lian", steps=1), engine, rounds=400).x["u"]
    limit = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - RING + ETA_U * torch.diag(a), ETA_U * a * b)
    close(x, limit)


@ENGINES
def test_fedavg(engine: Any) -> None:
    uniform = plain("fedavg", participation=1.0, weighting="uniform")
    close(after(uniform, engine, 1).u["u"], 0.66)
    close(after(uniform, engine, 2).u["u"], 0.752)
    fixed = ((1 - s) * b).sum() / (1 - s).sum()
    close(after(uniform, engine, 200).u["u"], fixed)
    assert float(fixed) == pytest.approx(0.8764705882, abs=1e-9)


@ENGINES
def test_fedavg_weights_by_size(engine: Any) -> None:
    e = experiment(Quadratic(), golden(copies=(1, 2, 3, 4)), plain("fedavg", participation=1.0), engine)
    close(play(e, 1).state.u["u"], 0.759)


@ENGINES
def test_fedper_moves_u_as_fedavg_and_v_as_local(engine: Any) -> None:
    per = after(plain("fedper", participation=1.0, weighting="uniform", personal="v"), engine, 3)
    avg = after(plain("fedavg", participation=1.0, weighting="uniform"), engine, 3)
    own = after(plain("local"), engine, 3)
    close(per.u["u"], avg.u["u"])
    close(per.v["v"], own.x["v"])


@ENGINES
def test_local_closed_form(engine: Any) -> None:
    rounds = 3
    close(after(plain("local"), engine, rounds).x["u"], b + (1 - ETA_U * a) ** (K_U * rounds) * (0.5 - b))
    close(after(plain("local"), engine, rounds).x["v"], d + (1 - ETA_U * c) ** (K_U * rounds) * (1 - d))


@ENGINES
def test_alternating_is_not_joint(engine: Any) -> None:
    """On F = (u + v - b)^2 / 2 the order of the updates shows."""
    x = torch.tensor([[0.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
    pair = (x, torch.zeros(1, dtype=torch.float64))
    fed = ct.data.from_tensors(train=[pair], test=[pair])
    alt = plain("dfedalt", personal="v", topology="none", personal_lr=ETA_V, personal_steps=1, steps=1)
    state = play(experiment(Coupled(), fed, alt, engine), 1).state
    close(state.x["v"], [1.1])
    close(state.x["u"], [0.54])
    joint = plain("fedper", personal="v", participation=1.0, steps=1)
    state = play(experiment(Coupled(), fed, joint, engine), 1).state
    close(state.u["u"], 0.55)
    close(state.v["v"], [1.05])  # both at lr 0.1


@ENGINES
def test_gossip_alone_contracts_as_the_graph_says(engine: Any) -> None:
    """Without local steps the distance to the mean shrinks by exactly 1/3 a round on a ring of four."""
    e = experiment(Quadratic(), golden(), plain("dfedavg", topology="ring", steps=0), engine)
    now = scattered(e)
    before = spread_of(now.state.x["u"])
    for t in range(3):
        now, row = e.run_round(now, t, evaluate=True)
        assert row["consensus_distance"] == pytest.approx(before / 9 ** (t + 1), rel=1e-10)
        assert float(now.state.x["u"].mean()) == pytest.approx(float(u0.mean()), abs=1e-14)
        assert row["train_loss"] is None


def spread_of(u: torch.Tensor) -> float:
    return float((u - u.mean()).square().mean())


def test_the_golden_consensus_distances() -> None:
    e = experiment(Quadratic(), golden(), dfedalt())
    z = e.program.train(scattered(e).state, e.round(0)).models["u"]
    assert spread_of(z) == pytest.approx(0.4036671875, abs=1e-10)
    _, row = e.run_round(scattered(e), 0, evaluate=True)
    assert row["consensus_distance"] == pytest.approx(0.0448519097, abs=1e-10)


@ENGINES
def test_learning_rate_decays_by_the_round(engine: Any) -> None:
    state = after(plain("local", steps=1, lr_decay=0.5), engine, 2)
    close(state.x["u"], b + (1 - ETA_U * a) * (1 - ETA_U / 2 * a) * (0.5 - b))


def test_learning_rate_falls_in_steps_as_torch_has_it() -> None:
    """100 rounds, some of whose milestones are no exact binary fractions, against MultiStepLR; rates are FedBABU's."""
    milestones = (0.07, 0.5, 0.57, 0.75)
    training = Training().with_options({"lr": 0.3, "lr_milestones": milestones, "lr_gamma": 0.2})
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(theirs, [round(100 * m) for m in milestones], gamma=0.2)
    for t in range(100):
        assert training.round_rates.rate(0.3, t, 100) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12)
        theirs.step()
        schedule.step()
    fedbabu = ct.algorithms.fedbabu(lr_milestones=(0.5, 0.75))
    assert ct.algorithms.fedbabu(**fedbabu.settings).settings == fedbabu.settings
    both = Training().with_options({"lr_decay": 0.5, "lr_milestones": [0.5]})
    assert [both.round_rates.rate(8.0, t, 4) for t in range(4)] == pytest.approx([8, 4, 0.2, 0.1])
    assert Training(lr_min=0.1).with_options({"lr_milestones": [0.5]}).lr_min is None


@ENGINES
def test_momentum_that_persists(engine: Any) -> None:
    """Two rounds of one step with a lasting buffer are one round of two steps."""
    lasting = after(plain("local", steps=1, momentum=0.9, keep_optimizer_state=True), engine, 2)
    close(lasting.x["u"], after(plain("local", steps=2, momentum=0.9), engine, 1).x["u"])
    fresh = after(plain("local", steps=1, momentum=0.9), engine, 2)
    close(fresh.x["u"], after(plain("local", steps=2), engine, 1).x["u"])


@ENGINES
def test_momentum_is_heavy_ball(engine: Any) -> None:
    """y_{k+1} = y_k - lr g + momentum (y_k - y_{k-1}), with y_{-1} = y_0."""
    y = previous = torch.full((4,), 0.5, dtype=torch.float64)
    for _ in range(5):
        y, previous = y - ETA_U * a * (y - b) + 0.9 * (y - previous), y
    close(after(plain("local", steps=5, momentum=0.9), engine, 1).x["u"], y)
