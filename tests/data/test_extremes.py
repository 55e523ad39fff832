"""Numbers that are too large, and links that lead nowhere: one sentence, and no warning of a library before it."""

import os
from pathlib import Path

import numpy as np
import pytest

from coterie.core.errors import UserError
from coterie.data import federate
from in_process import answer

pytestmark = pytest.mark.hostile

HUGE = np.where(np.arange(40) == 3, 1e300, np.arange(40) / 7)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["x", "y"])
def test_numbers_beyond_single_precision_in_arrays(tmp_path: Path, name: str) -> None:
    arrays = {"x": np.random.default_rng(0).random((40, 2)), "y": np.arange(40) / 7}
    np.savez(tmp_path / "a.npz", **{**arrays, name: np.stack([HUGE, HUGE], 1) if name == "x" else HUGE})
    with pytest.raises(UserError, match=f"{name} of .*a.npz has numbers beyond 3.4e38"):
        federate(f"npz:{tmp_path / 'a.npz'}", 2, "iid")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["a", "y"])
def test_numbers_beyond_single_precision_in_tables(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow.csv")
    columns = {"a": np.arange(40), "b": np.arange(40) * 2, "y": np.arange(40) / 7, name: HUGE}
    rows = zip(*columns.values(), strict=True)
    (tmp_path / "a.csv").write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    with pytest.raises(UserError, match=f"{name} of .*a.csv holds numbers beyond 3.4e38"):
        federate(f"csv:{tmp_path / 'a.csv'},target=y", 2, "iid")


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_a_link_that_leads_to_itself_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "LOOP").symlink_to("LOOP")
    (tmp_path / "empty").mkdir()
    for words in (("LOOP",), ("empty", "LOOP")):
        assert "LOOP is a link that leads to itself" in answer("pack", *words, cwd=tmp_path).sentence
