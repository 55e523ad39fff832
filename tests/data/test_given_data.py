"""Kinds of data that people have in Python: each trains, or is refused by part and client, and nothing is written."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import coterie as ct

X, Y = torch.linspace(-1, 1, 36).reshape(12, 3), torch.arange(12) % 2
A, L = X.numpy(), Y.numpy()
NUMBERS = (X, Y)
TRAINS = None


def read_only() -> np.ndarray[Any, Any]:
    array = A.copy()
    array.flags.writeable = False
    return array


def mapped(mode: Any) -> Callable[[Path], Any]:
    """Return an array in a file."""

    def made(folder: Path) -> Any:
        np.save(folder / "x.npy", A)
        return np.load(folder / "x.npy", mmap_mode=mode), L

    return made


class Items(Dataset[Any]):
    """Items as somebody's own Dataset gives them."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]


class Stream(IterableDataset[Any]):
    """One that does not know how many items it has."""

    def __iter__(self) -> Any:
        return iter([(X[0], 0)])


# The data of the second of two clients, or a function that makes them; None: it trains, else what the refusal says.
KINDS: dict[str, tuple[Any, str | None]] = {
    "NumPy": ((A, L), TRAINS),
    "big-endian": ((A.astype(">f4"), L.astype(">i8")), TRAINS),
    "unsigned labels": ((A, L.astype("u2")), TRAINS),
    "unsigned labels of torch": ((X, Y.to(torch.uint32)), TRAINS),
    "bool labels": ((X, Y > 0), TRAINS),
    "one class": ((X, Y * 0), TRAINS),
    "read-only": ((read_only(), L), TRAINS),
    "negative strides": ((A[::-1, ::-1], L[::-1]), TRAINS),
    "expanded": ((X[:1].expand(12, 3), Y), TRAINS),
    "a file that is mapped": (mapped("r"), TRAINS),
    "a file that may be written": (mapped("r+"), TRAINS),
    "lists": ((X.tolist(), Y.tolist()), TRAINS),
    "lists of tensors": ((list(X), list(Y)), TRAINS),
    "with gradients": ((X.clone().requires_grad_(), Y), TRAINS),
    "a parameter": ((nn.Parameter(X), Y), TRAINS),
    "pandas": ((pd.DataFrame(A), pd.Series(L)), TRAINS),
    "a list and no tuple": ([X, Y], TRAINS),
    "no sample": ((X[:0], Y[:0]), TRAINS),
    "complex": ((X.to(torch.complex64), Y), "the train samples of client 1 are complex64, dense, on cpu: give"),
    "complex of NumPy": ((A.astype("c8"), L), "the train samples of client 1 are complex64, dense, on cpu: give"),
    "labels of 2**40": ((X, Y * 2**40), "the largest label is 1099511627776: number the classes from 0"),
    "labels beyond int64": ((A, L.astype("u8") + np.uint64(2**64 - 2)), "targets of client 1 hold the label 1844"),
    "huge integers": ((X, [10**30] * 12), "the train targets of client 1 are no rows of numbers"),
    "negative labels": ((X, Y - 1), r"train labels run from -1 to 1 \(client 1\)"),
    "meta": ((X.to("meta"), Y), "the train samples of client 1 are float32, dense, on meta: give"),
    "labels of meta": ((X, Y.to("meta")), "the train targets of client 1 are int64, dense, on meta: give"),
    "objects": ((A.astype(object), L), "the train samples of client 1 are an array of object: give numbers"),
    "texts": ((A.astype(str), L), "the train samples of client 1 are an array of <U32: give numbers"),
    "labels of texts": ((A, L.astype("S1")), r"the train targets of client 1 are an array of \|S1: give numbers"),
    "dates": ((A.astype("M8[s]"), L), r"the train samples of client 1 are an array of datetime64\[s\]: give numbers"),
    "records": ((np.zeros(12, [("a", "f4")]), L), "the train samples of client 1 are an array of .*give numbers"),
    "sparse": ((X.to_sparse(), Y), "samples of client 1 .* sparse_coo, on cpu: give a dense tensor"),
    "quantized": (lambda _: (torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), Y), "client 1 are quint8, .*: give"),
    "nested": (
        lambda _: (torch.nested.nested_tensor([X[0], X[1, :2]]), Y[:2]),
        "client 1 are float32, nested, on cpu: give a dense",
    ),
    "uint16": ((A.astype("u2"), L), "samples of client 1 are uint16, dense, on cpu: give .* such as float32 or int64"),
    "float8": ((X.to(torch.float8_e4m3fn), Y), "the train samples of client 1 are float8_e4m3fn"),
    "long doubles": ((A.astype("g"), L), "the train samples of client 1 are an array of float128: give numbers"),
    "masked": ((np.ma.masked_greater(A, 0.5), L), r"the train samples of client 1 have masked values: .*\.filled\(\)"),
    "NaN": ((torch.where(X > 0.9, torch.nan, X), Y), r"the train samples \(client 1\) contain NaN or infinity"),
    "infinity": ((torch.where(X > 0.9, torch.inf, X), Y), r"the train samples \(client 1\) contain NaN or infinity"),
    "no dimension": ((X[0, 0], Y[0]), "train of client 1 needs as many samples as targets"),
    "fewer labels": ((X, Y[:5]), r"train of client 1 needs .* not shapes \(12, 3\) and \(5,\)"),
    "rows of unequal length": (([[1.0, 2.0, 3.0], [1.0]], [0, 1]), "samples of client 1 are no rows of numbers"),
    "other features": ((X[:, :2], Y), r"client 1 are float32 of shape \(2,\) but those of client 0"),
    "half precision": ((X.half(), Y), "client 1 are float16 .* but those of client 0 are float32"),
    "floating labels": ((X, Y.float()), "targets of client 1 are float32 .* but those of client 0 are int64"),
    "a mixed frame": (
        (pd.DataFrame({"a": ["x"] * 12, "b": L}), L),
        "samples of client 1 are an array of object: give numbers",
    ),
    "a Dataset": (TensorDataset(X, Y), TRAINS),
    "a Dataset of items": (Items([(x.numpy(), int(y)) for x, y in zip(X, Y, strict=True)]), TRAINS),
    "a part of a Dataset": (Subset(TensorDataset(X, Y), [2, 0, 1]), TRAINS),
    "items that are no pairs": (Items([X[0], X[1]]), "item 0 of train of client 1 is a Tensor: .*pairs"),
    "items of three": (TensorDataset(X, Y, Y), "item 0 of train of client 1 is a tuple: .*pairs"),
    "items of texts": (Items([("a", 0)]), "sample 0 of train of client 1 are a str: give a tensor or an array"),
    "a Dataset of nothing": (Items([]), "train of client 1 is a Dataset of no items"),
    "a stream": (Stream(), "train of client 1 is a Stream without a length"),
    "a generator": (
        (part for part in NUMBERS),
        r"train of client 1 must be a pair \(samples, targets\) or .*, not a gen",
    ),
    "a dictionary": ({"x": X, "y": Y}, r"train of client 1 must be a pair \(samples, targets\) or .*, not a dict"),
    "three parts": ((X, Y, Y), "train of client 1 must be a pair"),
    "nothing": ((None, None), "the train samples of client 1 are a NoneType: give a tensor or an array"),
    "a set": (({1, 2}, {0, 1}), "the train samples of client 1 are a set: give a tensor or an array"),
}
# The data of both clients: alike, and yet not for a model of single precision with two outputs and cross-entropy.
ALIKE: dict[str, tuple[Any, str | None]] = {
    "one-hot targets": ((X, nn.functional.one_hot(Y, 2).float()), TRAINS),
    "half precision": ((X.half(), Y), r"the model has float32 weights and the samples are float16: .*x\.to\(torch\.fl"),
    "bfloat16": ((X.bfloat16(), Y), "the model has float32 weights and the samples are bfloat16"),
    "double precision": ((X.double(), Y), "the model has float32 weights and the samples are float64"),
    "integers": (((9 * X).long(), Y), "the model has float32 weights and the samples are int64"),
    "bool": ((X > 0, Y), "the model has float32 weights and the samples are bool"),
    "bytes": (((9 * X).byte(), Y), r"the samples are uint8: say how to normalize them"),
    "floating labels": (
        (X, Y.float()),
        r"targets are float32 of shape \(\), and cross-entropy takes .*mse for numbers",
    ),
    "labels in a column": ((X, Y[:, None]), r"targets are int64 of shape \(1,\), and cross-entropy takes one"),
    "NaN as targets": ((X, torch.full((12,), torch.nan)), r"the train targets \(client 0\) contain NaN"),
    "no features": ((X[:, :0], Y), r"the model fails .* the data have \(0,\): build it for these data"),
    "more classes": ((X, torch.arange(12) % 3), "the model has 2 outputs, the data have 3 classes"),
}


