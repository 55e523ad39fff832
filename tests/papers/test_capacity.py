"""Smaller forms of a model, counted, against what FedLMT's Tables 1, 2 and 7 print.

Three things in those tables do not follow from the models: the parameters of the depth-scaled ones (heads of another,
unknown kind), the totals of mixed federations (participants were drawn, so that shares are not exactly equal), and the
classes (all totals are those of ten classes).
"""

from functools import cache

import pytest
import torch

from coterie import models
from coterie.algorithms import BUILDERS
from coterie.algorithms.method import facts
from coterie.algorithms.settings import settings_of
from coterie.core.errors import UserError
from coterie.core.tensors import entries
from coterie.papers.capacity import CapacityRow, capacity_table
from coterie.papers.commands.capacity_table import show_capacity
from coterie.submodels import factorize
from coterie.submodels.staged import stage_lengths
from toys import communication, computation

FAMILIES = {
    "FedAvg": ["full"] * 4,
    "FedLMT": ["low rank keep 3, rank 0.15"] * 4,
    "HeteroFL": ["width 1/4", "width 1/2", "width 3/4", "full"],
    "FedHM": [f"rank by client keep 9, rank {r}" for r in (0.01, 0.15, 0.6, 1.4)],
    "FLANC": [f"basis {fraction}" for fraction in (0.25, 0.75, 1.25, 1.75)],
    "DepthFL": [f"depth {depth} of 4" for depth in (1, 2, 3, 4)],
    "ProgFed": [f"stages {stage} of 4" for stage in (1, 2, 3, 4)],
}
"""The four capacities of each method, smallest first."""

DATA = {"CIFAR-10": (32, 2000), "CIFAR-100": (32, 3000), "Tiny": (64, 3000)}
"""Side of the images, rounds. SVHN is as CIFAR-10."""


@cache
def table(side: int) -> dict[str, CapacityRow]:
    rows = capacity_table("resnet18-bn", 10, (3, side, side))
    return {f"{row.family} {row.setting}".strip(): row for row in rows}


def rounded(value: int, digits: int | None) -> int:
    """To that many significant digits, as a table prints it."""
    return value if digits is None else round(float(f"{value:.{digits - 1}e}"))


def total(which: str, method: str, data: str, quantity: str, digits: int | None = None) -> float:
    """Of Table 2, where capacities 4, 3 and 2 are mixed, or of Table 7, where all grow through the four."""
    side, rounds = DATA[data]
    rows = [table(side)[key] for key in FAMILIES[method]]
    each, sum_up = {
        "COMM": ([r.parameters for r in rows], communication),
        "FLOPs": ([r.flops for r in rows], computation),
    }[quantity]
    values = [rounded(v, digits) for v in each if v is not None]
    if which == "T2":
        return sum_up(values[1:], 10, rounds)
    return sum(sum_up(v, 10, T) for v, T in zip(values, stage_lengths(rounds, 4), strict=True))


# --- Table 1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "capacity", "parameters", "flops"),
    [
        ("HeteroFL", 1, "701K", "35.8M"),
        ("HeteroFL", 2, "2.80M", "141M"),
        ("HeteroFL", 3, "6.29M", "315M"),
        ("HeteroFL", 4, "11.2M", "559M"),
        ("FedHM", 1, "927K", "296M"),
        ("FedHM", 2, "1.96M", "324M"),
        ("FedHM", 3, "5.28M", "415M"),
        ("FedHM", 4, "11.2M", "576M"),
        ("FLANC", 1, "531K", "57.1M"),
        ("FLANC", 2, "2.36M", "207M"),
        ("FLANC", 3, "6.01M", "436M"),
        ("FLANC", 4, "11.5M", "744M"),
        ("DepthFL", 1, None, "231M"),
        ("DepthFL", 2, None, "404M"),
        ("DepthFL", 3, None, "557M"),
        ("DepthFL", 4, None, "692M"),
        ("FedLMT", 2, "1.43M", "140M"),
    ],
)
def test_table_1(method: str, capacity: int, parameters: str | None, flops: str) -> None:
    row = table(32)[FAMILIES[method][capacity - 1]]
    for found, printed in ((row.parameters, parameters), (row.flops, flops)):
        if printed is not None:
            assert found is not None
            scale = {"K": 1e3, "M": 1e6}[printed[-1]]
            assert f"{found / scale:.{len(printed[:-1].partition('.')[2])}f}" == printed[:-1]


