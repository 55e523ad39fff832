"""Torch's switches for how products are rounded: they are turned for a run, whatever they were, and put back."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

import coterie as ct
from coterie.core.schema import Precision
from coterie.engines import Graphed, compiler
from coterie.engines.capture import PlayOver, Wanted
from coterie.models.model import Model, cross_entropy, products
from coterie.training.experiment import Experiment
from coterie.training.rounds import _built
from toys import CPU, in_place, net, ragged

MATMUL, CUDNN, MKLDNN = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
NEWER = (torch.backends, CUDNN, MATMUL, CUDNN.conv, CUDNN.rnn, MKLDNN.matmul)


def turn(switch: object, value: str) -> Callable[[], None]:
    return lambda: setattr(switch, "fp32_precision", value)


def turn_older(switch: object, tf32: bool) -> Callable[[], None]:
    return lambda: setattr(switch, "allow_tf32", tf32)


USERS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "products": turn(MATMUL, "tf32"),
    "everything rounded": turn(torch.backends, "tf32"),
    "everything exact": turn(torch.backends, "ieee"),
    "a GPU": turn(CUDNN, "tf32"),
    "convolutions": turn(CUDNN.conv, "ieee"),
    "older products": turn_older(MATMUL, True),
    "older convolutions": turn_older(CUDNN, False),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a GPU, in a torch that could have one."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    yield
    torch.set_float32_matmul_precision("highest")
    for switch in NEWER:
        switch.fp32_precision = "none"
    CUDNN.allow_tf32 = True


def older() -> list[object]:
    """What the older switches say, or that they do not agree with the newer ones."""
    said: list[object] = []
    for read in (lambda: MATMUL.allow_tf32, lambda: CUDNN.allow_tf32, torch.get_float32_matmul_precision):
        try:
            said.append(read())
        except RuntimeError:
            said.append(None)
    return said


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_products_are_rounded_as_asked_whatever_the_user_has_turned(user: str, precision: str) -> None:
    """Older switches can be read meanwhile: torch's compiler does it, and a model that turns cuDNN off for a while."""
    USERS[user]()
    before = [switch.fp32_precision for switch in NEWER], older()
    with products(precision):
        assert {switch.fp32_precision for switch in NEWER[2:5]} == {"tf32" if precision == "tf32" else "ieee"}
        assert older()[:2] == [precision == "tf32"] * 2
        with torch.backends.cudnn.flags(enabled=False):
            pass
    assert ([switch.fp32_precision for switch in NEWER], older()) == before


def test_what_follows_the_switch_of_everything_goes_on_following_it() -> None:
    torch.backends.fp32_precision = "tf32"
    with products("fp32"):
        pass
    torch.backends.fp32_precision = "ieee"
    assert MATMUL.fp32_precision == "ieee"


def test_a_run_beside_the_newer_switches() -> None:
    torch.backends.fp32_precision = "tf32"
    fed = ct.data.federate("synthetic:size=40", clients=2, partition="iid")
    run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.local(steps=1), rounds=1, progress=False)
    assert len(run.history) == 1


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_programs_are_built_as_they_are_recorded(precision: Precision) -> None:
    seen: list[list[object]] = []

    def build(wanted: Sequence[Wanted], begun: Callable[[int], object]) -> list[PlayOver]:
        seen.append(older()[:2])
        return [
            lambda memory, over=over: (seen.append(older()[:2]), over(memory))[1] for over in in_place(wanted, begun)
        ]

    fed = ragged("mlp")
    model, engine = Model(net("mlp"), cross_entropy, precision=precision), Graphed(1, False, CPU, build)
    e = Experiment.of(model, fed, ct.algorithms.fedavg(steps=1), engine, 0, 1)
    now = e.start()
    _built(e, now, range(1))
    e.run_round(now, 0, evaluate=True)
    assert len(seen) > 1
    assert seen == [[precision == "tf32"] * 2] * len(seen)


@pytest.mark.parametrize("said", ["tf32", "ieee", "none"])
def test_a_process_that_compiles_rounds_as_the_one_that_asks(said: str) -> None:
    compiler.round_as(said)
    assert compiler.rounding() == said
    assert older()[0] is (said == "tf32")
