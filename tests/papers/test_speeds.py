"""Times that are told before a run: within a factor of two of every run that was recorded, or not told at all."""

import importlib
import json
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coterie.cli.common.options import Output, RecipeOptions
from coterie.cli.recipe_run import RecipePlan, _announce
from coterie.cli.recipe_time import platform_of
from coterie.core.errors import UserError
from coterie.core.spec import scaled
from coterie.recipes import load, names
from coterie.recipes.costs import Extent, cost, run_size
from coterie.recipes.speeds import (
    SHIPPED,
    Platform,
    RunSize,
    Speed,
    add_speeds,
    estimate_time,
    known_speeds,
    measure_speed,
    own_file,
    read_run,
    read_speeds,
)
from helpers_cli import Cli

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
sys.path.append(str(EVIDENCE))
try:
    evidence: Any = importlib.import_module("measured_speeds")
finally:
    sys.path.remove(str(EVIDENCE))
RECORDED = {f"{run.recipe}, {run.name}": run for run in evidence.recorded()}
SMALL = {"bench", "bench-peers", "gathering", "gpu_speed", "growth", "overlap", "overlap-gpu"}
# Times in the evidence that no estimate can be held against.
NOT_COMPARED = {
    "cifar10-dfedpgp-t1": "eight processes of tests used the same GPU meanwhile",
    "004_figures": "the processor's time of a whole study",
    "capacities": "the processor's time of runs with models of no recipe",
    "capacity_speed": "rounds of models of three sizes at once; their FLOPs were not recorded",
    "gpu_building": "DFedAlt on made-up images, as in gpu_speed, which is compared; rounds of three widths",
    "cifar10-times": "the clock beside DFedAlt's run, which is compared",
    "masked_lm": "a model of no recipe, whose runs of the same work took 45 to 90 s",
    "masked_lm_full": "neither its FLOPs nor the times of its rounds were recorded",
}


def numbers(name: str) -> Any:
    """A file of the evidence."""
    return json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))


def told_and_taken(run: Any, speeds: list[Speed]) -> tuple[float, float]:
    """(the seconds that are foretold, those that were recorded) of training and, where it was timed, the rest."""
    size = run_size(
        load(run.recipe),
        run.case,
        run.method,
        Extent(rounds=len(run.rows), evaluate_every=run.config["evaluate_every"]),
    )
    told = estimate_time(speeds, size, run.speed.platform)
    assert told is not None, f"{run.name} has no time: run `make times`"
    timed, median_only = "evaluation_seconds" in run.rows[0], run.speed.building is None
    seconds = told.training + told.evaluation * timed + told.building * (not median_only)
    return seconds, sum(row["seconds"] + row.get("evaluation_seconds", 0.0) for row in run.rows)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_runs_take_what_is_told(name: str) -> None:
    run = RECORDED[name]
    if run.no_measurement:
        pytest.skip(run.no_measurement)
    told, taken = told_and_taken(run, read_speeds(SHIPPED))
    assert 0.5 < told / taken < 2, f"{told}, {taken}: if something stood in its way, name it in NO_MEASUREMENT"


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedrod", "ditto", "dfedavgm"])
def test_and_what_the_other_runs_let_expect(name: str) -> None:
    """A method that was never measured, from the same model with others."""
    run = RECORDED[f"dfedalt-t1, {name}"]
    others = [s for s in read_speeds(SHIPPED) if s.method != run.speed.method]
    assert len(others) < len(read_speeds(SHIPPED))
    told, taken = told_and_taken(run, others)
    assert 0.5 < told / taken < 2, (told, taken)


def test_every_time_of_the_evidence_is_compared_or_named() -> None:
    """A file that holds seconds is one whose runs are compared, or it is named above with the reason."""
    words = ('seconds"', 'round_s"', '_ms"', '_us"', '"round_ends"', '"cpu":')
    timed = {f.stem for f in EVIDENCE.glob("*.json") if any(w in f.read_text(encoding="utf-8") for w in words)}
    known = {Path(file).stem for file in evidence.FILES} | SMALL | NOT_COMPARED.keys()
    assert timed <= known, f"{timed - known}: compare its times with what is told, or say why not"
    assert all((EVIDENCE / f"{name}.json").exists() for name in SMALL | NOT_COMPARED.keys())


class Small(NamedTuple):
    """A measured round of a model that is no recipe's, or of data that were made up."""

    where: str
    machine: str
    model: str
    engine: str
    cohort: int
    batch: int
    samples: float  # that go forward and back in a round
    seconds: float

    @property
    def size(self) -> RunSize:
        """FLOPs of a forward pass cancel."""
        return RunSize(self.model, self.where, self.cohort, self.batch, 1.0, 3 * self.samples, 0.0, 0.0)

    @property
    def speed(self) -> Speed:
        """What it measures."""
        rate = 3 * self.samples / self.seconds
        step = self.size.step(self.engine)
        return Speed(self.machine, "", "", self.engine, self.model, self.where, self.batch, step, rate, 1.0, 0.0, "")


