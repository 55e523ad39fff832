"""Any module: it trains as a plain loop of PyTorch trains it, or one sentence refuses it before anything is written."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.data import Federation
from coterie.data.batches import Amount
from coterie.engines import Serial
from coterie.training.select_engine import first_steps
from modules import REFUSED, SERIAL, TRAINED, WRAPPERS, Answering, Applied, Recurrent, Unused, two_layers
from same_numbers import graphed_for
from toys import experiment, models, net, ragged

RATES = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ROUNDS, STEPS = 2, 2
# What torch says of some of these modules, in a plain loop, too.
WARNED = "There is a performance drop", "Full backward hook is firing", ".*weight_norm. is deprecated", ".*torch.jit"


@cache
def federation() -> Federation:
    """Two clients with eight and five samples, which one batch holds: their order makes no difference."""
    g = torch.Generator().manual_seed(0)
    drawn = []
    for count in (8, 5, 4, 3):
        y = torch.randint(0, 3, (count,), generator=g)
        drawn.append((torch.randn(count, 6, generator=g) + y[:, None], y))
    return ct.data.from_tensors(train=drawn[:2], test=drawn[2:], classes=3)


def built(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def trained(module: nn.Module, engine: str, out: Path | None = None) -> ct.Run:
    alone = ct.algorithms.local(epochs=STEPS, batch_size=None, clip=None, lr_decay=1.0, **RATES)
    return ct.fit(module, federation(), alone, rounds=ROUNDS, engine=engine, out=out, progress=False)


def plain_loop(build: Callable[[], nn.Module], client: int) -> dict[str, Tensor]:
    """What ``torch.optim`` makes of a client's model; its momentum begins anew in every round."""
    module, fed = built(build), federation()
    x, y = fed.x[fed.train[client]], fed.y[fed.train[client]]
    for _ in range(ROUNDS):
        optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], **RATES)
        for _ in range(STEPS):
            optimizer.zero_grad()
            scores = module(x)
            nn.functional.cross_entropy(getattr(scores, "logits", scores), y).backward()
            for p in module.parameters():  # which torch's decay refuses to add to
                p.grad = p.grad.to_dense() if p.grad is not None and p.grad.is_sparse else p.grad
            optimizer.step()
    return {k: v.detach() for k, v in (*module.named_parameters(), *module.named_buffers())}


@pytest.mark.filterwarnings(*(f"ignore:{words}" for words in WARNED))
@pytest.mark.parametrize("engine", ["auto", SERIAL])
@pytest.mark.parametrize("kind", TRAINED)
def test_it_trains_like_a_plain_loop(kind: str, engine: str) -> None:
    build, expected = TRAINED[kind]
    run = trained(built(build), engine)
    used, reason = run.config["engine"], run.config["engine_reason"]
    if engine == "auto":
        assert used.partition(":")[0] == expected
        assert reason.startswith("this model cannot be vectorized (") == (expected == SERIAL), reason
    for i, client in enumerate(run.clients):
        module = client.module()
        found = dict((*module.named_parameters(), *module.named_buffers()))
        for k, wanted in plain_loop(build, i).items():
            torch.testing.assert_close(found[k], wanted, rtol=1e-4, atol=1e-6, msg=lambda m, k=k: f"{k}: {m}")


@pytest.mark.filterwarnings(*(f"ignore:{words}" for words in WARNED))
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_is_taken_off(kind: str) -> None:
    """What comes out is that of the module inside, to the last bit, under its names; the user's own stays wrapped."""
    plain = trained(nn.Sequential(built(two_layers)) if "inside" in kind else built(two_layers), "auto")
    given = WRAPPERS[kind](built(two_layers))
    names = [k for k, _ in given.named_parameters()]
    run = trained(given, "auto")
    assert run.config["engine"] == plain.config["engine"]
    assert [k for k, _ in given.named_parameters()] == names
    for one, other in zip(run.clients, plain.clients, strict=True):
        assert one.personal.keys() == other.personal.keys()
        assert all(torch.equal(v, other.personal[k]) for k, v in one.personal.items())