def train_or_refuse(make: Callable[[], Any], told: str | None, engine: str, folder: Path) -> None:
    """Train a round, or see that the refusal says this and leaves nothing behind."""

    def run() -> ct.Run:
        fed = make()
        alg = ct.algorithms.fedavg(epochs=1, batch_size=4, participation=1.0)
        return ct.fit(lambda: nn.Linear(3, 2), fed, alg, rounds=1, engine=engine, out=folder / engine, progress=False)

    if told is TRAINS:
        assert run().history[0]["train_loss"] > 0
        return
    with pytest.raises(ct.UserError, match=told) as refused:
        run()
    assert "\n" not in str(refused.value)
    assert not (folder / engine).exists()


@pytest.mark.parametrize("kind", KINDS)
def test_data_of_one_client(kind: str, tmp_path: Path) -> None:
    given, told = KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of nested and quantized tensors
        second = given(tmp_path) if callable(given) and not isinstance(given, TensorDataset) else given
        for engine in ("auto", "serial"):
            train_or_refuse(lambda: ct.data.from_tensors([NUMBERS, second], [NUMBERS] * 2), told, engine, tmp_path)


def test_items_of_unequal_shapes_end_in_the_words_of_torch() -> None:
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as raised:
        ct.data.from_tensors([Items([(X[0], 0), (X[1, :2], 0)])], [NUMBERS])
    assert raised.value.__notes__ == ["It happened with the items of train of client 0."]


