"""What an import of Coterie sets for OpenMP, which reads it when torch is loaded."""

import os
import subprocess
import sys

import pytest

SET = "import coterie, os; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_do_not_spin_unless_it_is_asked_for(chosen: dict[str, str], expected: str) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", SET], env={**kept, **chosen}, capture_output=True, text=True)
    assert done.stdout.strip() == expected, done.stderr
