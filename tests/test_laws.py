"""Laws: special values collapse a method into a simpler one, and what every method keeps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.algorithms.settings import settings_of
from coterie.engines import Serial, Vectorised
from coterie.experiment import Experiment, Progressed
from coterie.measure import global_accuracy
from coterie.measure.report import accuracy_row
from coterie.store import flatten, unflatten
from test_engines import ALL, METHODS, STAGES, WIDTHS, build, kind_like
from test_engines import COMMON as EASY
from toys import experiment, models, net, play, ragged

alg = ct.algorithms
COMMON: dict[str, Any] = {**EASY, "lr": 0.05, "epochs": 2}
SIMPLE: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "epochs": 2}
EQUAL = {"participation": 1.0, "weighting": "uniform"}
UNIT = {"outer_lr": 1.0, "personal_outer_lr": 1.0}
FOR_FIVE: dict[str, Any] = {
    name: {"topology": "random-push:2" if name in ("dfedpgp", "osgp") else "ring"}
    if "topology" in settings_of(builder)
    else ({"participation": 1.0} if "participation" in settings_of(builder) else {})
    for name, builder in alg.BUILDERS.items()
}
FOR_FIVE["depthfl"] |= {"capacities": "2-1"}
FOR_FIVE["flanc"] |= {"capacities": "1-0.5", "n_basis": 0.5, "basis_fraction": 0.5}
for _name in WIDTHS:
    FOR_FIVE[_name] |= {"capacities": "1-0.5"}  # the toy models have widths of 4 and 8
Build = Callable[[], Algorithm]

# left, right, tolerance (0: to the last bit)
REDUCTIONS: dict[str, tuple[Build, Build, float]] = {
    "dfedavg on the full graph is fedavg": (
        lambda: alg.dfedavg(**COMMON, topology="full"),
        lambda: alg.fedavg(**COMMON, **EQUAL),
        1e-6,
    ),
    "dfedavgm without momentum is dfedavg, to the defaults": (
        lambda: alg.dfedavgm(momentum=0.0, topology="ring"),
        lambda: alg.dfedavg(topology="ring"),
        0,
    ),
    "dpsgd by epochs is dfedavg with one": (
        lambda: alg.dpsgd(**{**COMMON, "epochs": 1}, topology="ring"),
        lambda: alg.dfedavg(**{**COMMON, "epochs": 1}, topology="ring"),
        0,
    ),
    "dfedalt with nothing personal is dfedavgm": (
        lambda: alg.dfedalt(**COMMON, topology="ring", personal="none"),
        lambda: alg.dfedavgm(**COMMON, topology="ring"),
        0,
    ),
    "dfedavgm without neighbours is local": (
        lambda: alg.dfedavgm(**COMMON, topology="none"),
        lambda: alg.local(**COMMON),
        0,
    ),
    "fedper with nothing personal is fedavg": (
        lambda: alg.fedper(**COMMON, personal="none", participation=3),
        lambda: alg.fedavg(**COMMON, participation=3),
        0,
    ),
    "fedper with everything personal is local": (
        lambda: alg.fedper(**COMMON, personal="all", participation=1.0),
        lambda: alg.local(**COMMON),
        0,
    ),
    "dfedsalt at rho 0 is dfedalt": (
        lambda: alg.dfedsalt(**COMMON, topology="ring", rho=0.0, sam_on="both"),
        lambda: alg.dfedalt(**COMMON, topology="ring"),
        0,
    ),
    "dfedsalt with nothing personal is dfedsam": (
        lambda: alg.dfedsalt(**COMMON, topology="ring", rho=0.1, personal="none"),
        lambda: alg.dfedsam(**COMMON, topology="ring", rho=0.1),
        0,
    ),
    "dfedsam at rho 0 is dfedavg": (
        lambda: alg.dfedsam(**COMMON, topology="ring", rho=0.0),
        lambda: alg.dfedavg(**COMMON, topology="ring"),
        0,
    ),
    "dfedsam-mgs with one gossip step is dfedsam": (
        lambda: alg.dfedsam_mgs(**COMMON, topology="ring", rho=0.1, gossip_steps=1),
        lambda: alg.dfedsam(**COMMON, topology="ring", rho=0.1),
        0,
    ),
    "dfedsam-mgs with many gossip steps is fedsam": (
        lambda: alg.dfedsam_mgs(**COMMON, topology="ring", rho=0.1, gossip_steps=200),
        lambda: alg.fedsam(**COMMON, rho=0.1, **EQUAL),
        1e-5,
    ),
    "dfedsam on the full graph is fedsam": (
        lambda: alg.dfedsam(**COMMON, topology="full", rho=0.1),
        lambda: alg.fedsam(**COMMON, rho=0.1, **EQUAL),
        1e-6,
    ),
    "fedsam at rho 0 is fedavg": (
        lambda: alg.fedsam(**COMMON, rho=0.0, participation=3),
        lambda: alg.fedavg(**COMMON, participation=3),
        0,
    ),
    "fedrep with nothing personal is fedavg": (
        lambda: alg.fedrep(**COMMON, personal="none", participation=3),
        lambda: alg.fedavg(**COMMON, participation=3),
        0,
    ),
    "dfedalt on the full graph is fedrep": (
        lambda: alg.dfedalt(**COMMON, topology="full", personal_lr=0.05, personal_epochs=2),
        lambda: alg.fedrep(**COMMON, **EQUAL, personal_lr=0.05, personal_epochs=2),
        1e-6,
    ),
    "dfedavgm-p with nothing personal is dfedavgm": (
        lambda: alg.dfedavgm_p(**COMMON, topology="ring", personal="none"),
        lambda: alg.dfedavgm(**COMMON, topology="ring"),
        0,
    ),
    "dfedavgm-p by turns is dfedalt": (
        lambda: alg.dfedavgm_p(**COMMON, topology="ring", schedule="alternate", personal_lr=0.05, personal_epochs=1),
        lambda: alg.dfedalt(**COMMON, topology="ring", personal_lr=0.05, personal_epochs=1),
        0,
    ),
    "dfedavgm-p on the full graph is fedper": (
        lambda: alg.dfedavgm_p(**COMMON, topology="full"),
        lambda: alg.fedper(**COMMON, **EQUAL),
        1e-6,
    ),
    "fedavg-p with outer steps of 1 is fedper": (
        lambda: alg.fedavg_p(**COMMON, **UNIT, personal_lr=0.05, participation=3),
        lambda: alg.fedper(**COMMON, participation=3, weighting="uniform"),
        0,
    ),
    "fedavg-p with nothing personal is fedavg": (
        lambda: alg.fedavg_p(**COMMON, **UNIT, personal="none", participation=3),
        lambda: alg.fedavg(**COMMON, participation=3, weighting="uniform"),
        0,
    ),
    "scaffold-p with nothing personal is scaffold": (
        lambda: alg.scaffold_p(**SIMPLE, **UNIT, personal="none", participation=3),
        lambda: alg.scaffold(**SIMPLE, c_init="gradient", participation=3),
        0,
    ),
    "dfedpgp by rows is dfedalt": (
        lambda: alg.dfedpgp(**COMMON, topology="random-pull:3"),
        lambda: alg.dfedalt(**COMMON, topology="random-pull:3"),
        0,  # weights of 1/4 are exact
    ),
    "dfedpgp on a doubly stochastic graph is dfedalt": (
        lambda: alg.dfedpgp(**COMMON, topology="ring"),
        lambda: alg.dfedalt(**COMMON, topology="ring"),
        1e-6,
    ),
    "dfedpgp with nothing personal is osgp": (
        lambda: alg.dfedpgp(**COMMON, topology="random-push:2", personal="none"),
        lambda: alg.osgp(**COMMON, topology="random-push:2"),
        0,
    ),
    "osgp on a doubly stochastic graph is dfedavgm": (
        lambda: alg.osgp(**COMMON, topology="ring"),
        lambda: alg.dfedavgm(**COMMON, topology="ring"),
        1e-6,
    ),
    "fedbabu without a head is fedavg": (
        lambda: alg.fedbabu(**COMMON, personal="none", participation=3),
        lambda: alg.fedavg(**COMMON, participation=3, weighting="uniform"),
        0,
    ),
    "dispfl at density 1 is dfedavg": (
        lambda: alg.dispfl(**COMMON, topology="random-pull:2", density=1.0),
        lambda: alg.dfedavg(**COMMON, topology="random-pull:2"),
        1e-6,
    ),
    "dfedavgm with very fine messages is dfedavgm": (
        lambda: alg.dfedavgm(**COMMON, topology="random:2", quantise=16),
        lambda: alg.dfedavgm(**COMMON, topology="random:2"),
        2e-4,
    ),
    "heterofl at full width is fedavg": (
        lambda: alg.heterofl(**COMMON, participation=3, capacities="1-1"),
        lambda: alg.fedavg(**COMMON, participation=3, weighting="uniform"),
        1e-6,
    ),
    "fedrolex at full width is fedavg": (
        lambda: alg.fedrolex(**COMMON, participation=3, capacities="1"),
        lambda: alg.fedavg(**COMMON, participation=3, weighting="uniform"),
        1e-5,
    ),
    "feddropout at full width is fedavg": (
        lambda: alg.feddropout(**COMMON, participation=3, capacities="1"),
        lambda: alg.fedavg(**COMMON, participation=3, weighting="uniform"),
        1e-5,
    ),
    "feddropout layer by layer in a chain at full width is fedavg": (
        lambda: alg.feddropout(**COMMON, participation=3, capacities="1", aligned=False),
        lambda: alg.fedavg(**COMMON, participation=3, weighting="uniform"),
        1e-5,
    ),
    "fedlmt without low-rank layers is fedavg": (
        lambda: alg.fedlmt(**COMMON, participation=3, keep_layers=17),
        lambda: alg.fedavg(**COMMON, participation=3),
        0,
    ),
    "fedlmt over the full graph is fedlmt": (
        lambda: alg.fedlmt(**COMMON, keep_layers=1, topology="full"),
        lambda: alg.fedlmt(**COMMON, **EQUAL, keep_layers=1),
        1e-6,
    ),
    "pfedlmt without low-rank layers is fedper": (
        lambda: alg.pfedlmt(**COMMON, participation=3, keep_layers=17),
        lambda: alg.fedper(**COMMON, participation=3),
        0,
    ),
    "fedhm without low-rank layers is fedavg": (
        lambda: alg.fedhm(**COMMON, participation=3, keep_layers=17),
        lambda: alg.fedavg(**COMMON, participation=3, weighting="uniform"),
        0,
    ),
    "ditto without a pull is local": (
        lambda: alg.ditto(**COMMON, lam=0.0, participation=1.0),
        lambda: alg.local(**COMMON),
        0,
    ),
    "dfedsam without neighbours is dfedsalt without neighbours": (
        lambda: alg.dfedsam(**COMMON, topology="none", rho=0.1),
        lambda: alg.dfedsalt(**COMMON, topology="none", rho=0.1, personal="none"),
        0,
    ),
}


def same(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in (k for k, v in left.items() if v.numel()):
        a, b = left[name].double(), right[name].double()
        assert float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max())), name


KINDS = ("mlp", "batchnorm")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", REDUCTIONS)
def test_reductions(law: str, kind: str) -> None:
    left, right, tolerance = REDUCTIONS[law]
    same(*(outcome(b(), kind, Serial()) for b in (left, right)), tolerance)


@pytest.mark.parametrize(
    ("law", "kind"),
    [(law, k) for i, law in enumerate(REDUCTIONS) for k in (KINDS if ALL else (KINDS[i % len(KINDS)],))],
)
def test_reductions_with_clients_side_by_side(law: str, kind: str) -> None:
    left, right, tolerance = REDUCTIONS[law]
    same(*(outcome(b(), kind, Vectorised(2, exact=True)) for b in (left, right)), tolerance)


OUTCOMES: dict[str, dict[str, Tensor]] = {}  # many laws speak of the same few methods


def outcome(algorithm: Algorithm, kind: str, engine: Any) -> dict[str, Tensor]:
    """Everybody's model after three rounds, without counters: a server keeps its own, a peer counts its own steps."""
    key = repr((algorithm.name, algorithm.settings, kind, engine.name))
    if key not in OUTCOMES:
        OUTCOMES[key] = models(experiment(net(kind), ragged(kind), algorithm, engine), 3)
    return {k: v for k, v in OUTCOMES[key].items() if not k.endswith("num_batches_tracked")}


