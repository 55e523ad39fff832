"""New rows answered by a trained model: as in training to the bit, from files, frames and lists."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.core.errors import UserError
from coterie.core.spec import parse
from coterie.data import Federation
from coterie.data.encoding import Columns
from coterie.data.new_samples import DictRows, FrameRows, encoded_rows, new_file
from coterie.data.sources import one_client
from coterie.export.formats import silence
from coterie.models.model import Model, cross_entropy
from coterie.net.setup.shared_columns import columns_of, merged
from helpers_cli import Cli
from local_peers import participants, run_together

pytest.importorskip("pyarrow", reason="tables need the extra coterie[tables]")
OPTIONS = "target=outcome,client=site,drop=id+dose+day,test_column=split,missing=mean"
METHOD = ct.algorithms.fedper(participation=1.0, lr=0.1, epochs=1, batch_size=8)


@cache
def patients() -> pd.DataFrame:
    """Rows of two sites with missing values, and a ward that only test rows have."""
    draw, rows = np.random.default_rng(0), 90
    age, bmi = draw.integers(20, 90, rows).astype(float), draw.normal(25, 4, rows).round(1)
    frame = pd.DataFrame(
        {
            "id": [f"{i:03d}" for i in range(rows)],
            "site": draw.choice(["bern", "oslo"], rows),
            "age": np.where(np.arange(rows) % 7 == 3, np.nan, age),
            "ward": draw.choice(np.array(["icu", "day", "er", None], object), rows),
            "bmi": np.where(np.arange(rows) % 5 == 1, np.nan, bmi),
            "day": [f"2026-01-{1 + i % 28:02d}" for i in range(rows)],
            "dose": (age * 3 + bmi).round(2),
            "outcome": np.where(age + draw.normal(size=rows) * 9 > 55, "sick", "well"),
            "split": np.where(np.arange(rows) % 3 == 0, "test", "train"),
        }
    )
    frame.loc[[0, 6], "ward"] = "isolation"
    return frame


class Trained:
    """A run on the table, its folder, and the table's file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.table = folder, folder / "p.csv"
        patients().to_csv(self.table, index=False)
        self.fed: Federation = ct.data.federate(f"csv:{self.table},{OPTIONS}")
        net = ct.models.build("mlp:width=8", self.fed)
        self.run = ct.fit(net, self.fed, METHOD, rounds=2, out=folder / "run", progress=False)
        self.known = Columns.of(self.run.config["columns"])


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    with TemporaryDirectory() as folder:
        yield Trained(Path(folder))


