"""Without msgspec, as on a machine that only trains: all that needs no file works, and reading one is refused."""

import pickle
import subprocess
import sys
from pathlib import Path

from coterie.core.annotations import Meta

WITHOUT = """
import sys
sys.modules["msgspec"] = None  # its import raises an ImportError
import coterie as ct

fed = ct.data.federate("synthetic:size=60,classes=3", 3)
method = ct.algorithms.dfedalt(topology="ring", steps=1)
run = ct.fit(ct.models.build("mlp", fed), fed, method, rounds=2, progress=False)
assert len(run.history) == 2 and run.client_summary["train_samples"]
written = ct.fit(ct.models.build("mlp", fed), fed, method, rounds=2, progress=False, out="a")
try:
    ct.load("a")
except ct.UserError as error:
    assert str(error) == "reading a run's files needs msgspec: run pip install msgspec", error
else:
    raise AssertionError("the folder was read without msgspec")
"""


def test_training_needs_no_msgspec(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_limits_of_types_are_pickled() -> None:
    """A method's function is sent to Ray's workers with its annotations."""
    for limits in (Meta(ge=0, le=1), Meta(pattern=r"\A[01]*\Z"), Meta(min_length=1)):
        assert pickle.loads(pickle.dumps(limits)) == limits
