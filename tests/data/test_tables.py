"""Tables of one's own: CSV and Parquet files and their columns, beside NumPy and pandas."""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.core.errors import UserError
from helpers_cli import Cli, assert_same_run

pytest.importorskip("pyarrow", reason="tables need the extra coterie[tables]")
SITES = ("north", "south", "west")


def patients(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    """Rows of unequal sites, with texts and numbers."""
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, rows)
    pressure = (110 + 0.4 * age + rng.normal(size=rows) * 6).round(2)
    return pd.DataFrame(
        {
            "site": rng.choice(SITES, rows, p=(0.6, 0.3, 0.1)),
            "age": age,
            "ward": rng.choice(["icu", "general"], rows),
            "pressure": pressure,
            "outcome": np.where(pressure + rng.normal(size=rows) * 6 > 132, "sick", "well"),
        }
    )


def saved(folder: Path, frame: pd.DataFrame, name: str = "p.csv") -> str:
    path = folder / name
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path, index=False)
    return f"{path.suffix[1:]}:{path}"


def refused(source: str, *said: str, **options: Any) -> None:
    with pytest.raises(UserError) as caught:
        ct.data.federate(source, **options)
    for part in said:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_columns_become_samples(tmp_path: Path, name: str) -> None:
    """The same numbers as pandas gives: one-hot, and standardized by the training rows."""
    frame = patients()
    frame["split"] = np.where(np.arange(len(frame)) % 3 == 0, "test", "train")
    fed = ct.data.federate(saved(tmp_path, frame, name) + ",target=outcome,client=site,test_column=split")
    train, test = (frame[frame.split == part] for part in ("train", "test"))
    assert fed.names == SITES
    assert (fed.classes, fed.columns.classes) == (2, ("sick", "well"))
    assert fed.columns.inputs == ("age", "ward=general", "ward=icu", "pressure")
    for stored, labels, part, rows in ((fed.x, fed.y, train, fed.train), (fed.test_x, fed.test_y, test, fed.test)):
        numbers = part[["age", "pressure"]]
        expected = (numbers - train[["age", "pressure"]].mean()) / train[["age", "pressure"]].std(ddof=0)
        hot = pd.get_dummies(part.ward).astype(float)
        columns = [expected.age, hot["general"], hot["icu"], expected.pressure]
        np.testing.assert_allclose(stored, np.stack(columns, 1), atol=1e-6)
        assert labels.tolist() == (part.outcome == "well").astype(int).tolist()
        for site, mine in zip(SITES, rows, strict=True):
            assert mine.tolist() == np.flatnonzero(part.site == site).tolist()
    assert ct.data.federate(**json.loads(json.dumps(fed.origin))).fingerprint() == fed.fingerprint()


def test_a_fraction_for_testing_keeps_the_proportions(tmp_path: Path) -> None:
    frame = patients(400)
    source = saved(tmp_path, frame) + ",target=outcome,client=site,test-fraction=0.2"
    fed = ct.data.federate(source)
    for client, site in enumerate(SITES):
        mine = frame[frame.site == site]
        tests = fed.test_y[fed.test[client]]
        assert len(tests) == round(0.2 * len(mine))
        assert abs(int((tests == 1).sum()) - 0.2 * int((mine.outcome == "well").sum())) < 1
        assert len(fed.train[client]) + len(tests) == len(mine)
    assert ct.data.federate(source, seed=1).fingerprint() != fed.fingerprint()
    quarter = ct.data.federate(source.replace("0.2", "0.25"))
    assert ct.data.federate(source.replace(",test-fraction=0.2", "")).fingerprint() == quarter.fingerprint()