def test_every_form_is_counted() -> None:
    rows = table(32).values()
    assert len(rows) == 26
    assert not [row for row in rows if row.why]
    counts = {key: row.parameters for key, row in table(32).items()}
    assert counts["full"] == counts["rank by client keep 9, rank 1.4"] == counts["stages 4 of 4"] == 11_173_962
    assert counts["low rank keep 1, rank 0.03"] == 421_962
    assert counts["low rank keep 5, rank 0.4"] == 3_431_946
    assert counts["by definition keep 3, rank 0.15"] == 3_416_202
    assert [counts[key] for key in FAMILIES["DepthFL"]] == [450_890, 1_572_436, 4_857_950, 13_256_808]
    assert [counts[key] for key in FAMILIES["ProgFed"]] == [150_474, 676_682, 2_777_674, 11_173_962]


# --- Tables 2 and 7 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "method", "exact"),
    [
        ("T2", "FedAvg", 223.479),
        ("T2", "FedLMT", 28.611),
        ("T2", "FedHM", 122.718),
        ("T2", "HeteroFL", 135.067),
        ("T7", "ProgFed", 148.687),
        ("T7", "HeteroFL", 164.143),
    ],
)
def test_totals(which: str, method: str, exact: float) -> None:
    assert total(which, method, "CIFAR-10", "COMM") == pytest.approx(exact, abs=0.0005)


@pytest.mark.parametrize(
    ("cell", "printed", "digits"),
    [
        # From the counts as they are.
        ("T2 FedAvg CIFAR-10 COMM", "223.5", None),
        ("T2 FedAvg CIFAR-100 COMM", "335.2", None),
        ("T2 FedAvg Tiny FLOPs", "67.02", None),
        ("T2 FedHM CIFAR-10 FLOPs", "8.77", None),
        ("T2 FedLMT Tiny FLOPs", "16.74", None),
        ("T7 HeteroFL CIFAR-10 COMM", "164.1", None),
        ("T7 HeteroFL CIFAR-100 COMM", "246.2", None),
        ("T7 HeteroFL CIFAR-100 FLOPs", "12.32", None),
        ("T7 HeteroFL Tiny FLOPs", "49.26", None),
        ("T7 ProgFed CIFAR-10 COMM", "148.7", None),
        ("T7 ProgFed CIFAR-100 COMM", "223.0", None),
        ("T7 ProgFed CIFAR-100 FLOPs", "13.73", None),
        ("T7 ProgFed Tiny FLOPs", "54.91", None),
        ("T7 DepthFL CIFAR-100 FLOPs", "17.44", None),
        # From the counts as Table 1 prints them, in three or four digits.
        ("T2 FedAvg CIFAR-10 FLOPs", "11.18", 3),
        ("T2 FedAvg CIFAR-100 FLOPs", "16.77", 3),
        ("T2 FedLMT CIFAR-10 COMM", "28.62", 4),
        ("T2 FedLMT CIFAR-100 COMM", "42.93", 4),
        ("T2 FedLMT CIFAR-10 FLOPs", "2.80", 3),
        ("T2 FedLMT CIFAR-100 FLOPs", "4.20", 3),
        ("T7 HeteroFL CIFAR-10 FLOPs", "8.22", 3),
        ("T7 ProgFed CIFAR-10 FLOPs", "9.16", 3),
        ("T7 DepthFL CIFAR-10 FLOPs", "11.63", 3),
        ("T7 DepthFL Tiny FLOPs", "69.76", 4),
    ],
)
def test_cells_that_follow(cell: str, printed: str, digits: int | None) -> None:
    which, method, data, quantity = cell.split()
    unit = 10 ** -len(printed.partition(".")[2])
    assert total(which, method, data, quantity, digits) == pytest.approx(float(printed), abs=unit / 2 + 1e-9)