@pytest.mark.filterwarnings(*(f"ignore:{words}" for words in WARNED))
@pytest.mark.parametrize("engine", ["auto", SERIAL])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_sentence_refuses_it(kind: str, engine: str, tmp_path: Path) -> None:
    """It names the fix, and leaves no folder that would be in the way of the corrected command."""
    build, sentence = REFUSED[kind]
    with pytest.raises(ct.UserError, match=sentence) as caught:
        trained(built(build), engine, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings(*(f"ignore:{words}" for words in WARNED))
def test_the_first_line_says_why_clients_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    alone = ct.algorithms.local(epochs=1)
    run = ct.fit(Recurrent(nn.LSTM), federation(), alone, rounds=1)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(run.config["engine_reason"])
    assert "aten::lstm" in first
    assert first.endswith("on the serial engine")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_an_engine_that_cannot_is_refused_by_a_sentence(kind: type[nn.Module], tmp_path: Path) -> None:
    with pytest.raises(ct.UserError, match=r"^this model cannot be vectorized \(.*\): use the serial engine$"):
        trained(Recurrent(kind), "vectorized", tmp_path / "run")
    assert not (tmp_path / "run").exists()


class MyError(Exception):
    """An error that only the code of a user raises."""


class Raising(nn.Module):
    """Raises one and the same error where a test tells it to; it counts the calls with a gradient."""

    def __init__(self, error: Exception, when: Callable[["Raising", Tensor], bool]) -> None:
        super().__init__()
        self.layer, self.error, self.when, self.calls = nn.Linear(6, 3), [error], when, [0]

    def __deepcopy__(self, memo: object) -> "Raising":
        again = Raising(self.error[0], self.when)
        again.layer.load_state_dict(self.layer.state_dict())
        again.calls = self.calls
        return again.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += self.training and torch.is_grad_enabled()
        if self.when(self, x):
            raise self.error[0]
        out: Tensor = self.layer(x)
        return out


# When it happens, and what the notes below the error say.
RAISED: dict[str, tuple[Callable[[Raising, Tensor], bool], tuple[str, ...]]] = {
    "in training": (lambda m, x: m.training, ("trial before the first round",)),
    "in a gradient": (lambda m, x: m.training and torch.is_grad_enabled(), ("client 0", "trial")),
    "with client 1": (lambda m, x: m.training and torch.is_grad_enabled() and len(x) == 5, ("client 1", "trial")),
    "later": (lambda m, x: m.training and torch.is_grad_enabled() and m.calls[0] > 4, ("client", "in round")),
}


@pytest.mark.parametrize("engine", ["auto", SERIAL])
@pytest.mark.parametrize("kind", RAISED)
def test_an_error_of_the_module_passes_with_its_place(kind: str, engine: str, tmp_path: Path) -> None:
    when, told = RAISED[kind]
    error = MyError("mine")
    with pytest.raises(MyError) as caught:
        trained(Raising(error, when), engine, tmp_path / "run")
    assert caught.value is error
    notes = " ".join(error.__notes__)
    assert all(words in notes for words in told), notes
    assert (tmp_path / "run").exists() == (kind == "later")


@pytest.mark.parametrize("engine", ["auto", SERIAL])
def test_an_error_of_the_loss_passes_with_its_place(engine: str) -> None:
    error = MyError("mine")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad:
            raise error
        return nn.functional.cross_entropy(outputs, targets)

    alone = ct.algorithms.local(epochs=1)
    with pytest.raises(MyError) as caught:
        ct.fit(nn.Linear(6, 3), federation(), alone, rounds=1, engine=engine, loss=loss, progress=False)
    assert caught.value is error
    assert "client 0" in error.__notes__[0]


@pytest.mark.parametrize("engine", ["auto", SERIAL, "vectorized:1"])
def test_a_personal_part_that_the_loss_does_not_reach_stays(engine: str) -> None:
    """The last linear layer is the personal one; the phase that trains it has no gradient at all."""
    module, extra = built(Unused), {"extra.weight", "extra.bias"}
    start = {k: v.detach().clone() for k, v in module.named_parameters()}
    alg = ct.algorithms.dfedalt(topology="full", epochs=1, momentum=0.9, weight_decay=0.1)
    run = ct.fit(module, federation(), alg, rounds=2, engine=engine, progress=False)
    for client in run.clients:
        found = client.shared | client.personal
        assert client.personal.keys() == extra
        assert {k for k, v in found.items() if torch.equal(v, start[k])} == extra


def with_own_attributes() -> nn.Module:
    """Two layers with attributes whose names mean something else on Coterie's models, or where they are functions."""
    module = two_layers()
    module.origin, module.penalty = "Mayo", 0.01
    return module


@pytest.mark.parametrize("method", ["local", "fedlmt", "drawn"])
def test_attributes_of_ones_own_may_have_any_name(method: str) -> None:
    given: Any = (with_own_attributes, "per-client") if method == "drawn" else (built(with_own_attributes), "common")
    alg = ct.algorithms.fedlmt(keep_layers=1, epochs=1) if "fedlmt" in method else ct.algorithms.local(epochs=1)
    run = ct.fit(given[0], federation(), alg, rounds=1, init=given[1], progress=False)
    assert run.config["model"] == {"module": "Sequential"}
    assert run.clients[0].module().origin == "Mayo"


def shifted(module: Applied, x: Tensor) -> Tensor:
    """Write into the samples themselves, another time at every call."""
    x -= 5
    out: Tensor = module.hidden(x)
    return out


def relabeling(outputs: Tensor, targets: Tensor) -> Tensor:
    """Write into the targets themselves."""
    targets += 1
    targets %= 3
    return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize("engine", ["auto", SERIAL])
@pytest.mark.parametrize(("between", "loss"), [(shifted, None), (lambda m, x: m.hidden(x), relabeling)])
def test_what_is_written_into_samples_stays_out_of_the_federation(
    between: Callable[[Applied, Tensor], Tensor], loss: Callable[[Tensor, Tensor], Tensor] | None, engine: str
) -> None:
    """A plain loop may do so, because its batches are copies."""
    fed, alone = federation(), ct.algorithms.local(epochs=1)
    before = [v.clone() for v in (fed.x, fed.y, fed.test_x, fed.test_y)]
    ct.fit(Applied(between), fed, alone, rounds=1, engine=engine, loss=loss, progress=False)
    assert all(map(torch.equal, before, (fed.x, fed.y, fed.test_x, fed.test_y)))


@pytest.mark.parametrize("answer", [lambda out: (out, out), lambda out: {"scores": out}, lambda out: out[:, 0]])
def test_accuracies_need_scores_whatever_the_loss(answer: Callable[[Tensor], object]) -> None:
    """The same model trains with floating targets, which nobody counts as right or wrong."""

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        out = outputs[0] if isinstance(outputs, tuple) else outputs["scores"] if isinstance(outputs, dict) else outputs
        return (out.mean() - targets.float().mean()) ** 2

    fed, alone = federation(), ct.algorithms.local(epochs=1)
    with pytest.raises(ct.UserError, match=r"not with scores \[samples, 3\].* floating targets and a loss for them"):
        ct.fit(Answering(answer), fed, alone, rounds=1, loss=loss, progress=False)
    pairs = [(fed.x[own], fed.y[own].float()) for own in fed.train]
    floating = ct.data.from_tensors(train=pairs, test=pairs)
    run = ct.fit(Answering(answer), floating, alone, rounds=1, loss=loss, progress=False)
    assert run.history[0]["train_loss"] >= 0


def test_the_corrected_command_has_its_folder(tmp_path: Path) -> None:
    """An error in the first round leaves nothing that would be in the way."""
    with pytest.raises(MyError) as caught:
        trained(Raising(MyError("mine"), lambda m, x: m.calls[0] > 2), SERIAL, tmp_path / "run")
    assert "It happened in round 1." in caught.value.__notes__
    assert len(trained(nn.Linear(6, 3), SERIAL, tmp_path / "run").history) == ROUNDS


def test_a_wrapped_module_reads_a_run(tmp_path: Path) -> None:
    run = trained(nn.DataParallel(two_layers()), "auto", tmp_path / "run")
    again = ct.load(tmp_path / "run", model=nn.DataParallel(two_layers()))
    x = federation().x
    for one, other in zip(run.clients, again.clients, strict=True):
        torch.testing.assert_close(one.module()(x), other.module()(x))


def test_a_trial_pads_where_the_run_will() -> None:
    for sizes, padded in (((9, 4, 13), True), ((9, 9, 9), False)):
        e = experiment(net("mlp"), ragged("mlp", sizes=sizes), ct.algorithms.local(epochs=7, batch_size=5))
        r = first_steps(e, Serial())
        block = r.batches(0, Amount(epochs=7), 5).block(np.arange(2))
        assert block.steps == 1
        assert (block.mask is not None) == padded


@pytest.mark.parametrize("chunk", [1, 2])
def test_recorded_steps_leave_what_the_loss_does_not_reach(chunk: int) -> None:
    alg = ct.algorithms.dfedalt(topology="full", epochs=1, batch_size=4, momentum=0.9, weight_decay=0.1)
    ends = []
    for engine in (Serial(), graphed_for(chunk)):
        ends.append(models(experiment(built(Unused), federation(), alg, engine), rounds=2))
    for k, v in ends[0].items():
        torch.testing.assert_close(ends[1][k], v, rtol=1e-5, atol=1e-6)
        assert torch.equal(v[0], dict(built(Unused).named_parameters())[k]) == k.startswith("extra")
