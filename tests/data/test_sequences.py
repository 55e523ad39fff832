"""Columns of lists in files and frames: the same samples as tensors give, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.data import Federation
from coterie.data.custom import new_samples
from helpers_cli import Cli

pa = pytest.importorskip("pyarrow", reason="tables need the extra coterie[tables]")
pq = pytest.importorskip("pyarrow.parquet", reason="tables need the extra coterie[tables]")
ROWS, LENGTH = 24, 5
INPUTS = ("input_ids", "attention_mask")
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 12, (ROWS, LENGTH))
MASK = (np.arange(LENGTH) < RNG.integers(1, LENGTH + 1, (ROWS, 1))).astype(np.int8)  # as tokenizers write it
LABEL, SITE, TEST = np.arange(ROWS) // 2 % 2, np.arange(ROWS) // 12, np.arange(ROWS) % 4 == 0
COLUMNS: dict[str, Any] = {
    "input_ids": IDS.tolist(),
    "attention_mask": pa.array(MASK.tolist(), pa.list_(pa.int8())),
    "label": LABEL.tolist(),
    "site": [f"site{i}" for i in SITE],
    "split": np.where(TEST, "test", "train").tolist(),
}
ROLES = {"target": "label", "client": "site", "test_column": "split"}


def parquet(folder: Path, columns: dict[str, Any], **options: Any) -> Federation:
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=7)
    return ct.data.from_parquet(folder / "t.parquet", **{**ROLES, **options})


def frame(folder: Path, columns: dict[str, Any]) -> Federation:
    rows = pd.DataFrame({k: pa.array(v).to_pylist() for k, v in columns.items()})
    return ct.data.from_frame(rows, **ROLES)


def arrays_in_frame(folder: Path, columns: dict[str, Any]) -> Federation:
    return ct.data.from_frame(pa.table(columns).to_pandas(), **ROLES)


def fixed_lengths(folder: Path, columns: dict[str, Any]) -> Federation:
    fixed = {k: pa.array(pa.array(columns[k]).to_pylist(), pa.list_(pa.int64(), LENGTH)) for k in INPUTS}
    whole = pa.table({**columns, **fixed})
    pq.write_table(pa.concat_tables([whole[20:], whole])[4:], folder / "t.parquet")
    return ct.data.from_parquet(folder / "t.parquet", **ROLES)


def huggingface(folder: Path, columns: dict[str, Any]) -> Federation:
    """Its own parts for testing, and rows in an order of its own."""
    datasets = pytest.importorskip("datasets", reason="it needs the extra coterie[huggingface]")
    whole = datasets.Dataset(pa.table(columns)).remove_columns("split")
    parts = {"train": whole.select(np.flatnonzero(~TEST)), "test": whole.select(np.flatnonzero(TEST))}
    datasets.DatasetDict(parts).save_to_disk(folder / "set")
    return ct.data.from_huggingface(folder / "set", target="label", client="site")


def tensors(*columns: np.ndarray[Any, Any]) -> Federation:
    """The same samples as from_tensors takes them."""

    def pair(site: int, test: bool) -> Any:
        chosen = (site == SITE) & (test == TEST)
        x = {k: torch.tensor(v[chosen]) for k, v in zip(INPUTS, columns, strict=False)}
        return x if len(x) > 1 else x[INPUTS[0]], torch.tensor(LABEL[chosen])

    sides = ([pair(site, test) for site in range(2)] for test in (False, True))
    return ct.data.from_tensors(*sides, classes=2, names=["site0", "site1"])


class Model(nn.Module):
    """The mean of what the mask shows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        seen = attention_mask[..., None]
        return self.head((self.embed(input_ids) * seen).sum(1) / seen.sum(1))


def fit(fed: Federation, out: Path) -> ct.Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Model()
    alg = ct.algorithms.fedper(personal="head", epochs=1, batch_size=4, participation=1.0)
    return ct.fit(model, fed, alg, rounds=1, progress=False, out=out)