def test_targets(tmp_path: Path) -> None:
    frame = patients()
    frame["relapse"], frame["grade"] = np.arange(len(frame)) % 2, np.arange(len(frame)) % 3 + 5
    source = saved(tmp_path, frame)
    one = ct.data.federate(f"{source},target=pressure,client=site")
    assert (one.classes, one.y.shape[1:], one.y.dtype) == (None, (1,), torch.float32)
    assert sorted(torch.cat([one.y, one.test_y])[:, 0].tolist()) == pytest.approx(sorted(frame.pressure))
    several = ct.data.federate(source, target=["pressure", "age"], client="site", standardize="all")
    assert several.y.shape[1:] == (2,)
    np.testing.assert_allclose(several.y.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(several.y.std(0, correction=0), 1, atol=1e-6)
    known = several.columns
    back = several.test_y.double().numpy() * known.target_scales[1].std + known.target_scales[1].mean
    assert set(back[:, 1].round(3)) <= set(frame.age)
    grades = ct.data.federate(f"{source},target=grade,client=site")
    assert (grades.classes, grades.columns.classes) == (3, ("5", "6", "7"))
    assert ct.data.federate(f"{source},target=grade,task=regression,client=site").classes is None
    assert ct.data.federate(f"{source},target=pressure,task=classification,client=site").classes > 50
    many = ct.data.federate(f"{source},target=relapse+grade,client=site,drop=outcome")
    assert (many.classes, many.y.shape[1:]) == (None, (2,))


def test_partitions_divide_what_no_column_does(tmp_path: Path) -> None:
    source = saved(tmp_path, patients())
    assert ct.data.federate(f"{source},target=outcome,drop=site", clients=4).origin["partition"] == "dirichlet:0.1"
    plain = ct.data.federate(f"{source},target=pressure,drop=site", clients=4)
    assert (plain.origin["partition"], plain.clients, plain.names) == ("iid", 4, ())
    refused(f"{source},target=pressure", "dirichlet:1 divides classes", "take iid", partition="dirichlet:1")
    refused(f"{source},target=outcome,client=site", "leave one of them out", partition="iid")


def test_a_file_for_testing(tmp_path: Path) -> None:
    train, test = patients(), patients(40, seed=1)
    test.loc[test.index[:3], "ward"] = "roof"
    source, other = saved(tmp_path, train), saved(tmp_path, test, "t.csv").removeprefix("csv:")
    fed = ct.data.federate(f"{source},target=outcome,client=site,test-file={other}")
    assert (len(fed.x), len(fed.test_x)) == (120, 40)
    assert fed.test_x[:3, 1:3].tolist() == [[0, 0]] * 3
    assert any("3 test rows hold roof in ward" in note for note in fed.columns.notes)
    refused(f"{source},target=outcome,test-file={other},test-fraction=0.5", "both say which rows", "keep one")
    saved(tmp_path, test.drop(columns="ward"), "t.csv")
    refused(f"{source},target=outcome,test-file={other}", "t.csv has no column 'ward'")
    saved(tmp_path, test.assign(age="old"), "t.csv")
    refused(f"{source},target=outcome,test-file={other}", "column age holds numbers", "make them alike")


def test_missing_values(tmp_path: Path) -> None:
    frame = patients()
    frame["age"] = frame.age.astype(float)
    frame.loc[[1, 5], "age"], frame.loc[7, "ward"] = np.nan, None
    frame["split"] = ["train"] * 100 + ["test"] * 20
    source = saved(tmp_path, frame) + ",target=outcome,drop=site,test-column=split"
    refused(source, "column age", "missing in 2 of 120 rows", "missing=mean", "drop=age")
    refused(source.replace("drop=site", "drop=site+age"), "column ward", "1 of 120")
    fed = ct.data.federate(f"{source},missing=mean", clients=2)
    assert fed.x[[1, 5], 0].tolist() == [0, 0]
    assert fed.x[7, 1:3].tolist() == [0, 0]
    np.testing.assert_allclose(fed.columns.scales[0].mean, frame.age[:100].mean())


def test_what_cannot_be_used(tmp_path: Path) -> None:
    frame = patients()
    frame["one"], frame["name"], frame["day"] = 1, [f"p{i}" for i in range(120)], "2020-01-02"
    frame["part"], frame["hole"] = "train", np.where(np.arange(120) < 4, np.nan, 1.0 * np.arange(120))
    frame["big"] = np.where(np.arange(120) == 3, np.inf, 1.0)
    source = saved(tmp_path, frame)
    rest = "drop=name+day+part+hole+big"
    refused(f"{source},target=outcom", "no column 'outcom' for target", "did you mean outcome?")
    refused(f"{source},target=outcome,client=ward_", "no column 'ward_'", "did you mean ward?")
    refused(source, "needs target")
    refused(f"{source},target=one,{rest}", "target one", "the same in all rows")
    refused(f"{source},target=ward,task=regression,{rest}", "holds texts, such as 'general'")
    refused(f"{source},target=outcome,client=outcome,{rest}", "two roles")
    refused(f"{source},target=hole,client=site", "column hole", "missing in 4 rows")
    refused(
        f"{source},target=outcome,drop=day+part+hole+big", "name", "90 different texts", "drop=name", partition="iid"
    )
    refused(f"{source},target=outcome,drop=name", "column day", "date", "drop=day")
    refused(f"{source},target=outcome,drop=name+day+part+hole", "big", "infinity")
    refused(f"{source},target=outcome,test-column=part", "holds train", "train or test")
    refused(f"{source},target=outcome,standardize=all,{rest}", "these are classes")
    refused("csv:none.csv,target=a", "none.csv cannot be read")
    refused(source.removeprefix("csv:"), "write csv:")
    refused(f"parquet:{source[4:]},target=a", "no Parquet file")
    frame.loc[frame.index[:5], "site"] = [*"abcde"]
    saved(tmp_path, frame)
    refused(f"{source},target=outcome,client=site,{rest}", "client a (and 4 others)", "no test rows")


def test_how_files_are_written(tmp_path: Path) -> None:
    frame = patients()
    frame.to_csv(tmp_path / "s.csv", index=False, sep=";", decimal=",")
    source = f"csv:{tmp_path / 's.csv'},target=pressure,client=site"
    refused(source.replace("pressure", "outcome"), "not divided by a comma", "delimiter=semicolon")
    fed = ct.data.federate(f"{source},delimiter=semicolon,decimal=comma")
    assert fed.fingerprint() == ct.data.federate(saved(tmp_path, frame) + ",target=pressure,client=site").fingerprint()
    frame.to_csv(tmp_path / "i.csv")
    refused(f"csv:{tmp_path / 'i.csv'},target=outcome", "without a name", "index=False")


def test_a_frame_is_the_file_that_pandas_writes(tmp_path: Path) -> None:
    frame = patients()
    frame["ward"] = frame.ward.astype("category")
    frame["left"] = (frame.age > 50).astype("boolean")
    given = {"target": "outcome", "client": "site"}
    fed = ct.data.from_frame(frame, **given)
    assert (fed.names, fed.origin) == (SITES, {})
    for made in (ct.data.from_csv, ct.data.from_parquet):
        path = saved(tmp_path, frame, f"f.{made.__name__[5:]}").partition(":")[2]
        assert made(path, **given).fingerprint() == fed.fingerprint()
        assert made(Path(path), **given, seed=3).fingerprint() != fed.fingerprint()
    tested = ct.data.from_frame(frame, **given, test=frame)
    assert (len(tested.x), len(tested.test_x)) == (120, 120)
    with pytest.raises(UserError, match="missing in 1 of 120 rows"):
        ct.data.from_frame(frame.assign(left=frame.left.where(frame.index != 3)), **given)
    for wrong, said in (
        ({"target": "outcom"}, "did you mean outcome"),
        ({"target": "outcome", "drops": "age"}, "no option 'drops'"),
        ({"target": "outcome", "test_fraction": 2.0}, "out of range"),
    ):
        with pytest.raises(UserError, match=said):
            ct.data.from_frame(frame, **wrong)
    with pytest.raises(UserError, match="column day of the frame holds a Timestamp"):
        ct.data.from_frame(frame.assign(day=pd.Timestamp("2020-01-01")), **given)
    with pytest.raises(UserError, match="the frame is a ndarray: give a DataFrame"):
        ct.data.from_frame(np.zeros((3, 2)), target="a")


def test_hugging_face_columns(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="it needs the extra coterie[huggingface]")
    frame = patients()
    labels = datasets.ClassLabel(names=["well", "sick"])  # their order is the data set's
    whole = datasets.Dataset.from_pandas(frame).cast_column("outcome", labels)
    whole.save_to_disk(tmp_path / "one")
    fed = ct.data.from_huggingface(tmp_path / "one", target="outcome", client="site")
    assert fed.columns.classes == ("well", "sick")
    plain = ct.data.from_frame(frame, target="outcome", client="site")
    assert fed.columns.inputs == plain.columns.inputs
    assert sorted(torch.cat([fed.y, fed.test_y])) == sorted(1 - torch.cat([plain.y, plain.test_y]))
    parts = datasets.DatasetDict(train=whole.select(range(100)), other=whole.select(range(100, 120)))
    parts.save_to_disk(tmp_path / "two")
    source = f"huggingface:{tmp_path / 'two'},target=outcome,client=site"
    assert len(ct.data.federate(f"{source},test-split=other").test_x) == 20
    quarter = ct.data.federate(source)  # of the rows of "train" alone
    assert len(quarter.x) + len(quarter.test_x) == 100
    refused(f"{source},test-split=tests", "no part 'tests'", "train, other")
    refused(f"huggingface:{tmp_path / 'one'},target=outcome,test-split=test", "one part only")
    refused(f"huggingface:{tmp_path / 'none'},target=outcome", "save_to_disk")


def test_hugging_face_images(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="it needs the extra coterie[huggingface]")
    image = pytest.importorskip("PIL.Image", reason="it needs the extra coterie[images]")
    pixels = np.random.default_rng(0).integers(256, size=(24, 6, 5, 3), dtype=np.uint8)
    rows = {"photo": [image.fromarray(p) for p in pixels], "kind": [*"ab"] * 12, "site": [*"xyz"] * 8, "id": range(24)}
    features = datasets.Features(photo=datasets.Image(), kind="string", site="string", id="int64")
    features = datasets.Features({k: datasets.Value(v) if isinstance(v, str) else v for k, v in features.items()})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "set")
    source = f"huggingface:{tmp_path / 'set'},target=kind,client=site"
    refused(source, "the columns id beside the images photo", "drop=id")
    refused(f"{source},drop=id,missing=mean", "not for images")
    fed = ct.data.federate(f"{source},drop=id")
    assert (fed.names, fed.input_shape, fed.x.dtype, fed.classes) == (("x", "y", "z"), (3, 6, 5), torch.uint8, 2)
    stored = {p.transpose(2, 0, 1).tobytes() for p in pixels}
    assert {x.numpy().tobytes() for x in torch.cat([fed.x, fed.test_x])} == stored
    assert fed.transform is not None
    np.testing.assert_allclose(fed.transform.mean, fed.x.double().mean((0, 2, 3)) / 255, atol=1e-4)


