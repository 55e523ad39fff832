"""Laws: special values collapse a method into a simpler one, and what every method keeps."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.algorithms.base import Problem, Program
from coterie.algorithms.beside import Beside
from coterie.algorithms.method import facts
from coterie.cluster.shard import outline
from coterie.core.errors import UserError
from coterie.core.schema import ACCURACY
from coterie.core.tensors import Tensors
from coterie.engines import Serial, Vectorized
from coterie.measure import global_accuracy
from coterie.measure.rows import metric_row
from coterie.store import flatten, unflatten
from coterie.training.experiment import Experiment, RunState
from law import TWICE as COMMON
from laws import EQUAL, FIRST, METHODS, OF, REDUCTIONS, SIMPLE, build, kind_like, sides
from samples import sampled
from toys import experiment, models, net, play, ragged

alg = ct.algorithms
Build = Callable[[], Algorithm]


def same(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in (k for k, v in left.items() if v.numel()):
        a, b = left[name].double(), right[name].double()
        assert float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max())), name


KINDS = ("mlp", "batchnorm")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", REDUCTIONS)
def test_reductions(law: str, kind: str) -> None:
    same(*(outcome(side, kind, Serial()) for side in sides(law)), REDUCTIONS[law][1].tolerance)


@pytest.mark.parametrize(
    ("law", "kind"),
    sampled(product(REDUCTIONS, KINDS), [(law, KINDS[i % len(KINDS)]) for i, law in enumerate(REDUCTIONS)]),
)
def test_reductions_with_clients_side_by_side(law: str, kind: str) -> None:
    ends = (outcome(side, kind, Vectorized(2, exact=True), rounds=2) for side in sides(law))
    same(*ends, REDUCTIONS[law][1].tolerance)


OUTCOMES: dict[str, dict[str, Tensor]] = {}  # many laws speak of the same few methods


def outcome(algorithm: Algorithm, kind: str, engine: Any, rounds: int = 3) -> dict[str, Tensor]:
    """Everybody's model after some rounds, without counters: a server keeps its own, a peer counts its own steps."""
    key = repr((algorithm.name, algorithm.settings, kind, engine.name, rounds))
    if key not in OUTCOMES:
        OUTCOMES[key] = models(experiment(net(kind), ragged(kind), algorithm, engine), rounds)
    return {k: v for k, v in OUTCOMES[key].items() if not k.endswith("num_batches_tracked")}


@pytest.mark.parametrize("law", [k for k, (_, r) in REDUCTIONS.items() if r.tolerance > 0])
def test_reductions_in_single_precision(law: str) -> None:
    f32 = torch.float32
    ends = (models(experiment(net("mlp", f32), ragged("mlp", f32), side), 3) for side in sides(law))
    same(*ends, REDUCTIONS[law][1].tolerance)


@pytest.mark.parametrize("law", REDUCTIONS)
def test_identities_of_construction_are_marked(law: str) -> None:
    """Where both sides run the same two functions on the same phases, to the last bit; the others are mathematics."""
    left, right = (experiment(net("mlp"), ragged("mlp"), side).program for side in sides(law))
    alike = left.train.__code__ is right.train.__code__ and left.exchange.__code__ is right.exchange.__code__
    phases = [[phase for phase in program.phases if phase.trains] for program in (left, right)]
    reduction = REDUCTIONS[law][1]
    assert reduction.by_construction == (alike and phases[0] == phases[1] and reduction.tolerance == 0)


def test_most_reductions_are_mathematics() -> None:
    """Else the laws would only say that a method calls what another one calls."""
    assert sum(not r.by_construction for _, r in REDUCTIONS.values()) >= 15


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda: alg.dfedavg(**COMMON, topology="ring"), lambda: alg.dfedavg(**COMMON, topology="full")),
        (lambda: alg.fedavg(**COMMON, **EQUAL), lambda: alg.local(**COMMON)),
        (lambda: alg.fedavg(**COMMON, participation=1.0), lambda: alg.fedavg(**COMMON, **EQUAL)),
        (lambda: alg.dpsgd(variant="lian", topology="ring"), lambda: alg.dpsgd(steps=1, topology="ring")),
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
    states: list[RunState]


@pytest.fixture(scope="module")
def lived(row: str) -> Lived:
    e = experiment(net(kind_like(row, "batchnorm")), ragged("batchnorm"), build(row))
    states = [e.start()]
    for t in range(3):
        states.append(e.run_round(states[t], t, evaluate=False)[0])
    return Lived(e, states)


def test_a_round_does_not_change_its_input(lived: Lived) -> None:
    e, now = lived.e, lived.states[1]
    before = {k: v.clone() for k, v in flatten(now.state).items()}
    start = {k: v.clone() for k, v in e.model.start.items()}
    e.run_round(now, 1, evaluate=True)
    assert all(torch.equal(v, before[k]) for k, v in flatten(now.state).items())
    assert all(torch.equal(v, start[k]) for k, v in e.model.module.state_dict().items())