def small_rounds() -> Iterator[Small]:
    """All rounds of the evidence that were measured apart from a recipe."""
    bench = {w["workload"]["name"]: w for w in numbers("bench")["workloads"]}
    seconds = [("bench", name, w["coterie_seconds"]) for name, w in bench.items()]
    peers = numbers("bench-peers")["workloads"]
    seconds += [("bench-peers", w["workload"]["name"], w["sides"]["coterie"]["seconds"]) for w in peers]
    seconds += [("gathering", name, found["gathered"]) for name, found in numbers("gathering")["found"].items()]
    for where, name, taken in seconds:
        w, engine = bench[name]["workload"], bench[name]["coterie"]["engine"]
        passes = w["cohort"] * w["samples"] * w["epochs"]
        yield Small(f"{where} {name}", "cpu", w["model"], engine, w["cohort"], w["batch_size"], passes, taken)
    for where, machine in (("overlap", "cpu"), ("overlap-gpu", "gpu")):
        for i, found in enumerate(numbers(where)["found"]):
            w, taken = found["work"], found["modes"]["neither"]["training"]
            cohort = w["participants"] or w["clients"]
            passes, model = cohort * w["samples"] * w["epochs"], w["model"].split(":")[0]
            yield Small(f"{where} {i}", machine, model, found["engine"], cohort, w["batch_size"], passes, taken)
    for row in numbers("growth")["rows"]:
        n = row["clients"]
        yield Small(f"growth {n}", "cpu", "logreg", row["engine"], n, 4, 8 * n, row["settled_us"] * 2e-6 * n)
    gpu = numbers("gpu_speed")
    cnn, resnet, sam = (gpu[k] for k in ("cnn, 100 clients", "resnet18-gn, DFedAlt, 100 clients", "resnet18-gn, SAM"))
    yield Small("gpu_speed cnn", "gpu", "cnn", "graphed:100", 100, 50, 100 * 50, 100 * cnn["fp32_ms"] / 1e3)
    yield Small("gpu_speed resnet", "gpu", "resnet18-gn", "graphed:1", 100, 128, 100 * 500 * 6, resnet["round_s"])
    yield Small("gpu_speed plain", "gpu", "resnet18-gn", "graphed:1", 8, 128, 125, sam["plain_ms"] / 1e3)
    yield Small("gpu_speed sam", "gpu", "resnet18-gn", "graphed:1", 8, 128, 2 * 125, sam["sam_ms"] / 1e3)


def test_the_rule_holds_between_all_small_rounds() -> None:
    """Any of them foretells any other within a factor of two, or not at all."""
    rounds, compared = list(small_rounds()), set()
    for one, other in permutations(rounds, 2):
        told = estimate_time([one.speed], other.size, other.speed.platform)
        if told is not None:
            assert 0.5 < told.training / other.seconds < 2, (one, other)
            compared |= {one.where, other.where}
    alone = {"overlap 2", "overlap 4"}  # four clients of one set-up, and the only round of its model
    assert compared == {each.where for each in rounds} - alone
    few = next(each for each in rounds if each.where == "overlap 2")
    many = next(each for each in rounds if each.where == "overlap 1")
    assert few.seconds > 2 * many.seconds * few.samples / many.samples  # why steps of another size tell nothing


def speed_of(**changed: Any) -> Speed:
    known = Speed("one", "fp32", "2.11", "serial", "cnn", "fedavg", 10, 3e6, 1e9, 2e9, 7.0, "a run")
    return known._replace(**changed)


SIZE = RunSize("cnn", "fedavg", 10, 10, 1e5, 5e9, 4e9, 2e9)  # steps of 3e6
HERE = Platform("one", "fp32")


def test_a_time_is_the_sum_of_building_training_evaluation_and_tuning() -> None:
    assert estimate_time([speed_of()], SIZE, HERE) == (7.0, 5.0, 2.0 + 2.0)


def test_what_is_unlike_all_that_was_measured_has_no_time() -> None:
    assert estimate_time([], SIZE, HERE) is None
    for changed in (
        {"machine": "two"},
        {"precision": "bf16"},
        {"model": "mlp"},
        {"step": 6.1e6},
        {"step": 0.7e6},
        {"batch": 21},
        {"batch": 2},
    ):
        assert estimate_time([speed_of(**changed)], SIZE, HERE) is None, changed
    assert estimate_time([speed_of(evaluation=None)], SIZE, HERE) is None
    assert estimate_time([speed_of()], SIZE._replace(evaluation=None), HERE) is None
    assert estimate_time([speed_of(engine="vectorized:20")], SIZE, HERE) is None  # ten at once do ten times as much
    assert estimate_time([speed_of(engine="vectorized:20", step=3e7)], SIZE, HERE) == (7.0, 5.0, 4.0)


def test_the_measurement_most_alike_counts_and_the_newest_of_equals() -> None:
    close, other = speed_of(step=2.9e6, training=2e9, method="fedper"), speed_of(step=2e6, method="ditto")
    for speeds in ([close, other], [other, close]):
        assert estimate_time(speeds, SIZE, HERE)[1] == 2.5  # type: ignore[index]
    assert estimate_time([close, speed_of(step=1e6, training=5e9)], SIZE, HERE)[1] == 1.0  # type: ignore[index]
    assert estimate_time([speed_of(), speed_of(training=5e9)], SIZE, HERE)[1] == 1.0  # type: ignore[index]
    half = [speed_of(building=None, evaluation=None), speed_of(method="ditto", building=3.0)]
    assert estimate_time(half, SIZE, HERE) == (3.0, 5.0, 4.0)


