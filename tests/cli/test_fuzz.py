"""Any command line ends with a result or with one sentence: status 0 or 2, 130 if interrupted, never a traceback."""

import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from coterie.training.experiment import Experiment
from fuzzed import NUMBERS, SUITABLE, command_lines, commands
from in_process import answer

LONGEST = 20  # seconds that a command may take before its first round
ADDRESSES = 6 * 2**30  # bytes that it may take: more is a mistake, which the machine must not feel


STATM = Path("/proc/self/statm")
pytestmark = pytest.mark.hostile
tells_memory = pytest.mark.skipif(not STATM.exists(), reason="this system does not tell a process's memory")


def stop(*arguments: object, **options: object) -> NoReturn:
    """What begins where a command has been checked: here nobody goes on."""
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, a text, an array and a module, to be copied."""
    cwd = tmp_path_factory.mktemp("prepared")
    small = ("--data", "synthetic:size=200,classes=4", "--model", "logreg", "--clients", "3", "--rounds", "1")
    assert answer("run", "dfedavg", *small, "--set", "epochs=1", "--out", "run", "--quiet", cwd=cwd).status == 0
    (cwd / "exp.toml").write_text('methods = ["fedavg"]\nseed = 1\n[set]\nlr = 0.1\n')
    (cwd / "settings.toml").write_text("[fedavg]\nlr = 0.1\n[dfedavg]\nlr = 0.2\n")
    (cwd / "words.txt").write_text("one two three four five six\n" * 50)
    (cwd / "file.txt").write_text("no array\n")
    np.savez(cwd / "own.npz", x=np.zeros((40, 3), np.float32), y=np.arange(40) % 4, client=np.arange(40) % 3)
    return cwd


@pytest.fixture
def harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training, no network, no waiting, no folder of the user's."""
    monkeypatch.setattr(Experiment, "run_round", stop)
    monkeypatch.setattr(urllib.request, "urlopen", stop)
    monkeypatch.setattr(time, "sleep", stop)


@contextmanager
def limited() -> Iterator[None]:
    """A command that hangs or takes all memory fails instead, where the system can tell."""
    resource = pytest.importorskip("resource", reason="this system limits no process")
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def late(number: int, frame: Any) -> NoReturn:
        raise TimeoutError(f"no answer in {LONGEST} s")

    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    resource.setrlimit(resource.RLIMIT_AS, (taken + ADDRESSES, before[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_every_text_has_values_that_suit_it() -> None:
    texts = {p.name for c in commands() for p in c.parameters if p.kind is not bool and p.kind not in NUMBERS}
    assert texts - SUITABLE.keys() == set()


def test_every_command_is_drawn_from() -> None:
    assert {" ".join(c.words) for c in commands()} >= {"run", "compare", "watch", "recipe run", "data fetch", "export"}


def drawn(count: int) -> settings:
    """As many command lines, always the same."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@tells_memory
@pytest.mark.usefixtures("harmless")
@drawn(60)
@given(words=command_lines())
def test_any_command_line_ends_well(words: list[str], prepared: Path) -> None:
    check_ends_well(words, prepared)


@tells_memory
@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.usefixtures("harmless")
@drawn(500)
@given(words=command_lines())
def test_any_of_many_command_lines_ends_well(words: list[str], prepared: Path) -> None:
    check_ends_well(words, prepared)


def check_ends_well(words: list[str], prepared: Path) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        cwd = Path(shutil.copytree(prepared, Path(folder) / "a" / "b"))
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            patch.setenv(name, str(cwd / "home"))
        patch.delenv("COTERIE_DATA", raising=False)
        try:
            with limited():
                done = answer(*words, cwd=cwd)
        except Exception as error:
            raise AssertionError(f"coterie {words} ended in {type(error).__name__}: {error}") from error
    assert done.status in (0, 2, 130), (words, done)
    if done.status == 2:
        assert "Usage:" in done.err or done.sentence, (words, done)