@pytest.mark.parametrize("law", [k for k, v in REDUCTIONS.items() if v[2] > 0])
def test_reductions_in_single_precision(law: str) -> None:
    left, right, tolerance = REDUCTIONS[law]
    f32 = torch.float32
    same(*(models(experiment(net("mlp", f32), ragged("mlp", f32), b()), 3) for b in (left, right)), tolerance)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda: alg.dfedavg(**COMMON, topology="ring"), lambda: alg.dfedavg(**COMMON, topology="full")),
        (lambda: alg.fedavg(**COMMON, **EQUAL), lambda: alg.local(**COMMON)),
        (lambda: alg.fedavg(**COMMON, participation=1.0), lambda: alg.fedavg(**COMMON, **EQUAL)),
        (lambda: alg.dpsgd(form="lian", topology="ring"), lambda: alg.dpsgd(steps=1, topology="ring")),
        (lambda: alg.dfedalt(**COMMON, topology="ring"), lambda: alg.dfedavgm(**COMMON, topology="ring")),
    ],
    ids=["ring-full", "fedavg-local", "size-uniform", "lian-epoch", "dfedalt-dfedavgm"],
)
def test_what_must_differ_differs(left: Build, right: Build) -> None:
    a, b = (models(experiment(net("mlp"), ragged("mlp"), x()), 2) for x in (left, right))
    assert any(float((a[k] - b[k]).abs().max()) > 1e-4 for k in a)