def saved(frame: pd.DataFrame, path: Path) -> str:
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path, index=False)
    return str(path)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as a program has them that knows no pandas."""
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]


class TestAsInTraining:
    @pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "list"])
    def test_all_rows_are_encoded_to_the_bit(self, kind: str, trained: Trained, tmp_path: Path) -> None:
        """Where a text is new, which only test rows hold, its inputs are 0, as they were, and a sentence says so."""
        frame, said = patients(), []
        rows: Any = FrameRows(frame) if kind == "frame" else DictRows(records(frame))
        if kind in ("csv", "parquet"):
            rows = new_file(saved(frame, tmp_path / f"n.{kind}"), trained.known, {}).samples
        x = torch.from_numpy(encoded_rows(rows, trained.known, said.append))
        test = torch.tensor((frame.split == "test").tolist())
        assert x[~test].equal(trained.fed.x)
        assert x[test].equal(trained.fed.test_x)
        first = 0 if kind in ("frame", "list") else 1
        assert len(said) == 1
        assert said[0].startswith(f"row {first} of ")
        assert "holds 'isolation' in ward (and 1 more)" in said[0]

    def test_what_was_measured_is_predicted(self, trained: Trained, tmp_path: Path) -> None:
        """A client's test rows, from the file: the tensors' own bits, and the accuracy that training reported."""
        frame, fed = patients(), trained.fed
        for i, (name, mine) in enumerate(zip(fed.names, trained.run.clients, strict=True)):
            rows = frame[(frame.site == name) & (frame.split == "test")]
            path = saved(rows.drop(columns=["outcome", "split"]), tmp_path / "new.csv")
            found = ct.export.predictor(trained.folder / "run", name)
            with pytest.warns(UserWarning, match="which no training row did"):
                answers = found.scored(new_file(path, trained.known, {}).samples)
            with torch.no_grad():
                outputs = mine.module()(fed.test_x[fed.test[i]])
            scores = np.stack([answers["probability_sick"], answers["probability_well"]], 1)
            assert torch.from_numpy(scores).equal(outputs.softmax(1))
            assert answers["prediction"].tolist() == [("sick", "well")[k] for k in outputs.argmax(1)]
            right = float((answers["prediction"] == rows.outcome.to_numpy()).mean())
            assert right == trained.run.client_summary["accuracy"]["after_mix"][i]

    def test_what_is_filled_is_saved(self, tmp_path: Path) -> None:
        """Also where nothing is standardized; beside pandas."""
        frame = patients().assign(age=lambda t: t.age + 1000)
        fed = ct.data.from_frame(
            frame, target="outcome", drop="id+site+dose+day", test_column="split", missing="mean", standardize="none"
        )
        known = Columns.of(json.loads(json.dumps(fed.columns.saved())))  # type: ignore[union-attr]
        found = encoded_rows(FrameRows(frame.iloc[[3, 1]]), known, str)
        mean = frame[frame.split == "train"][["age", "bmi"]].mean()
        expected = frame[["age", "bmi"]].fillna(mean).iloc[[3, 1]].astype(np.float32)
        assert (found[:, [0, 4]] == expected.to_numpy()).all()
        assert found[:, 1:4].tolist() == [
            [float(ward == frame.ward[i]) for ward in ("day", "er", "icu")] for i in (3, 1)
        ]

    def test_members_fill_with_the_mean_of_all(self, tmp_path: Path) -> None:
        """Also where nothing is standardized, so that no mean is saved as one of a scale."""
        told = []
        for name, ages in (("a", [20, 40, None, 60]), ("b", [80] * 12)):
            frame = pd.DataFrame({"age": ages, "ill": [0, 1] * (len(ages) // 2), "split": "train"})
            saved(frame, tmp_path / f"{name}.csv")
            with open(tmp_path / f"{name}.csv", "a") as file:
                file.write("50.0,0,test\n")
            told.append(f"csv:{tmp_path / name}.csv,target=ill,test_column=split,standardize=none,missing=mean")
        shared = merged([columns_of(text, 0) for text in told])
        assert (shared["mean"], shared["std"], shared["fill"]) == ([0], [1], [(4 * 40 + 12 * 80) / 16])
        own = one_client(parse(told[0]), 0, Columns.of(shared))
        assert own.x[:, 0].tolist() == [20, 40, 70, 60]
        assert own.columns is not None
        assert own.columns.saved()["fill"] == [70]

    def test_a_members_folder(self, trained: Trained, tmp_path: Path) -> None:
        method = ct.algorithms.dfedalt(topology="full", lr=0.1, epochs=1)
        net = partial(Model, ct.models.build("mlp:width=8", trained.fed), cross_entropy)
        run_together(participants(net, trained.fed, method, 1, tmp_path))
        frame = patients().drop(index=[0, 6])
        own = ct.load(tmp_path / "site-1").clients[0].module()
        with torch.no_grad():
            outputs = own(torch.from_numpy(encoded_rows(FrameRows(frame), trained.known, str)))
        found = ct.export.predictor(tmp_path / "site-1").scored(frame)
        assert found["probability_well"].tolist() == outputs.softmax(1)[:, 1].tolist()

    def test_numbers_come_in_the_targets_own_unit(self) -> None:
        frame = patients()[["site", "age", "bmi", "dose"]].dropna().assign(pulse=lambda t: 200 - t.age)
        fed = ct.data.from_frame(frame, target="dose+pulse", client="site", standardize="all")
        net = ct.models.build("logreg", fed)
        run = ct.fit(net, fed, ct.algorithms.fedavg(lr=0.1, epochs=3), rounds=3, loss="mse", progress=False)
        answers = run.clients[0].scored(records(frame))
        assert list(answers) == ["prediction_dose", "prediction_pulse"]
        assert abs(answers["prediction_dose"].mean() - frame.dose.mean()) < 0.2 * frame.dose.std()
        assert np.corrcoef(answers["prediction_pulse"], frame.pulse)[0, 1] > 0.9
        both = run.clients[0].predict(frame).numpy()
        assert (both == np.stack(list(answers.values()), 1)).all()

    def test_many_labels(self) -> None:
        frame = (
            patients()[["site", "age", "bmi"]]
            .dropna()
            .assign(old=lambda t: (t.age > 50) * 1, thin=lambda t: (t.bmi < 24) * 1)
        )
        fed = ct.data.from_frame(frame, target="old+thin", client="site")
        run = ct.fit(
            ct.models.build("logreg", fed), fed, ct.algorithms.local(epochs=2), rounds=2, loss="bce", progress=False
        )
        answers = run.clients[1].scored(frame)
        assert list(answers) == ["prediction_old", "prediction_thin", "probability_old", "probability_thin"]
        assert (answers["prediction_old"] == (answers["probability_old"] > 0.5)).all()


def changed(**values: Any) -> pd.DataFrame:
    """A few rows without missing values, with one value of row 2 replaced."""
    frame = patients().dropna().iloc[3:8].reset_index(drop=True)
    for name, value in values.items():
        frame[name] = frame[name].astype(object)
        frame.loc[2, name] = value
    return frame


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "list"])
def test_what_cannot_be_answered_is_one_sentence(kind: str, trained: Trained, tmp_path: Path) -> None:
    """With its row and its column; a run that was trained without missing values refuses them."""
    strict = replace(trained.known, filled=False)
    at = f"row {2 if kind in ('frame', 'list') else 3} of "
    cases: list[tuple[pd.DataFrame, Columns, list[str]]] = [
        (changed().drop(columns="bmi"), strict, ["has no column 'bmi', which the run has learned from: add it"]),
        (changed().rename(columns={"bmi": "bmi2"}), strict, ["has no column 'bmi'", "did you mean bmi2?"]),
        (changed(bmi=np.inf), strict, [at, "holds infinity in bmi: mend it"]),
        (changed(bmi=None), strict, [at, "has no value in bmi", "train with missing=mean"]),
        (changed(ward=None), strict, [at, "has no value in ward", "train with missing=mean"]),
    ]
    if kind != "parquet":  # where a column has one type
        cases += [(changed(age="old"), strict, [at, "holds 'old' in age, where the run has learned from numbers"])]
    if kind == "csv":  # the others are numbers all the same
        cases += [(changed(age="1,5"), strict, [at, "holds '1,5' in age"])]
    else:  # what looks like a number in a CSV file is a text where the run has learned from texts
        number = changed().assign(ward=7.5)
        cases += [(number, strict, [at[:4], "holds 7.5 in ward, where the run has learned from texts: give a text"])]
        date = changed().assign(age=pd.Timestamp("2026-01-01"))
        cases += [(date, strict, [at[:4], "holds 2026-01-01 00:00:00 in age, where the run has learned from numbers"])]
    for frame, known, told in cases:
        rows: Any = FrameRows(frame) if kind == "frame" else DictRows(records(frame))
        if kind in ("csv", "parquet"):
            rows = new_file(saved(frame, tmp_path / f"n.{kind}"), known, {}).samples
        with pytest.raises(UserError) as caught:
            encoded_rows(rows, known, str)
        for part in told:
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_single_row_with_nothing_but_missing_values(trained: Trained, tmp_path: Path) -> None:
    """A column without any value has no kind of its own; nor has one of digits where texts were learned."""
    empty = changed(age=None, ward=None, bmi=None).iloc[[2]]
    expected = encoded_rows(FrameRows(empty), trained.known, str)
    assert not expected.any()  # all are the mean, and no ward
    for name in ("n.csv", "n.parquet"):
        file = new_file(saved(empty, tmp_path / name), trained.known, {})
        assert (encoded_rows(file.samples, trained.known, str) == expected).all()
    assert (encoded_rows(DictRows([{"age": None, "ward": None, "bmi": float("nan")}]), trained.known, str) == 0).all()
    said: list[str] = []
    digits = new_file(saved(empty.assign(ward=7), tmp_path / "n.csv"), trained.known, {})
    encoded_rows(digits.samples, trained.known, said.append)
    assert "holds '7' in ward, which no training row did" in said[0]


class TestWholeModels:
    """ONNX and TorchScript files take rows as the table holds them, NaN for what is missing."""

    def rows(self, known: Columns) -> torch.Tensor:
        """The table as a program makes it that has only the file's own description."""
        frame = patients()
        columns = [
            frame[name] if "=" not in name else frame[name.split("=")[0]] == name.split("=")[1] for name in known.inputs
        ]
        return torch.tensor(np.stack([column.astype(np.float32) for column in columns], 1))

    def test_onnx(self, trained: Trained, tmp_path: Path) -> None:
        runtime = pytest.importorskip("onnxruntime", reason="ONNX needs the extra coterie[export]")
        file = ct.export.save(trained.run, "oslo", tmp_path / "a.onnx")
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        about = session.get_modelmeta().custom_metadata_map
        described = json.loads(about["columns"])
        train = patients()[patients().split == "train"]
        fill = dict(zip(Columns.of(described).inputs, described["fill"], strict=True))
        assert (fill["age"], fill["bmi"]) == (pytest.approx(train.age.mean()), pytest.approx(train.bmi.mean()))
        assert "age, ward=day, ward=er, ward=icu, bmi; numbers as the table holds them" in about["input"]
        assert "NaN is a missing value and is filled as in training" in about["input"]
        assert about["output"].startswith("scores of the classes sick, well;")
        (scores,) = session.run(None, {"input": self.rows(Columns.of(described)).numpy()})
        with pytest.warns(UserWarning, match="no training row"):
            expected = trained.run.clients["oslo"].scored(patients())
        found = torch.from_numpy(scores).softmax(1)[:, 0]
        np.testing.assert_allclose(found, expected["probability_sick"], atol=1e-5)

    def test_torchscript_and_what_the_command_says(self, trained: Trained, tmp_path: Path, cli: Cli) -> None:
        typed = ("export", str(trained.folder / "run"), "--client", "oslo", "--out", "a.pt")
        done = cli.succeed(*typed, cwd=tmp_path)
        assert "it takes [batch, 5]: age, ward=day, ward=er, ward=icu, bmi; numbers as the table" in done.out
        assert "NaN is a missing value and is filled as in training" in done.out
        with silence(), torch.no_grad():
            answers = torch.jit.load(str(tmp_path / "a.pt"))(self.rows(trained.known))
        with pytest.warns(UserWarning, match="no training row"):
            expected = trained.run.clients["oslo"].scored(patients())
        np.testing.assert_allclose(answers.softmax(1)[:, 0], expected["probability_sick"], atol=1e-5)


