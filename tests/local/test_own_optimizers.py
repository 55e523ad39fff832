"""Optimizers of one's own, rates by round and by step, and batches in slices."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, lr_scheduler

import coterie as ct
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, zeros_like
from coterie.engines import Serial, Vectorized
from coterie.local.optimizers import RoundRates, Slots
from helpers_cli import SMALL, Cli, contents
from quadratic import ETA_U, a, b, close, plain
from same_numbers import assert_same, graphed_for
from toys import Quadratic, experiment, golden, models, net, play, ragged

MINE = "mine_of_optimizers"


class Signs(NamedTuple):
    """x <- x - lr sign(m);  m <- keep m + g"""

    keep: float = 0.5

    def init(self, x: Tensors) -> Slots:
        return {"mean": zeros_like(x)}

    def step(self, x: Tensors, g: Tensors, state: Slots, lr: float | Tensor) -> tuple[Tensors, Slots]:
        m = {k: self.keep * v + g[k] for k, v in state["mean"].items()}
        return {k: v - lr * m[k].sign() for k, v in x.items()}, {"mean": m}


def signs(weight_decay: float, keep: float = 0.5) -> Signs:
    return Signs(keep)


@pytest.mark.parametrize("keep", [False, True])
def test_one_s_own_on_every_engine(keep: bool) -> None:
    """By name, with an option and a setting, and as a value: the same steps."""
    common = {"lr": 0.01, "batch_size": 4, "epochs": 1, "topology": "ring", "keep_optimizer_state": keep}
    named = ct.algorithms.dfedalt(optimizer=f"{__name__}:signs,keep=0.25", **common)
    value = ct.algorithms.dfedalt(optimizer=Signs(0.25), **common)
    engines = (Serial(), Vectorized(3), graphed_for(2))
    slow, fast, replayed = (models(experiment(net("mlp"), ragged("mlp"), named, e), 2) for e in engines)
    assert_same(fast, slow, 1e-10)
    assert_same(replayed, slow, 1e-10)
    assert_same(models(experiment(net("mlp"), ragged("mlp"), value), 2), slow, 0)


def test_one_s_own_in_closed_form() -> None:
    e = experiment(Quadratic(), golden(), plain("local", optimizer=Signs(0.5), steps=2))
    x = torch.full((4,), 0.5, dtype=torch.float64)
    m = torch.zeros(4, dtype=torch.float64)
    for _ in range(2):
        m = 0.5 * m + a * (x - b)
        x = x - ETA_U * m.sign()
    close(play(e, 1).state.x["u"], x)


def wrong(change: Callable[[Tensors, Slots], tuple[Any, Any]]) -> Any:
    class Changed(Signs):
        def step(self, x: Tensors, g: Tensors, state: Slots, lr: float | Tensor) -> tuple[Tensors, Slots]:
            return change(x, state)

    return Changed()


class Unhashable(Signs):
    __hash__ = None  # type: ignore[assignment]


class Listed(Signs):
    def init(self, x: Tensors) -> Any:
        return zeros_like(x)


def growing(x: Tensors, state: Slots) -> Any:
    return {k: torch.cat([v.flatten(), v.flatten()]) for k, v in x.items()}, state


def halved(x: Tensors, state: Slots) -> Any:
    return {k: v.float() for k, v in x.items()}, state


def writing(x: Tensors, state: Slots) -> Any:
    return {k: v.mul_(0.5) for k, v in x.items()}, state


def remembering(x: Tensors, state: Slots) -> Any:
    return x, state | {"more": x}


def forgetting(x: Tensors, state: Slots) -> Any:
    return dict(list(x.items())[1:]), state


def alone(x: Tensors, state: Slots) -> Any:
    return x


def nothing(x: Tensors, state: Slots) -> Any:
    return None


def listed(x: Tensors, state: Slots) -> Any:
    return list(x.values()), state


def numbers(x: Tensors, state: Slots) -> Any:
    return dict.fromkeys(x, 0.5), state


REFUSED = {
    "no state": (lambda: wrong(alone), "returned dict, not a point and a state"),
    "nothing": (lambda: wrong(nothing), "returned NoneType, not a point and a state"),
    "a list": (lambda: wrong(listed), "returned tuple, not a point and a state"),
    "numbers": (lambda: wrong(numbers), "not a tensor but float"),
    "other shapes": (lambda: wrong(growing), "shape"),
    "another type": (lambda: wrong(halved), "type"),
    "writes": (lambda: wrong(writing), "writes into"),
    "more slots": (lambda: wrong(remembering), "slots"),
    "a parameter less": (lambda: wrong(forgetting), "other parameters"),
    "no hash": (Unhashable, "no hash"),
    "no slots": (Listed, "by slot and by parameter"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_a_part_of_a_step_is_refused(which: str) -> None:
    make, says = REFUSED[which]
    with pytest.raises(UserError, match=says):
        experiment(net("mlp"), ragged("mlp"), ct.algorithms.fedavg(optimizer=make()))


def number() -> int:
    return 3


SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"optimizer": "adan"}, "did you mean adam"),
    "options of ours": ({"optimizer": "adam:0.9"}, "no place for '0.9'"),
    "no optimizer": ({"optimizer": f"{__name__}:number"}, "returned int"),
    "an option too many": ({"optimizer": f"{__name__}:signs,kep=1"}, "did you mean keep"),
    "a beta of 1": ({"optimizer": "adam", "betas": (0.9, 1.0)}, "below 1"),
    "one beta": ({"optimizer": "adam", "betas": (0.9,)}, "give both"),
    "no eps": ({"optimizer": "adam", "eps": 0.0}, "above 0"),
    "an unknown schedule": ({"lr_schedule": "cosin:3"}, "did you mean cosine"),
    "a schedule without steps": ({"lr_schedule": "cosine"}, "needs steps"),
    "no factor": ({"lr_schedule": lambda t, k: "fast"}, "returned 'fast' for round 0 and step 0"),
    "a schedule of rounds alone": ({"lr_schedule": f"{__name__}:number"}, "give it these two parameters"),
    "a factor of -1": ({"lr_schedule": lambda t, k: -1.0}, "returned -1"),
    "options of a function": ({"lr_schedule": f"{__name__}:number,x=1"}, "leave the options out"),
}


@pytest.mark.parametrize("which", SENTENCES)
def test_bad_settings_are_refused_in_a_sentence(which: str) -> None:
    settings, says = SENTENCES[which]
    with pytest.raises(UserError, match=says):
        play(experiment(net("mlp"), ragged("mlp"), ct.algorithms.fedavg(epochs=1, **settings)), 1)


LION = """
from coterie.method import zeros_like
from typing import NamedTuple
class Mine(NamedTuple):
    weight_decay: float
    grow: bool
    def init(self, x): return {"m": zeros_like(x)}
    def step(self, x, g, state, lr):
        m = {k: 0.9 * v + g[k] for k, v in state["m"].items()}
        return {k: v.flatten().repeat(2) if self.grow else v - lr * m[k].sign() for k, v in x.items()}, {"m": m}