def test_a_run_and_its_files(tmp_path: Path, cli: Cli) -> None:
    """What a person types: the sites are the clients, what was done to the columns is said, and all of it is saved."""
    saved(tmp_path, patients())
    source = "csv:p.csv,target=outcome,client=site"
    words = ["--data", source, "--rounds", "1", "--model", "logreg", "--out", "run"]
    done, out = cli.succeed("run", "fedper", *words, cwd=tmp_path), tmp_path / "run"
    for said in ("outcome has 2 classes: sick, well", "ward: texts, encoded one-hot in 2 inputs", "standardized"):
        assert said in done.err
    config = json.loads((out / "config.json").read_text())
    assert (config["data"]["partition"], config["data"]["clients"]) == ("natural", 3)
    assert config["columns"]["features"] == {"age": None, "ward": ["general", "icu"], "pressure": None}
    assert len(config["columns"]["mean"]) == len(config["columns"]["std"]) == 4
    assert json.loads((out / "clients.json").read_text())["names"] == list(SITES)
    assert ct.load(out).client_summary["names"] == list(SITES)
    again = cli.succeed("run", "run", "--out", "again", cwd=tmp_path)
    assert "not what this configuration" not in again.err
    assert_same_run(out, tmp_path / "again")
    words[1] = source.replace("outcome", "result")
    cli.refuse("run", "fedper", *words[:-1], "no", cwd=tmp_path, names=("no column 'result' for target",))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["big.csv", "big.parquet"])
def test_a_million_rows(tmp_path: Path, name: str) -> None:
    """30 columns in less than five seconds; afterward the samples are in memory once."""
    rng, rows = np.random.default_rng(0), 1_000_000
    frame = pd.DataFrame(rng.normal(size=(rows, 28)).round(4), columns=[f"f{i}" for i in range(28)])
    frame["site"], frame["label"] = rng.integers(50, size=rows), rng.integers(5, size=rows)
    source = saved(tmp_path, frame, name) + ",target=label,client=site"
    del frame

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    before, began = resident(), time.perf_counter()
    fed = ct.data.federate(source)
    seconds, after = time.perf_counter() - began, resident()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name}: {seconds:.1f} s, {before:.0f} to {after:.0f} MiB, peak {peak:.0f}", file=sys.stderr)
    assert seconds < 5
    assert after - before < 2.5 * (fed.x.nbytes + fed.test_x.nbytes) / 2**20  # row numbers and labels included