@pytest.mark.parametrize("kind", ALIKE)
def test_data_of_all_clients(kind: str, tmp_path: Path) -> None:
    pair, told = ALIKE[kind]
    for engine in ("auto", "serial"):
        train_or_refuse(lambda: ct.data.from_tensors([pair] * 2, [pair] * 2), told, engine, tmp_path)


@pytest.mark.parametrize("given", [(p for p in (NUMBERS, NUMBERS)), {0: NUMBERS}, "xy", None, TensorDataset(X, Y), []])
def test_the_data_of_all_clients_are_a_list(given: Any) -> None:
    with pytest.raises(ct.UserError, match=r"^train is .*: give .*pairs? \(samples, targets\)"):
        ct.data.from_tensors(given, [NUMBERS])


@pytest.mark.parametrize("kind", ["complex", "sparse", "meta", "uint16", "float8"])
def test_a_federation_is_made_of_the_same_kinds(kind: str) -> None:
    given = X.to(torch.uint16) if kind == "uint16" else KINDS[kind][0][0]
    for name in ("x", "test_x", "y", "test_y"):
        parts = {"x": X, "y": Y, "test_x": X, "test_y": Y, name: given}
        rows = (torch.arange(12),)
        with pytest.raises(ct.UserError, match=f"the {'test' if 'test' in name else 'train'} .* are "):
            ct.data.Federation(**parts, train=rows, test=rows, classes=2)


def test_values_are_kept_as_they_are() -> None:
    fed = ct.data.from_tensors([(A.astype(">f8")[::-1], L.astype(">u4"))], [(A.astype("f8"), L.astype("i1"))])
    assert torch.equal(fed.x, X.flip(0).double())
    assert torch.equal(fed.test_x, X.double())
    assert torch.equal(fed.y, Y)
    assert torch.equal(fed.test_y, Y)


def test_many_classes_are_refused_by_their_memory() -> None:
    with pytest.raises(ct.UserError, match=r"counting 1000000000 classes would take .* of memory.*number the classes"):
        ct.data.from_tensors([NUMBERS] * 2_000, [NUMBERS] * 2_000, classes=10**9)


def test_clients_without_test_samples_are_no_mistake(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(3), 4)
    np.savez(tmp_path / "rare.npz", x=A, y=labels, test_x=A[:2], test_y=labels[:2])
    fed = ct.data.federate(f"npz:{tmp_path / 'rare.npz'}", clients=3, partition="pathological:1")
    assert sorted(map(len, fed.test))[:2] == [0, 0]
    run = ct.fit(
        lambda: nn.Linear(3, 3), fed, ct.algorithms.local(steps=1), rounds=1, out=tmp_path / "a", progress=False
    )
    assert run.config["fingerprints"]["data"] == fed.fingerprint()
    assert ct.load(tmp_path / "a", model=nn.Linear(3, 3)).summary == run.summary


class TestColumnsOfDataFrames:
    """Columns mean what their names say, wherever they stand."""

    AGES = pd.DataFrame({"age": [1.0, 2.0, 3.0], "dose": [7.0, 8.0, 9.0]})
    OTHERS = AGES[["dose", "age"]]
    LABELS = pd.Series([0, 1, 0])

    def test_they_are_brought_into_one_order(self) -> None:
        sites = [(self.AGES, self.LABELS), (self.OTHERS, self.LABELS)]
        fed = ct.data.from_tensors(sites, sites[::-1])
        expected = torch.tensor(self.AGES.to_numpy()).repeat(2, 1)
        assert fed.x.equal(expected)
        assert fed.test_x.equal(expected)
        numbers = [(self.AGES, self.AGES), (self.AGES, self.OTHERS)]
        assert ct.data.from_tensors(numbers, numbers).y.equal(expected)

    @pytest.mark.parametrize(
        "strange", [AGES.rename(columns={"dose": "weight"}), AGES[["age"]], AGES[["age", "dose", "dose"]]]
    )
    def test_other_names_are_refused(self, strange: pd.DataFrame) -> None:
        mine, theirs = (self.AGES, self.LABELS), (strange, self.LABELS)
        said = (
            "the samples of {} of client 1 have the columns {}, and those of train of client 0 have age, dose: give all"
        )
        for kind, given in {"train": ([mine, theirs], [mine] * 2), "test": ([mine] * 2, [mine, theirs])}.items():
            with pytest.raises(ct.UserError, match=said.format(kind, ", ".join(strange.columns))):
                ct.data.from_tensors(*given)