@pytest.mark.parametrize("read", [parquet, frame, arrays_in_frame, fixed_lengths, huggingface])
def test_they_are_the_samples_of_tensors(read: Callable[..., Federation], tmp_path: Path) -> None:
    fed, expected = read(tmp_path, COLUMNS), tensors(IDS, MASK.astype(np.int64))
    assert fed.fingerprint() == expected.fingerprint()  # of types, names, values and division
    assert list(fed.x) == list(INPUTS)
    assert torch.equal(fed.x["input_ids"], torch.tensor(IDS[~TEST]))
    assert (fed.names, fed.classes, fed.transform) == (("site0", "site1"), 2, None)


def test_a_model_is_trained_and_asked(tmp_path: Path) -> None:
    """With the values that the same tensors give."""
    found = fit(parquet(tmp_path, COLUMNS), tmp_path / "run")
    expected = fit(tensors(IDS, MASK.astype(np.int64)), tmp_path / "expected")
    new = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor(MASK).long()}
    for one, other in zip(ct.load(tmp_path / "run", model=Model()).clients, expected.clients, strict=True):
        one_scores, scores = (c.module()(**new) for c in (one, other))
        assert torch.equal(one_scores, scores)
    assert found.clients[0].predict(new).shape == (ROWS,)
    assert found.config["sample_shape"] == {"input_ids": [LENGTH], "attention_mask": [LENGTH]}


@pytest.mark.parametrize(
    ("values", "expected"),
    [(IDS, torch.int64), (IDS / 7, torch.float32), (np.float32(IDS), torch.float32), (IDS > 4, torch.bool)],
)
def test_one_column_is_one_tensor(values: Any, expected: torch.dtype, tmp_path: Path) -> None:
    """It is not standardized."""
    fed = parquet(tmp_path, {**COLUMNS, "input_ids": list(values)}, drop="attention_mask")
    assert fed.x.dtype == expected
    assert torch.equal(fed.x, torch.tensor(values[~TEST]).to(expected))
    assert torch.equal(fed.test_x, torch.tensor(values[TEST]).to(expected))


def changed(row: int, value: Any) -> dict[str, Any]:
    """The columns with another list of tokens in one row."""
    return {**COLUMNS, "input_ids": [*COLUMNS["input_ids"][:row], value, *COLUMNS["input_ids"][row + 1 :]]}


NAMES = "input_ids, attention_mask"
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "unequal lengths": (changed(9, [1, 2]), {}, r"input_ids in row 9 of \S+ has 2 numbers, and row 0 has 5: pad the"),
    "a missing list": (changed(3, None), {}, r"input_ids in row 3 of \S+ is missing: fill it, or remove the row"),
    "a missing number": (changed(8, [1, None, 3, 4, 5]), {}, r"input_ids in row 8 of \S+ has a missing value: fill it"),
    "infinity": ({**COLUMNS, "input_ids": list(IDS * np.inf)}, {}, "input_ids of samples .* contain NaN or infinity"),
    "beyond float32": ({**COLUMNS, "input_ids": list(IDS * 1e300)}, {}, "input_ids of .* beyond 3.4e38: scale it"),
    "beyond int64": ({**COLUMNS, "input_ids": list(IDS.astype(np.uint64) << 60)}, {}, "integers beyond int64"),
    "another feature": (
        {**COLUMNS, "age": list(range(ROWS))},
        {},
        f"the columns age beside the sequences {NAMES}, and .* leave them out with drop=age$",
    ),
    "lists of texts": (
        {**COLUMNS, "input_ids": [["a"]] * ROWS},
        {"drop": "attention_mask"},
        "holds list.*string>, neither numbers nor .* drop=",
    ),
    "a target": (COLUMNS, {"target": "input_ids"}, "input_ids of .* holds sequences, which are features: name"),
    "missing": (COLUMNS, {"missing": "mean"}, "for columns of numbers, not for sequences: leave them out"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_sentence(case: str, tmp_path: Path) -> None:
    columns, options, sentence = BAD[case]
    with pytest.raises(ct.UserError, match=sentence) as refused:
        parquet(tmp_path, columns, **options)
    assert "\n" not in str(refused.value)


def test_a_test_file_of_another_length(tmp_path: Path) -> None:
    whole = pa.table(COLUMNS).drop_columns(["split"])
    pq.write_table(whole, tmp_path / "t.parquet")
    pq.write_table(whole.set_column(0, "input_ids", pa.array(IDS[:, :3].tolist())), tmp_path / "u.parquet")
    with pytest.raises(ct.UserError, match=r"sequences of 5 .* and sequences of 3 .*alike, as padding does"):
        ct.data.federate(f"parquet:{tmp_path}/t.parquet,test-file={tmp_path}/u.parquet,target=label,client=site")


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 4), nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask):
        seen = attention_mask[..., None].to(self.head.weight.dtype)
        return self.head((self.embed(input_ids) * seen).sum(1))