def own_slots(e: Experiment) -> list[str]:
    """What the state has a row of for every client, found by trying."""
    return sorted(outline(e).stacked & flatten(e.start().state).keys())


def touched(e: Experiment, before: Any, after: Any, t: int) -> list[str]:
    """The slots in which a client has changed that took no part in round ``t``."""
    absent = [i for i in range(5) if i not in e.schedule.cohort(t)]
    assert absent
    was, is_now = flatten(before), flatten(after)
    return [k for k in own_slots(e) if not torch.equal(is_now[k][absent], was[k][absent])]


@pytest.mark.parametrize(
    "row", [case for case in METHODS if "participation" in METHODS[case][1]], indirect=True, scope="module"
)
def test_absent_clients_are_unchanged(row: str, lived: Lived) -> None:
    assert bool(own_slots(lived.e)) != (row in OF[row].stateless)
    assert touched(lived.e, lived.states[1].state, lived.states[2].state, 1) == []


@pytest.mark.parametrize("slot", ["v", "c_i"])
def test_a_method_that_touches_absent_clients_is_noticed(slot: str) -> None:
    """Whatever the slot is called; the same method without the touch passes."""
    sound = build("scaffold-p")

    def bind(p: Problem) -> Program[Any]:
        program = sound.bind(p)

        def exchange(s: Any, trained: Any, r: Any) -> Any:
            after = program.exchange(s, trained, r)
            return after._replace(**{slot: {k: v + 1 for k, v in getattr(after, slot).items()}})

        return program._replace(exchange=exchange)

    found = []
    for algorithm in (sound, replace(sound, bind=bind)):
        e = experiment(net("mlp"), ragged("mlp"), algorithm)
        start = e.start()
        found.append(touched(e, start.state, e.run_round(start, 0, evaluate=False)[0].state, 0))
    assert found == [[], [k for k in own_slots(e) if k.startswith(f"{slot}/")]]
    assert found[1]


def test_measuring_changes_nothing(lived: Lived) -> None:
    e, measured = lived.e, lived.states[0]
    for t in range(2):
        measured, row = e.run_round(measured, t, evaluate=True)
    same(flatten(measured.state), flatten(lived.states[2].state), 0)
    again = e.values(measured.state, measured.after_train, 1)
    assert again is not None
    assert measured.values is not None
    for protocol, each in again.items():
        torch.testing.assert_close(each, measured.values[protocol], rtol=0, atol=0, equal_nan=True)
    agreed = e.consensus_model(measured.state)
    assert agreed is not None
    columns = {
        k: v
        for protocol, each in again.items()
        for k, v in metric_row(ACCURACY, protocol, each[:, 0], e.tests.sizes).items()
    }
    columns["global_accuracy"] = global_accuracy(e.engine, e.model, agreed, e.tests)
    assert {k: row[k] for k in columns} == columns


def test_a_state_survives_being_taken_apart(row: str, lived: Lived) -> None:
    """Continuing from the flat form of a state is continuing from the state, bit for bit; nothing else is needed."""
    half = lived.states[2]
    anew = experiment(net(kind_like(row, "batchnorm")), ragged("batchnorm"), build(row))  # it has no round behind it
    restored = half._replace(state=unflatten(anew.start().state, flatten(half.state)))
    end, _ = anew.run_round(restored, 2, evaluate=False)
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


@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "feddropout", "fedavg"])
def test_nothing_moves_at_a_rate_of_zero(name: str) -> None:
    """Nor where a cosine ends above it."""
    e = experiment(net("mlp"), ragged("mlp"), alg.build(name, lr=0.0, lr_min=0.1, epochs=1, participation=3))
    e.check()
    same(play(e, 3).state.u, dict(e.model.start), 1e-15)


@pytest.mark.parametrize(
    ("algorithm", "rate"),
    [
        (alg.heterofl(lr=5e-5), "5e-05"),  # its lr_min is 0.0001
        (alg.dfedalt(topology="ring", lr=0.1, personal_lr=0.001, lr_min=0.01), "0.001"),
        (alg.fedavg_p(lr=0.1, personal_lr=0.001, lr_min=0.01), "0.001"),  # two rates in one phase
    ],
    ids=["lr", "personal_lr", "group"],
)
def test_a_cosine_never_rises(algorithm: Algorithm, rate: str) -> None:
    with pytest.raises(UserError, match=f"the rate {rate} is below lr_min=.* raise the rate"):
        experiment(net("mlp"), ragged("mlp"), algorithm).check()


def test_the_global_model_of_ditto_is_that_of_fedavg() -> None:
    settings = {**COMMON, "participation": 3, "weighting": "uniform"}
    left = play(experiment(net("batchnorm"), ragged("batchnorm"), alg.ditto(**settings, lam=0.7)), 3).state.server.u
    right = play(experiment(net("batchnorm"), ragged("batchnorm"), alg.fedavg(**settings)), 3).state.u
    assert all(torch.equal(left[k], right[k]) for k in right)