@pytest.fixture(scope="module", params=METHODS)
def row(request: pytest.FixtureRequest) -> str:
    """One case after another, each with all the laws that speak of it, which share its rounds."""
    return str(request.param)


class Lived(NamedTuple):
    """An experiment and where it stood: at its start and after each of three rounds without evaluation."""

    e: Experiment
    states: list[Progressed]


@pytest.fixture(scope="module")
def lived(row: str) -> Lived:
    e = experiment(net(kind_like(row, "batchnorm")), ragged("batchnorm"), build(row))
    states = [e.start()]
    for t in range(3):
        states.append(e.play(states[t], t, evaluate=False)[0])
    return Lived(e, states)


def test_a_round_does_not_change_its_input(lived: Lived) -> None:
    e, now = lived.e, lived.states[1]
    before = {k: v.clone() for k, v in flatten(now.state).items()}
    start = {k: v.clone() for k, v in e.model.start.items()}
    e.play(now, 1, evaluate=True)
    assert all(torch.equal(v, before[k]) for k, v in flatten(now.state).items())
    assert all(torch.equal(v, start[k]) for k, v in e.model.module.state_dict().items())


def test_absent_clients_are_unchanged(row: str, lived: Lived) -> None:
    if "participation" not in METHODS[row][1]:
        return
    absent = [i for i in range(5) if i not in lived.e.cohort(1)]
    assert absent
    before, later = (flatten(lived.states[t].state) for t in (1, 2))
    stacked = [k for k in before if {"v", "memory", "c_i", "p", "residue"} & set(k.split("/")[:-1])]
    assert all(torch.equal(later[k][absent], before[k][absent]) for k in stacked)