class TestTheCommand:
    def test_rows_are_kept_as_they_are(self, trained: Trained, tmp_path: Path, cli: Cli) -> None:
        """In their order, with every digit and quote; what is to be known of them is said."""
        lines = ["id;bmi;note;age;ward", '007;24,50;"a; ""b""";61;icu', ";;;61,5;oncology", "9;30;NA;;"]
        (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
        data = ("--data", "csv:new.csv,delimiter=semicolon,decimal=comma")
        typed = ("predict", str(trained.folder / "run"), "--client", "oslo", *data)
        done = cli.succeed(*typed, "--out", "scored.csv", cwd=tmp_path)
        assert "3 rows of new.csv are in scored.csv, with prediction, probability_sick, probability_well" in done.out
        assert "row 2 of new.csv holds 'oncology' in ward, which no training row did" in done.err
        written = (tmp_path / "scored.csv").read_text().splitlines()
        assert written[0] == f"{lines[0]};prediction;probability_sick;probability_well"
        for before, after in zip(lines[1:], written[1:], strict=True):
            kept, prediction, *scores = after.rsplit(";", 3)
            assert kept == before
            sick, well = (float(score.replace(",", ".")) for score in scores)
            assert prediction == ("sick" if sick > well else "well")
            assert sick + well == pytest.approx(1, abs=1e-6)
        rows = pd.read_csv(tmp_path / "new.csv", sep=";", decimal=",")
        with pytest.warns(UserWarning, match="oncology"):
            answers = trained.run.clients[1].scored(rows)
        assert [float(line.rsplit(";", 1)[1].replace(",", ".")) for line in written[1:]] == pytest.approx(
            answers["probability_well"].tolist(), rel=1e-7
        )
        cli.refuse(*typed, "--out", "scored.csv", cwd=tmp_path, names=("scored.csv already exists", "--force"))
        again = ("--data", "csv:scored.csv,delimiter=semicolon,decimal=comma", "--out", "twice.csv")
        cli.refuse(*typed[:4], *again, cwd=tmp_path, names=("has a column 'prediction' already",))

    def test_whose_model(self, trained: Trained, tmp_path: Path) -> None:
        """By name or number, from a folder or from exported files; the common one where there is one."""
        frame, run = changed(), trained.folder / "run"
        expected = trained.run.clients[1].scored(frame)
        *_, file = ct.export.save_all(trained.run, tmp_path / "models")
        models = tmp_path / "models"
        for place, client in (
            (run, "Oslo"),
            (run, 1),
            (models, "oslo"),
            (models, 1),
            (file, None),
        ):
            answers = ct.export.predictor(place, client).scored(frame)
            assert [values.tolist() for values in answers.values()] == [v.tolist() for v in expected.values()]
        common = ct.fit(
            ct.models.build("mlp:width=8", trained.fed), trained.fed, ct.algorithms.fedavg(), rounds=1, progress=False
        )
        common.save(tmp_path / "common")
        found = ct.export.predictor(tmp_path / "common").scored(frame)
        assert found["probability_sick"].tolist() == common.clients[0].scored(frame)["probability_sick"].tolist()
        ct.export.save(trained.run, 0, tmp_path / "a.pt")
        for place, client, told in (
            (run, None, "models of their own: choose one with --client, of bern, oslo"),
            (run, "rome", "no client rome: choose one of bern, oslo, or a number from 0 to 1"),
            (models, None, "models of several clients, and name a client: choose one of bern, oslo"),
            (file, 1, "holds one model: leave client out"),
            (tmp_path / "a.pt", None, r"a.pt is for other programs: give the folder of the run, or a file that ends"),
            (tmp_path / "none", "bern", "none"),
        ):
            with pytest.raises(UserError, match=told):
                ct.export.predictor(place, client)

    def test_a_new_site(self, trained: Trained, tmp_path: Path, cli: Cli) -> None:
        """What personalize has written answers the site's rows, with what the run has filled in."""
        typed = ("--data", str(trained.table), "--out", "new.safetensors", "--epochs", "1")
        cli.succeed("personalize", str(trained.folder / "run"), *typed, cwd=tmp_path)
        frame = patients().head(6).drop(columns="split")
        frame.to_parquet(tmp_path / "rows.parquet")
        cli.succeed("predict", "new.safetensors", "--data", "rows.parquet", "--out", "b.parquet", cwd=tmp_path)
        found = pd.read_parquet(tmp_path / "b.parquet")
        pd.testing.assert_frame_equal(found[frame.columns], frame)
        x = torch.from_numpy(encoded_rows(FrameRows(frame), trained.known, str))
        with torch.no_grad():
            outputs = ct.export.load(tmp_path / "new.safetensors")(x)
        assert found["probability_sick"].tolist() == outputs.softmax(1)[:, 0].tolist()

    def test_arrays(self, tmp_path: Path, cli: Cli) -> None:
        draw = np.random.default_rng(0)
        images = draw.integers(0, 256, (24, 6, 6), dtype=np.uint8)
        np.savez(tmp_path / "t.npz", x=images, y=np.arange(24) % 3)
        fed = ct.data.federate(f"npz:{tmp_path / 't.npz'}", clients=2, partition="iid")
        run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.local(epochs=1), rounds=1, progress=False)
        run.save(tmp_path / "run")
        np.savez(tmp_path / "new.npz", x=images[:5])
        typed = ("predict", "run", "--client", "1", "--out", "out.npz", "--data")
        cli.succeed(*typed, "new.npz", cwd=tmp_path)
        with np.load(tmp_path / "out.npz") as found:
            assert found["prediction"].tolist() == run.clients[1].predict(images[:5, None]).tolist()
            assert found["probability"].shape == (5, 3)
            np.testing.assert_allclose(found["probability"].sum(1), 1, rtol=1e-6)
        cli.refuse(*typed, "t.csv", cwd=tmp_path, names=("out.npz already exists",))
        other = (*typed[:4], "--out", "b.csv", "--data")
        cli.refuse(
            *other,
            "t.csv",
            cwd=tmp_path,
            names=("the run has learned from arrays, not from rows of numbers and texts: name an .npz file",),
        )
        cli.refuse(*other, "new.npz", cwd=tmp_path, names=("give --out the ending .npz",))
        cli.refuse(*other, "new.txt", cwd=tmp_path, names=("name one that ends with .csv, .parquet, .npz",))
