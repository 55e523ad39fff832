"""What an import of Coterie sets for OpenMP, which reads it when torch is loaded."""

import os
import subprocess
import sys

import pytest

from coterie.core import openmp

SET = "import coterie, os; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_do_not_spin_unless_it_is_asked_for(chosen: dict[str, str], expected: str) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", SET], env={**kept, **chosen}, capture_output=True, text=True)
    assert done.stdout.strip() == expected, done.stderr


BUSY = """
import os
{first}
import coterie as ct, torch
torch.set_num_threads(2)
os.getloadavg = lambda: ({load}, 0.0, 0.0)
os.cpu_count = lambda: 2
fed = ct.data.federate("synthetic:size=40,classes=2", clients=2, partition="iid")
ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.local(steps=1), rounds=1)
"""


@pytest.mark.parametrize(
    ("first", "load", "warned"), [("import torch", 5.0, True), ("import torch", 1.0, False), ("", 5.0, False)]
)
def test_a_busy_machine_is_warned_of_where_torch_came_first(first: str, load: float, warned: bool) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    script = BUSY.format(first=first, load=load)
    done = subprocess.run([sys.executable, "-c", script], env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("import coterie first, or set OMP_WAIT_POLICY=passive" in done.stderr) == warned


@pytest.mark.parametrize(("threads", "warned"), [(2, True), (1, False)])
def test_a_single_thread_waits_for_none(threads: int, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_TOO_LATE", True)
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    assert (openmp.spinning_threads(threads) is not None) == warned