def test_measuring_changes_nothing(lived: Lived) -> None:
    e, measured = lived.e, lived.states[0]
    for t in range(2):
        measured, row = e.play(measured, t, evaluate=True)
    same(flatten(measured.state), flatten(lived.states[2].state), 0)
    again = e.accuracies(measured.state, measured.after_train, 1)
    assert again is not None
    assert measured.accuracies is not None
    for protocol, each in again.items():
        torch.testing.assert_close(each, measured.accuracies[protocol], rtol=0, atol=0, equal_nan=True)
    agreed = e._agreed(measured.state, evaluate=True)
    assert agreed is not None
    columns = {k: v for protocol, each in again.items() for k, v in accuracy_row(protocol, each).items()}
    columns["global_accuracy"] = global_accuracy(e.engine, e.model, agreed, e.tests)
    assert {k: row[k] for k in columns} == columns


def test_a_state_survives_being_taken_apart(lived: Lived) -> None:
    """Continuing from the flat form of a state is continuing from the state, bit for bit."""
    half = lived.states[2]
    restored = half._replace(state=unflatten(lived.e.start().state, flatten(half.state)))
    end, _ = lived.e.play(restored, 2, evaluate=False)
    same(flatten(end.state), flatten(lived.states[3].state), 0)


@pytest.mark.parametrize("topology", ["ring", "full", "exponential", "random:2"])
def test_doubly_stochastic_mixing_keeps_the_mean(topology: str) -> None:
    e = experiment(net("mlp"), ragged("mlp"), alg.dfedavg(**COMMON, topology=topology))
    trained = e.program.train(e.start().state, e.round(0))
    mixed = e.program.exchange(e.start().state, trained, e.round(0)).x
    same({k: v.mean(0) for k, v in mixed.items()}, {k: v.mean(0) for k, v in trained.models.items()}, 1e-12)