def test_the_models_of_ditto_make_their_own_number_of_epochs() -> None:
    """In the first round, in which both receive the same model, each is as if the other made as many."""

    def after_a_round(**epochs: int) -> Beside:
        settings = {**COMMON, "participation": 3, **epochs}
        state: Beside = play(experiment(net("batchnorm"), ragged("batchnorm"), alg.ditto(**settings)), 1).state
        return state

    apart, two, three = (
        after_a_round(**e) for e in ({"epochs": 2, "personal_epochs": 3}, {"epochs": 2}, {"epochs": 3})
    )
    assert all(torch.equal(v, two.server.u[k]) for k, v in apart.server.u.items())
    assert all(torch.equal(v, three.own.p[k]) for k, v in apart.own.p.items())
    assert not all(torch.equal(v, two.own.p[k]) for k, v in apart.own.p.items())


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


@pytest.mark.parametrize("method", ["dfedalt", "dfedsalt", "dfedpgp", "dfedavgm-p", "fedrep", "ditto"])
def test_groups_of_clients_make_their_own_number_of_personal_epochs(method: str) -> None:
    """What each of five clients has trained in a round is as if all made its number of personal epochs."""
    own = {"schedule": "alternate"} if method == "dfedavgm-p" else {}
    own |= {"participation": 1.0} if method in ("fedrep", "ditto") else {"topology": "ring"}

    def trained(epochs: int | tuple[int, ...]) -> Tensors:
        settings = {**COMMON, **own, "personal_lr": 0.1, "personal_epochs": epochs}
        e = experiment(net("mlp"), ragged("mlp"), alg.build(method, **settings))
        found: Tensors = e.program.train(e.start().state, e.round(0)).models
        return found

    groups, clients, one, two, three = map(trained, ((1, 2), (1, 2, 3, 1, 2), 1, 2, 3))
    for k in groups:
        assert torch.equal(groups[k], torch.cat([one[k][:3], two[k][3:]]))
        assert torch.equal(clients[k], torch.stack([one[k][0], two[k][1], three[k][2], one[k][3], two[k][4]]))
    assert not all(torch.equal(one[k], two[k]) for k in one)


def test_personal_epochs_are_somebodys_or_refused() -> None:
    algorithm = alg.dfedalt(topology="ring", personal_epochs=(1, 2, 3, 4, 5, 6))
    with pytest.raises(UserError, match=r"personal_epochs=1,2,3,4,5,6 is for 6 groups .* give 5 numbers at most"):
        experiment(net("mlp"), ragged("mlp"), algorithm).check()


@pytest.mark.parametrize("groups", range(1, 9))
def test_every_number_of_epochs_is_somebodys_or_refused(groups: int) -> None:
    """Five clients, one batch each: the steps of a round are the epochs."""
    algorithm = alg.dfedavg(topology="ring", epochs=tuple(range(1, groups + 1)), batch_size=None)
    e = experiment(net("mlp"), ragged("mlp"), algorithm)
    if groups > 5:
        with pytest.raises(
            UserError, match=rf"epochs=1,2,.* {groups} groups .* 5 clients in all: give 5 numbers at most"
        ):
            e.check()
        return
    e.check()
    steps = e.program.train(e.start().state, e.round(0)).steps
    assert set(steps.int().tolist()) == set(range(1, groups + 1))


@pytest.mark.parametrize("name", [name for name in FIRST if not facts(alg.builder(name)).in_one_place])
def test_every_method_knows_unequally_fast_clients(name: str) -> None:
    module, settings = net(kind_like(FIRST[name], "mlp")), {**COMMON, **METHODS[FIRST[name]][1], "steps": None}
    settings |= {"participation": 1.0} if "participation" in settings else {}
    built = (alg.build(name, **{**settings, "epochs": epochs}) for epochs in ([1, 2], [2, 2]))
    slow, fast = (experiment(module, ragged("mlp"), algorithm) for algorithm in built)
    r = slow.round(0)
    more, fewer = (e.program.train(e.start().state, e.round(0)).steps for e in (fast, slow))
    assert bool((more - fewer)[r.cohort < 3].gt(0).all())
    assert bool((more - fewer)[r.cohort >= 3].eq(0).all())


def test_cohorts_are_uniform_and_repeatable() -> None:
    e = experiment(net("mlp"), ragged("mlp"), alg.fedavg(**COMMON, participation=2))
    draws = [e.schedule.cohort(t) for t in range(3000)]
    assert all(len(set(c)) == 2 for c in draws)
    counts = torch.tensor([sum(i in c for c in draws) for i in range(5)], dtype=torch.float64)
    assert bool(((counts - 1200).abs() < 5 * (3000 * 0.4 * 0.6) ** 0.5).all())
    assert all((e.schedule.cohort(t) == draws[t]).all() for t in range(20))