def test_recipes_have_times_where_their_model_was_measured() -> None:
    h200 = Platform("NVIDIA H200", "bf16")
    measured = {s.model for s in read_speeds(SHIPPED) if s.platform == h200}
    for recipe in map(load, names()):
        spent = cost(recipe, platform=h200)
        assert 0 <= spent.untimed <= spent.flops
        if not {case.model.split(":")[0] for case in recipe.cases} & measured:
            assert spent.seconds == 0
            assert spent.untimed == pytest.approx(spent.flops)
    assert cost(load("dfedalt-t1"), platform=h200).untimed == 0
    assert cost(load("dfedalt-t1")).time() == "-"  # of no machine
    half = cost(load("dfedalt-t1"), [2], ["dfedalt"], h200, Extent(seeds=1, rounds=250))
    whole = cost(load("dfedalt-t1"), [2], ["dfedalt"], h200, Extent(seeds=1))
    assert (half.flops, half.bytes) == pytest.approx((whole.flops / 2, whole.bytes / 2))
    seldom = cost(load("dfedalt-t1"), [2], ["dfedalt"], h200, Extent(seeds=1, evaluate_every=500))
    assert whole.seconds / 2 < half.seconds < whole.seconds  # building is not halved
    assert half.seconds < seldom.seconds < whole.seconds


def test_a_run_teaches_its_machine(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command to the speed, the user's table and the time of the same run once more."""
    words = "run fedavg --data digits --model mlp --clients 4 --rounds 4 --set participation=0.5 --evaluate-every 1"
    cli.succeed(*words.split(), "--out", "a", cwd=tmp_path)
    kept = tmp_path / "coterie" / "speeds.json"
    taught = cli.succeed("recipe", "speed", "a", "--to", str(kept), cwd=tmp_path)
    assert "a: fedavg, mlp on" in taught.out
    (speed,) = read_speeds(kept)
    rows = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert speed.step == pytest.approx(3 * config["settings"]["batch_size"] * rows[0]["forward_flops"], rel=1e-3)
    rates = [row["flops"] / row["seconds"] for row in rows[1:]]
    assert speed.training == pytest.approx(sorted(rates)[1], rel=1e-3)
    passes, seconds = 2.5 * 445 * rows[0]["forward_flops"] / 2, sorted(row["evaluation_seconds"] for row in rows[1:])[1]
    assert speed.evaluation == pytest.approx(passes / seconds, rel=1e-3)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert known_speeds() == [*read_speeds(SHIPPED), speed]
    add_speeds(kept, [speed._replace(training=1.0)])
    assert known_speeds() == [*read_speeds(SHIPPED), speed._replace(training=1.0)]  # it was replaced
    cli.refuse("recipe", "speed", "b", cwd=tmp_path, names=("b", "is no folder of a run"))


def test_a_recipe_tells_how_long_what_was_asked_for_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here, with the engine, the rounds and the seeds that were typed, if something like it was measured here."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    here = platform_of("cpu", None)
    (known,) = [s for s in read_speeds(SHIPPED) if s.method == "dfedalt"]
    speed = known._replace(machine=here.machine, precision=here.precision, engine="serial", building=600.0)
    add_speeds(own_file(), [speed])

    def told(**options: Any) -> str:
        asked = RecipeOptions(methods="dfedalt", case="2", device="cpu", **options)
        _announce(RecipePlan(load("dfedalt-t1"), ["dfedalt"], asked), Output())
        return " ".join(capsys.readouterr().err.split())

    asked = cost(load("dfedalt-t1"), [2], ["dfedalt"], here, Extent(1, 100))
    assert told(rounds=100, seeds=1).endswith(f"sent; {asked.time()} on {here}, as measured")
    assert f"all of it: {scaled(asked.flops, 'FLOP')}," in told(rounds=100, seeds=1)
    assert asked.seconds > 600
    assert f"on {here} was never measured" in told(engine="vectorized")
    assert "as measured" in told(engine="serial")
    assert "at its published size: 754 PFLOP" in told(clients=10, rounds=1)
    assert "in bf16 was never measured" in told(precision="bf16")


def test_what_tells_no_speed_is_refused(tmp_path: Path) -> None:
    run = RECORDED["dfedalt-t1, dfedalt"]
    with pytest.raises(UserError, match="fewer than three rounds"):
        measure_speed(run.config, run.rows[:2], "a")
    without = {k: v for k, v in run.config.items() if k != "machine"}
    with pytest.raises(UserError, match="names no machine"):
        measure_speed(without, run.rows, "a")
    with pytest.raises(UserError, match="is no folder of a run"):
        read_run(tmp_path)
    (tmp_path / "speeds.json").write_text("[{}]")
    with pytest.raises(UserError, match="is no table of speeds"):
        read_speeds(tmp_path / "speeds.json")