def test_personal_parts_never_meet() -> None:
    """A client's head is a function of its own data: changing another client's labels cannot reach it in a round."""
    fed = ragged("mlp")
    settings = {**COMMON, "topology": "full", "personal_lr": 0.05}
    mine = models(experiment(net("mlp"), fed, alg.dfedalt(**settings)), 1)
    pairs = [(fed.x[i], fed.y[i]) for i in fed.train]
    pairs[1] = (pairs[1][0], (pairs[1][1] + 1) % 3)
    tests = [(fed.test_x[i], fed.test_y[i]) for i in fed.test]
    other = models(experiment(net("mlp"), ct.data.from_tensors(pairs, tests, classes=3), alg.dfedalt(**settings)), 1)
    for name in ("3.weight", "3.bias"):
        assert torch.equal(mine[name][[0, 2, 3, 4]], other[name][[0, 2, 3, 4]])
        assert not torch.equal(mine[name][1], other[name][1])
    assert not torch.equal(mine["1.weight"][0], other["1.weight"][0])


def test_local_clients_do_not_know_how_many_they_are() -> None:
    fed = ragged("mlp")
    tests = [(fed.test_x[i], fed.test_y[i]) for i in fed.test]
    few = ct.data.from_tensors([(fed.x[i], fed.y[i]) for i in fed.train[:2]], tests[:2], classes=3)
    many, two = (models(experiment(net("mlp"), f, alg.local(**COMMON)), 2) for f in (fed, few))
    assert all(torch.equal(many[k][:2], two[k]) for k in two)


def test_one_client_is_legal(row: str) -> None:
    name, settings = METHODS[row]
    if settings.get("topology", "").startswith("random"):
        settings = {**settings, "topology": "none"}  # nobody to draw
    if "participation" in settings:
        settings = {**settings, "participation": 1}
    module = net(kind_like(row, "mlp"))
    common = {k: v for k, v in COMMON.items() if k != "epochs" or "steps" not in settings}
    e = experiment(module, ragged("mlp", sizes=(9,)), alg.build(name, **{**common, **settings}))
    assert all(len(v) == 1 for v in models(e, 2).values())


