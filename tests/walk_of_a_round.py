"""Prints who calls whom in one round, in order: python tests/walk_of_a_round.py [serial|vectorized] [METHOD]."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import coterie as ct
from coterie.training.experiment import Experiment

PACKAGE = Path(ct.__file__).parent


def walked(engine: str, method: str) -> list[tuple[int, str, str]]:
    """(depth, file, function) of every function of the package in the second round of a run, at its first call."""
    federation = ct.data.federate("digits", clients=6, partition="dirichlet:0.3", seed=0)
    found: dict[tuple[str, str, int], int] = {}
    run_round, depth = Experiment.run_round, 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        path = Path(code.co_filename)
        if not path.is_relative_to(PACKAGE) or code.co_name.startswith("<"):
            return
        if event == "call":
            found.setdefault((path.relative_to(PACKAGE).as_posix(), code.co_qualname, code.co_firstlineno), depth)
            depth += 1
        elif event == "return":
            depth -= 1

    def traced(self: Experiment, *args: Any, **kwargs: Any) -> Any:
        sys.setprofile(profile if args[1] == 1 else None)
        try:
            return run_round(self, *args, **kwargs)
        finally:
            sys.setprofile(None)

    Experiment.run_round = traced  # type: ignore[method-assign]
    try:
        algorithm = ct.algorithms.build(method)
        ct.fit(ct.models.build("cnn", federation), federation, algorithm, rounds=2, engine=engine, progress=False)
    finally:
        Experiment.run_round = run_round  # type: ignore[method-assign]
    return [(depth, file, name) for (file, name, _), depth in found.items()]


if __name__ == "__main__":
    engine, method = (*sys.argv[1:], *("serial", "dfedalt")[len(sys.argv) - 1 :])[:2]
    steps = walked(engine, method)
    for depth, file, name in steps:
        print(f"{'  ' * depth}{name}  ({file})")
    print(f"{len(steps)} functions in {len({file for _, file, _ in steps})} files")
