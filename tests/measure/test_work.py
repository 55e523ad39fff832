"""One line says what differs between methods in work and in tuning."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.algorithms.options import Options
from coterie.measure.compare import MethodRuns, RunData
from coterie.measure.compare.sentences import is_local, unequal
from in_process import answer

SMALL = ("--data", "synthetic:size=60,classes=3", "--clients", "2", "--rounds", "1", "--model", "mlp", "--quiet")


def method(label: str, how: str | None = None, tuned: tuple[str, ...] = ("lr",), **settings: Any) -> MethodRuns:
    config: Any = {"rounds": settings.pop("rounds", 5), "data": {"clients": 10}, "settings": settings}
    summary: Any = {"flops": settings.pop("flops", 1e9)}
    run = RunData(config, [], summary, {})
    run = run if how is None else replace(run, tuned={"settings": list(tuned), "how": how})
    return MethodRuns(label, [run])


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ([method("a", lr=0.1, epochs=5, rho=1), method("b", lr=0.1, epochs=5, mu=2)], []),
        ([method("a", lr=0.1, personal_lr=0.2), method("b", lr=0.1)], []),  # only one has it
        ([method("a", epochs=1), method("b", epochs=5)], ["Unequal work: epochs 1 (a), 5 (b)."]),
        (
            [method("a", epochs=None, steps=10), method("b", epochs=5, steps=None)],
            ["Unequal work: epochs 5 (b); steps 10 (a)."],
        ),
        ([method("a", clip=None), method("b", clip=10.0)], ["Unequal work: clip none (a), 10 (b)."]),
        ([method("a", rounds=3), method("b")], ["Unequal work: rounds 3 (a), 5 (b)."]),
        # All clients train where a method does not choose, and a count is a share of all of them.
        ([method("a", participation=1), method("b")], ["Unequal work: participation 0.1 (a), 1 (b)."]),
        ([method("a", participation=10), method("b", participation=1.0), method("c")], []),
        (
            [method(name, lr=0.1) for name in "abcd"] + [method("e", lr=0.2)],
            ["Unequal work: lr 0.2 (e), 0.1 (the others)."],
        ),
        # Rates that trials chose differ, because all methods were tuned alike.
        ([method("a", "best of 3", lr=0.1), method("b", "best of 3", lr=0.2)], []),
        (
            [method("a", "t/settings.toml", lr=0.1), method("b", lr=0.2)],
            ["Unequal work: lr 0.1 (a), 0.2 (b). Unequal tuning: only a was tuned (t/settings.toml)."],
        ),
        (
            [method("a", "best of 9", lr=0.1), method("b", "best of 3", lr=0.2), method("c", lr=0.2)],
            ["Unequal work: lr 0.1 (a), 0.2 (b, c). Unequal tuning: best of 9 (a), best of 3 (b), not tuned (c)."],
        ),
        ([method("a", "best of 3", lr=0.1)], []),
        # A second phase that only one method has is told by what training computes.
        (
            [method("dfedalt", flops=2e9, personal_epochs=5), method("b"), method("c", flops=1.04e9)],
            ["Unequal work: FLOPs, as a multiple of the least: 2 (dfedalt), 1 (b, c)."],
        ),
        ([method("a", flops=0.0), method("b", flops=0.0)], []),
    ],
)
def test_what_differs_is_named(methods: list[MethodRuns], said: list[str]) -> None:
    assert unequal(methods) == said


def test_every_option_is_of_local_training_or_of_messages() -> None:
    assert {name for name in Options.__annotations__ if not is_local(name)} == {
        "quantize",
        "robust",
        "server_optimizer",
    }


def test_the_command_says_which_method_was_tuned(tmp_path: Path) -> None:
    """Trials of one method that another lacks, and a file of `coterie tune` beside a preset; the page says so, too."""
    answer("tune", "fedper", "--grid", "lr=0.02,0.1", *SMALL, "--out", "t", cwd=tmp_path)
    done = answer("compare", "fedper", "local", "--settings", "t/settings.toml", *SMALL, "--out", "c", cwd=tmp_path)
    said = "only fedper was tuned (t/settings.toml)."
    assert said in done.out
    assert said in (tmp_path / "c/report.html").read_text()
    (tmp_path / "mine.toml").write_text("[fedper]\nepochs = 1\n")  # is written by hand
    done = answer("compare", "fedper", "local", "--settings", "mine.toml", *SMALL, "--out", "d", cwd=tmp_path)
    said = "Unequal work: epochs 1 (fedper), 5 (local); FLOPs, as a multiple of the least: 1 (fedper), 5 (local)."
    assert done.out.splitlines()[2] == said  # below the answer and its test
    tuned = ("--tune", "lr=0.1", "--tune", "participation=0.5;1.0", *SMALL)
    done = answer("compare", "fedper", "local", *tuned, "--out", "e", cwd=tmp_path)
    assert "Unequal tuning: best of 2 trainings (fedper), best of 1 trainings (local)." in done.out