def net():
    return Net()
"""


def test_new_sequences_are_arrays_by_name(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run and an exported file answer them as Python does."""
    (tmp_path / "net.py").write_text(NET)
    pq.write_table(pa.table(COLUMNS), tmp_path / "t.parquet")
    data, trust = "parquet:t.parquet,target=label,client=site,test-column=split", ("--trust", "net.py:net")
    typed = ("local", "--data", data, "--model", "net.py:net", "--rounds", "1", "--set", "lr=0.5", "--quiet")
    cli.succeed("run", *typed, "--out", "run", cwd=tmp_path)
    cli.succeed("export", "run", "--client", "site1", "--out", "a.safetensors", *trust, cwd=tmp_path)
    np.savez(tmp_path / "new.npz", attention_mask=MASK, input_ids=IDS)
    asked = ("--data", "new.npz", *trust, "--out")
    cli.succeed("predict", "run", "--client", "site1", *asked, "of-run.npz", cwd=tmp_path)
    cli.succeed("predict", "a.safetensors", *asked, "of-file.npz", cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    own = ct.export.predictor("run", "site1", trust=["net.py:net"])
    expected = own.scored({"input_ids": IDS, "attention_mask": MASK})
    for name in ("of-run.npz", "of-file.npz"):
        with np.load(tmp_path / name) as found:
            assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in expected.items()}
    wanted = ("learned from several arrays", "name an .npz file with input_ids, attention_mask")
    refused = ("predict", "run", "--client", "site1", *trust, "--out", "b.parquet", "--data", "t.parquet")
    cli.refuse(*refused, cwd=tmp_path, names=wanted)


def test_arrays_that_are_no_samples_of_several_inputs(tmp_path: Path) -> None:
    shape = {"input_ids": (LENGTH,), "attention_mask": (LENGTH,)}
    np.savez(tmp_path / "ordered.npz", IDS, MASK)
    first, second = new_samples(str(tmp_path / "ordered.npz"), ((LENGTH,), (LENGTH,)))
    assert (first.tolist(), second.tolist()) == (IDS.tolist(), MASK.tolist())
    with pytest.raises(ct.UserError, match=r"has no input_ids: .*\(FILE, input_ids=..., attention_mask=...\)"):
        new_samples(str(tmp_path / "ordered.npz"), shape)
    np.savez(tmp_path / "named.npz", input_ids=IDS, attention_mask=MASK[1:])
    with pytest.raises(ct.UserError, match=r"unequal numbers of rows \(input_ids 24, attention_mask 23\)"):
        new_samples(str(tmp_path / "named.npz"), shape)
    with pytest.raises(ct.UserError, match=r"has no arr_0: .* numpy.savez\(FILE, first, second\)"):
        new_samples(str(tmp_path / "named.npz"), ((LENGTH,), (LENGTH,)))


@pytest.mark.parametrize("values", [[["a"]] * ROWS, [[1, 2], 3] * 12, [[[1], [2]]] * ROWS])
def test_lists_of_other_values_in_a_frame(values: list[Any]) -> None:
    rows = pd.DataFrame({"x": values, "label": LABEL})
    with pytest.raises(ct.UserError, match="column x of the frame holds lists of other values than numbers: make them"):
        ct.data.from_frame(rows, target="label")