def test_outer_step() -> None:
    """x + eta (mean - x): nothing moves at 0, FedAvg at 1, half-way between at 1/2."""
    ends = {
        eta: play(experiment(net("mlp"), ragged("mlp"), alg.fedavg(**COMMON, **EQUAL, outer_lr=eta)), 1).state.u
        for eta in (0.0, 0.5, 1.0)
    }
    start = experiment(net("mlp"), ragged("mlp"), alg.fedavg()).model.start
    for k in start:
        assert torch.equal(ends[0.0][k], start[k])
        torch.testing.assert_close(ends[0.5][k], (start[k] + ends[1.0][k]) / 2, rtol=1e-12, atol=1e-12)


def test_the_global_model_of_ditto_is_that_of_fedavg() -> None:
    settings = {**COMMON, "participation": 3, "weighting": "uniform"}
    left = play(experiment(net("batchnorm"), ragged("batchnorm"), alg.ditto(**settings, lam=0.7)), 3).state.w
    right = play(experiment(net("batchnorm"), ragged("batchnorm"), alg.fedavg(**settings)), 3).state.u
    assert all(torch.equal(left[k], right[k]) for k in right)


def test_scaffold_starts_as_fedavg() -> None:
    left = play(experiment(net("mlp"), ragged("mlp"), alg.scaffold(**SIMPLE, participation=3)), 1).state.u
    plain = {**SIMPLE, "momentum": 0.0, "weight_decay": 0.0, "clip": None, "lr_decay": 1.0}
    right = play(experiment(net("mlp"), ragged("mlp"), alg.fedavg(**plain, participation=3, weighting="uniform")), 1)
    assert all(torch.equal(left[k], right.state.u[k]) for k in left)


def test_groups_of_clients_make_their_own_number_of_epochs() -> None:
    """Five clients in groups of 1 and 2 epochs: the first three make one, the others two, each as it would alone."""
    mixed, one, two = (
        models(experiment(net("mlp"), ragged("mlp"), alg.local(**{**COMMON, "epochs": e})), 2) for e in ((1, 2), 1, 2)
    )
    for k in mixed:
        assert torch.equal(mixed[k][:3], one[k][:3])
        assert torch.equal(mixed[k][3:], two[k][3:])


@pytest.mark.parametrize("name", alg.BUILDERS)
def test_every_method_knows_unequally_fast_clients(name: str) -> None:
    module = net("residual" if name in STAGES else "mlp")
    e = experiment(module, ragged("mlp"), alg.build(name, epochs=[1, 2], batch_size=4, **FOR_FIVE.get(name, {})))
    r = e.round(0)
    steps = e.program.train(e.start().state, r).steps
    faster = alg.build(name, epochs=[2, 2], batch_size=4, **FOR_FIVE.get(name, {}))
    more = experiment(module, ragged("mlp"), faster)
    difference = more.program.train(more.start().state, more.round(0)).steps - steps
    assert bool((difference[r.cohort < 3] > 0).all())
    assert bool((difference[r.cohort >= 3] == 0).all())


def test_cohorts_are_uniform_and_repeatable() -> None:
    e = experiment(net("mlp"), ragged("mlp"), alg.fedavg(**COMMON, participation=2))
    draws = [e.cohort(t) for t in range(3000)]
    assert all(len(set(c)) == 2 for c in draws)
    counts = torch.tensor([sum(i in c for c in draws) for i in range(5)], dtype=torch.float64)
    assert bool(((counts - 1200).abs() < 5 * (3000 * 0.4 * 0.6) ** 0.5).all())
    assert all((e.cohort(t) == draws[t]).all() for t in range(20))
