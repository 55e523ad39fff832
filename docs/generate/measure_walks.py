"""Count the functions and files of the package that a walk touches, and print them in the order of their first call.

Run it as ``python docs/generate/measure_walks.py WALK [--list]``. A walk is one of

* ``compare``: ``coterie compare local dfedalt --seeds 2`` from argv to the page, all threads included;
* ``round [ENGINE [METHOD [SETTING=VALUE ...]]]``: the second round of a run, of serial DFedAlt by default;
* ``peer``: the second round of one of three peers with DFedAlt, in its own thread, without a network.

Only functions that have a name are counted: no lambdas, no comprehensions, no bodies of modules and classes.
"""

import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
COMPARE = ("compare", "local", "dfedalt", "--seeds", "2")


def _package() -> str:
    spec = find_spec("coterie")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent) + os.sep


PACKAGE = _package()


class Called(NamedTuple):
    """A function, where it stands, and how deep its first call was."""

    depth: int
    name: str
    file: str


class Walk:
    """The functions of the package that were called."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, Called] = {}
        self.calls = 0
        self._outside: set[CodeType] = set()
        self._thread = threading.local()

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """Record an event, as ``sys.setprofile`` tells it."""
        code = frame.f_code
        if code in self._outside or event not in ("call", "return"):
            return
        depth = getattr(self._thread, "depth", 0)
        if event == "return":
            self._thread.depth = depth - (code in self.functions)
            return
        if code not in self.functions:
            named = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
            if not (named and code.co_filename.startswith(PACKAGE)):
                self._outside.add(code)
                return
            file = code.co_filename.removeprefix(PACKAGE).replace(os.sep, "/")
            self.functions[code] = Called(depth, code.co_qualname, file)
        self.calls += 1
        self._thread.depth = depth + 1

    @contextmanager
    def recorded(self, threads: bool = False) -> Iterator[None]:
        """Record this thread, and those that begin meanwhile if wanted."""
        threading.setprofile(self.profile if threads else None)
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def called(self) -> list[Called]:
        """The functions in the order of their first call."""
        return list(self.functions.values())

    @property
    def files(self) -> Counter[str]:
        """How many functions each file has in the walk."""
        return Counter(call.file for call in self.called)


def compare_walk(*arguments: str) -> Walk:
    """Run a command as a shell would, in an empty folder."""
    from coterie.cli import main

    walk, before = Walk(), Path.cwd()
    with TemporaryDirectory() as folder, patch.object(sys, "argv", ["coterie", *arguments]):
        os.chdir(folder)
        try:
            with walk.recorded(threads=True):
                main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            os.chdir(before)
    return walk


@contextmanager
def second_call(owner: type, name: str, walk: Walk) -> Iterator[None]:
    """Record the second call of a method in each object, or in all objects if they are values."""
    original, counts = getattr(owner, name), Counter[int]()

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        counts[thread] += 1
        if counts[thread] != 2 or walk.functions:
            return original(self, *args, **kwargs)
        with walk.recorded():
            return original(self, *args, **kwargs)

    with patch.object(owner, name, counted):
        yield


def round_walk(engine: str = "serial", method: str = "dfedalt", **settings: Any) -> Walk:
    """Run two rounds of six clients, in one thread. The second one is recorded: training, exchange and evaluation."""
    import torch

    import coterie as ct
    from coterie.training.experiment import Experiment

    federation = ct.data.federate("digits", clients=6, partition="dirichlet:0.3", seed=0)
    algorithm = ct.algorithms.build(method, **settings)
    walk, threads = Walk(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with second_call(Experiment, "run_round", walk):
            model = ct.models.build("cnn", federation)
            ct.fit(model, federation, algorithm, rounds=2, engine=engine, progress=False)
    finally:
        torch.set_num_threads(threads)
    return walk


def peer_walk() -> Walk:
    """Run two rounds of three peers in threads, whose messages pass from mailbox to mailbox. One peer is recorded."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import coterie as ct
    from coterie.models.model import Model, cross_entropy
    from coterie.net.peer.peer import Peer
    from local_peers import participants, run_together

    federation = ct.data.federate("digits", clients=3, partition="iid", seed=0)
    algorithm = ct.algorithms.build("dfedalt", topology="full")

    def model() -> Model:
        return Model(ct.models.build("cnn", federation), cross_entropy)

    walk = Walk()
    with TemporaryDirectory() as folder, second_call(Peer, "_one_round", walk):
        run_together(participants(model, federation, algorithm, 3, Path(folder)))
    return walk


def main(walk: str, *typed: str) -> None:
    """Print a walk."""
    words = [text for text in typed if text != "--list"]
    settings = dict(text.split("=", 1) for text in words[2:] or ("topology=ring",))
    made = {
        "compare": lambda: compare_walk(*(words or COMPARE)),
        "round": lambda: round_walk(*words[:2], **settings),
        "peer": peer_walk,
    }[walk]()
    if "--list" in typed:
        for call in made.called:
            print(f"{'  ' * call.depth}{call.name}  ({call.file})")
    rooms = Counter({file.split("/")[0]: 0 for file in made.files})
    for file, count in made.files.items():
        rooms[file.split("/")[0]] += count
    print(", ".join(f"{room} {count}" for room, count in rooms.most_common()))
    print(f"{len(made.functions)} functions in {len(made.files)} files, {made.calls} calls")


if __name__ == "__main__":
    main(*sys.argv[1:])