@pytest.mark.parametrize(
    ("cell", "printed", "percent"),
    [
        # Participants were drawn: the printed totals are up to 0.6 % below those of exactly equal shares.
        ("T2 HeteroFL CIFAR-10 COMM", 134.7, 0.27),
        ("T2 HeteroFL CIFAR-10 FLOPs", 6.75, 0.19),
        ("T2 HeteroFL CIFAR-100 COMM", 201.5, 0.55),
        ("T2 HeteroFL CIFAR-100 FLOPs", 10.10, 0.44),
        ("T2 HeteroFL Tiny FLOPs", 40.36, 0.54),
        ("T2 FedHM CIFAR-10 COMM", 122.6, 0.10),
        ("T2 FedHM CIFAR-100 COMM", 183.3, 0.42),
        ("T2 FedHM CIFAR-100 FLOPs", 13.12, 0.27),
        ("T2 FedHM Tiny FLOPs", 52.50, 0.23),
        ("T2 FLANC CIFAR-10 COMM", 132.0, 0.30),
        ("T2 FLANC CIFAR-10 FLOPs", 9.22, 0.29),
        ("T2 FLANC CIFAR-100 COMM", 197.6, 0.51),
        ("T2 FLANC CIFAR-100 FLOPs", 13.80, 0.51),
        ("T2 FLANC Tiny FLOPs", 55.20, 0.51),
        ("T2 DepthFL CIFAR-10 FLOPs", 11.01, 0.07),
        ("T2 DepthFL CIFAR-100 FLOPs", 16.49, 0.22),
        ("T2 DepthFL Tiny FLOPs", 65.94, 0.25),
        # The unknown heads hold some 0.3 M more parameters at depth 3.
        ("T2 DepthFL CIFAR-10 COMM", 132.9, -1.24),
        ("T2 DepthFL CIFAR-100 COMM", 198.6, -0.87),
        ("T7 DepthFL CIFAR-10 COMM", 183.7, -0.43),
        ("T7 DepthFL CIFAR-100 COMM", 275.5, -0.41),
    ],
)
def test_cells_that_do_not(cell: str, printed: float, percent: float) -> None:
    which, method, data, quantity = cell.split()
    assert 100 * (total(which, method, data, quantity) / printed - 1) == pytest.approx(percent, abs=0.01)


def test_totals_of_the_transformer() -> None:
    full = capacity_table("transformer-mlm", 33_279, (64,))[0]
    assert full.parameters is not None
    assert full.flops is not None
    assert round(communication(full.parameters, 5, 200), 2) == 10.36
    assert round(computation(full.flops, 5, 200), 2) == 0.39
    with torch.device("meta"):
        low = factorize(models.build("transformer-mlm", classes=33_279, input_shape=(64,)), 30 / 128, "*.attention.*")
    assert round(communication(entries(low.parameters()), 5, 200), 2) == 2.65


# --- models without some of the forms --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "reasons"),
    [
        ("logreg", (64,), {"low rank": "no layer is left to factorize", "width": "model logreg has no option 'rate'"}),
        ("mlp", (64,), {"depth": "the model is not built in stages", "basis": "the model is not built in stages"}),
        (
            "resnet8-gn",
            (1, 8, 8),
            {
                "width": "groups=8 does not divide a layer's 4 channels",
                "basis": "groups=8 does not divide a layer's 4 channels",
                "rank by client": "no layer is left to factorize",
            },
        ),
        ("vgg11-gn", (3, 32, 32), {"stages": "the model is not built in stages"}),
    ],
)
def test_rows_say_why_there_is_no_such_form(name: str, shape: tuple[int, ...], reasons: dict[str, str]) -> None:
    rows = capacity_table(name, 10, shape)
    for family, why in reasons.items():
        first = next(row for row in rows if row.family == family and row.why)
        assert (first.parameters, first.flops, first.why) == (None, None, why)
    assert all((row.parameters is None) == bool(row.why) for row in rows)


def test_images_that_shrink_to_one_number() -> None:
    """Batch normalization refuses a single number a channel, so that the count needs more than one sample."""
    rows = capacity_table("resnet8-bn", 10, (1, 4, 4))
    assert not [row for row in rows if row.why and row.family != "rank by client"]


def test_unknown_models_are_refused() -> None:
    with pytest.raises(UserError, match="unknown model 'resnet9'"):
        capacity_table("resnet9", 10, (1, 8, 8))


def test_the_table_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    show_capacity("resnet8-gn", 10, (1, 8, 8))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "resnet8-gn · 10 classes · samples of 1 x 8 x 8"
    assert any(line.split() == ["full", "77,754", "790,656"] for line in lines)
    assert any(line.split() == ["3", "of", "3", "106,958", "1.02M"] for line in lines)
    assert sum(line.startswith("low rank ") for line in lines) == 1
    assert any("groups=8 does not divide" in line for line in lines)
    assert "stages: progfed" in lines  # who holds which form


def test_methods_for_unequal_clients_say_which_form_they_hold() -> None:
    forms = {row.family for row in capacity_table("mlp", 10, (64,))}
    for method, build in BUILDERS.items():
        assert facts(build).submodel in {None, *forms}, method
        assert (facts(build).submodel is not None) == ("capacities" in settings_of(build) or method == "progfed"), (
            method
        )
