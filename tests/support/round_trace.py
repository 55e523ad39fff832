"""Print the calls of one round in order.

Run it as ``python tests/support/round_trace.py [ENGINE [METHOD [SETTING=VALUE ...]]]``.

Functions of the package that have a name are shown where they are called first. Clients run in one thread.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import coterie as ct
from coterie.training.experiment import Experiment

PACKAGE = Path(ct.__file__).parent


class Called(NamedTuple):
    """A function and where it stands."""

    depth: int
    name: str
    file: str


def trace(engine: str, method: str, **settings: Any) -> list[Called]:
    """The functions of the second of two rounds, as an experiment runs it: training, exchange and evaluation."""
    federation = ct.data.federate("digits", clients=6, partition="dirichlet:0.3", seed=0)
    model = ct.models.build("cnn", federation)
    algorithm = ct.algorithms.build(method, **settings)
    found: dict[Any, Called] = {}
    run_round, threads, depth = Experiment.run_round, torch.get_num_threads(), 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        path = Path(code.co_filename)
        if not path.is_relative_to(PACKAGE) or code.co_name.startswith("<"):
            return
        if event == "call":
            found.setdefault(code, Called(depth, code.co_qualname, path.relative_to(PACKAGE).as_posix()))
            depth += 1
        elif event == "return":
            depth -= 1

    def traced(self: Experiment, before: Any, t: int, evaluate: bool) -> Any:
        sys.setprofile(profile if t == 1 else None)
        try:
            return run_round(self, before, t, evaluate)
        finally:
            sys.setprofile(None)

    Experiment.run_round = traced  # type: ignore[method-assign]
    torch.set_num_threads(1)
    try:
        ct.fit(model, federation, algorithm, rounds=2, engine=engine, progress=False)
    finally:
        torch.set_num_threads(threads)
        Experiment.run_round = run_round  # type: ignore[method-assign]
    return list(found.values())


def main(engine: str = "serial", method: str = "dfedalt", *typed: str) -> None:
    """Prints them, indented by depth, and how many there are."""
    settings = dict(text.split("=", 1) for text in typed or ("topology=ring",))
    called = trace(engine, method, **settings)
    for each in called:
        print(f"{'  ' * each.depth}{each.name}  ({each.file})")
    print(f"{len(called)} functions in {len({each.file for each in called})} files")


if __name__ == "__main__":
    main(*sys.argv[1:])
