"""Files that are found in a folder, or named, and may have no end; tables that are wide."""

import os
from pathlib import Path

import numpy as np
import pytest

from coterie.core.errors import UserError
from coterie.data import federate
from coterie.data.columns import check_columns
from coterie.data.readers.arrow import read_csv
from limited import ends

pytestmark = pytest.mark.hostile

if not hasattr(os, "mkfifo"):
    pytest.skip("there are no such files here", allow_module_level=True)


def images(root: Path) -> None:
    library = pytest.importorskip("PIL.Image")
    for kind in ("a", "b"):
        (root / kind).mkdir(parents=True)
        for i in range(3):
            library.fromarray(np.full((4, 4), 40 * i, np.uint8)).save(root / kind / f"{i}.png")


def tiny(root: Path) -> None:
    (root / "tiny-imagenet-200" / "train" / "n1" / "images").mkdir(parents=True)
    (root / "tiny-imagenet-200" / "train" / "n1" / "images" / "0.JPEG").touch()


PIPES = {
    "image-folder:{}": "a/9.png",
    "csv:{}/t.csv,target=y": "t.csv",
    "parquet:{}/t.parquet,target=y": "t.parquet",
    "npz:{}/t.npz": "t.npz",
    "text:path={}/t.txt": "t.txt",
    "tiny-imagenet": "tiny-imagenet-200/val/val_annotations.txt",
    "svhn": "train_32x32.mat",
}


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("source", PIPES)
def test_a_pipe_or_a_device_is_refused(tmp_path: Path, source: str, device: bool) -> None:
    if "image" in source:
        (tiny if source.startswith("tiny") else images)(tmp_path)
    if source.startswith(("csv", "parquet")):
        pytest.importorskip("pyarrow.csv")
    if source == "svhn":
        pytest.importorskip("scipy.io")
        (tmp_path / "test_32x32.mat").touch()
    path = tmp_path / PIPES[source]
    path.parent.mkdir(parents=True, exist_ok=True)
    if device:
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)

    def check() -> None:
        with pytest.raises(UserError) as refused:
            federate(source.format(tmp_path), 2, "iid", data_dir=tmp_path)
        assert "is no ordinary file" in str(refused.value)
        assert path.name in str(refused.value)

    ends(check)


class Counted(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_names_of_columns_are_not_compared_with_all_others() -> None:
    names = [Counted(f"c{i}") for i in range(3000)]
    Counted.compared = 0
    check_columns("t.csv", names)
    assert Counted.compared < 3 * len(names)
    with pytest.raises(UserError, match=r"t.csv has two columns 'c7'"):
        check_columns("t.csv", [*names, "c7"])
    with pytest.raises(UserError, match="a column without a name"):
        check_columns("t.csv", ["a", ""])


def test_a_row_of_many_numbers_is_read(tmp_path: Path) -> None:
    """Arrow alone refuses a row that takes more than two blocks of a megabyte."""
    pytest.importorskip("pyarrow")
    cells = [f"{i / 7:.300f}" for i in range(9_000)]
    lines = [",".join(f"c{i}" for i in range(len(cells))), *[",".join(cells)] * 2]
    (tmp_path / "wide.csv").write_text("\n".join(lines))
    assert len(lines[1]) > 2**21
    assert read_csv(str(tmp_path / "wide.csv"), "comma", "point").shape == (2, len(cells))