def mine(weight_decay: float, grow: bool = False): return Mine(weight_decay, grow)
def slower(round: int, step: int) -> float: return 1 / (1 + step)
"""


class TestCommand:
    def test_it_is_named_saved_resumed_and_trusted(self, cli: Cli, tmp_path: Any) -> None:
        (tmp_path / f"{MINE}.py").write_text(LION)
        own = (
            "--optimizer",
            f"{MINE}:mine",
            "--set",
            "keep_optimizer_state=true",
            "--set",
            f"lr_schedule={MINE}:slower",
        )
        cli.succeed("run", "fedper", *own, *SMALL, "--rounds", "2", "--out", "whole", cwd=tmp_path)
        cli.refuse("run", "whole/config.json", "--out", "again", cwd=tmp_path, names=(f"--trust {MINE}:mine",))
        trust = ("--trust", f"{MINE}:mine", "--trust", f"{MINE}:slower")
        cli.succeed("run", "whole/config.json", *trust, "--out", "again", cwd=tmp_path)
        files = [contents(tmp_path / name) for name in ("whole", "again")]
        weights = [{k: v for k, v in one.items() if k.endswith(".safetensors")} for one in files]
        assert weights[0] == weights[1] != {}

    def test_other_shapes_end_with_2_and_write_nothing(self, cli: Cli, tmp_path: Any) -> None:
        (tmp_path / f"{MINE}.py").write_text(LION)
        typed = ("run", "fedavg", "--optimizer", f"{MINE}:mine,grow=true", *SMALL, "--out", "out")
        cli.refuse(*typed, cwd=tmp_path, names=("shape", "Mine"))
        for words, names in (
            ("fedavg --optimizer adam --set betas=0.9,1", ("betas=1", "below 1")),
            ("scaffold --optimizer adam", ("control variates", "leave optimizer out")),
            ("fedavg --set personal_optimizer=adam", ("personal_optimizer",)),
            ("fedavg --set keep_optimizer_state=true --set momentum=0", ("keep_optimizer_state", "give momentum")),
            ("fedavg --set micro_batch=64 --set batch_size=16", ("micro_batch", "less than batch_size")),
        ):
            cli.refuse("run", *words.split(), *SMALL, "--out", "out", cwd=tmp_path, names=names)
        assert not (tmp_path / "out").exists()


def reciprocal(t: int, k: int) -> float:
    return 1 / (1 + t + k)


TORCH: dict[Any, Callable[[SGD, int], Any]] = {
    "exponential:0.5": lambda sgd, t: lr_scheduler.ExponentialLR(sgd, 0.5),
    "milestones:2,gamma=0.1": lambda sgd, t: lr_scheduler.StepLR(sgd, 2, 0.1),
    "cosine:4": lambda sgd, t: lr_scheduler.LambdaLR(sgd, lambda k: (1 + math.cos(math.pi * min(k, 4) / 4)) / 2),
    "warmup:3": lambda sgd, t: lr_scheduler.LinearLR(sgd, 1 / 4, total_iters=3),
    reciprocal: lambda sgd, t: lr_scheduler.LambdaLR(sgd, lambda k: reciprocal(t, k)),
}


@pytest.mark.parametrize("engine", ["serial", "vectorized", "graphed"])
@pytest.mark.parametrize("schedule", TORCH)
def test_rates_change_by_the_step_as_torch_has_it(schedule: Any, engine: str) -> None:
    settings = {"momentum": 0.9, "steps": 6, "lr_schedule": schedule, "lr_warmup": 2}
    run_on = {"serial": Serial(), "vectorized": Vectorized(3), "graphed": graphed_for(2)}[engine]
    e = experiment(Quadratic(), golden(), plain("local", **settings), run_on)
    now, x = e.start(), torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)
    for t in range(2):
        now, _ = e.run_round(now, t, evaluate=False)
        sgd = SGD([x], lr=ETA_U * (t + 1) / 3, momentum=0.9)
        theirs = TORCH[schedule](sgd, t)
        for _ in range(6):
            x.grad = a * (x.detach() - b)
            sgd.step()
            theirs.step()
        torch.testing.assert_close(now.state.x["u"], x.detach(), rtol=1e-12, atol=1e-13)


def test_rates_rise_by_the_round_as_torch_has_it() -> None:
    theirs = SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    schedule = lr_scheduler.LinearLR(theirs, 1 / 6, total_iters=5)
    for t in range(10):
        assert RoundRates(warmup=5).rate(0.3, t, 10) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12)
        theirs.step()
        schedule.step()
    both = RoundRates(end=0.1, warmup=1)
    assert both.rate(0.4, 0, 10) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("method", "settings"), [("scaffold", {}), ("scaffold-p", {"personal": "v", "c_init": "zero"})]
)
def test_control_variates_know_the_rates_of_their_steps(method: str, settings: dict[str, Any]) -> None:
    """c_i is the mean gradient weighed by the rates: the way over the sum of the rates."""
    given = {"participation": 1.0, "steps": 3, "lr_schedule": "exponential:0.5", **settings}
    e = experiment(Quadratic(), golden(), plain(method, **given))
    state = play(e, 1).state
    x = torch.full((4,), 0.5, dtype=torch.float64)
    total = torch.zeros(4, dtype=torch.float64)
    for k in range(3):
        g = a * (x - b)
        total, x = total + 0.5**k * g, x - ETA_U * 0.5**k * g
    close(state.c_i["u"], total / 1.75)


SLICED = {
    "fedavg": {"epochs": 2},
    "fedsam": {"epochs": 1, "rho": 0.1},
    "dfedalt": {"epochs": 1, "topology": "ring", "optimizer": "adam", "eps": 1e-2},
    "scaffold": {"epochs": 1, "c_init": "gradient"},
    "dispfl": {"epochs": 1, "topology": "ring", "regrow": "gradient"},
    "fedrod": {"epochs": 1},
    "apfl": {"epochs": 1},
}


@pytest.mark.parametrize("kind", ["mlp", "groupnorm", "tokens"])
@pytest.mark.parametrize("method", SLICED)
def test_slices_make_the_whole_batch(method: str, kind: str) -> None:
    """Of unequal length, with padding among them, on every engine; FLOPs are the same."""
    common = {"lr": 0.05, "batch_size": 5, **SLICED[method]}
    whole, sliced = (ct.algorithms.build(method, **common, **more) for more in ({}, {"micro_batch": 2}))
    slow = models(experiment(net(kind), ragged(kind), whole), 2)
    for engine in (Serial(), Vectorized(3), graphed_for(2)):
        assert_same(models(experiment(net(kind), ragged(kind), sliced, engine), 2), slow, 1e-11)
    rows = [experiment(net(kind), ragged(kind), alg) for alg in (whole, sliced)]
    flops = [e.run_round(e.start(), 0, evaluate=False)[1]["flops"] for e in rows]
    assert flops[0] == flops[1]


def weighed(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that is divided by the weights of the classes in the batch."""
    return nn.functional.cross_entropy(outputs, targets, torch.tensor([1.0, 2.0, 5.0]).to(outputs))


def test_slices_of_what_looks_at_samples_together_are_refused() -> None:
    algorithm, fed = ct.algorithms.fedavg(micro_batch=2, batch_size=5, epochs=1), ragged("mlp")
    with pytest.raises(UserError, match="micro_batch"):
        experiment(net("batchnorm"), ragged("batchnorm"), algorithm).check()
    with pytest.raises(UserError, match="micro_batch"):
        ct.fit(net("mlp"), fed, algorithm, rounds=1, loss=weighed, progress=False)
    experiment(net("groupnorm"), ragged("groupnorm"), algorithm).check()
