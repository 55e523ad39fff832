"""A run in a notebook: what it shows of itself, its rows as a frame, and the notebooks of this repository."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import coterie as ct
from coterie.core.errors import UserError
from coterie.report.card import HEIGHT, MARGIN, WIDTH
from coterie.training.run import Run
from pages import Element, parsed

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def run() -> Run:
    """Three rounds, the second one not evaluated."""
    fed = ct.data.federate("synthetic:size=240,classes=3", clients=4, partition="iid", seed=0)
    alg = ct.algorithms.dfedavg(topology="ring", epochs=1)
    return ct.fit(ct.models.build("logreg", fed), fed, alg, rounds=3, evaluate_every=3, progress=False)


def shown(run: Run) -> Element:
    return parsed(run._repr_html_())


def texts(run: Run) -> str:
    return " ".join(shown(run).text.split())


def test_a_run_shows_its_headline_numbers(run: Run) -> None:
    accuracy = run.summary["personal_accuracy"]["after_mix"]
    said = texts(run)
    for words in ("dfedavg", "4 clients", "3 rounds, seed 0", "after aggregation", f"{100 * accuracy['final']:.1f}"):
        assert words in said
    assert f"{100 * accuracy['final']:.1f} %" in repr(run)
    assert len(repr(run)) < 100  # the text that a notebook keeps beside the HTML
    assert len(repr(run.clients)) < 400


def test_a_run_draws_a_point_for_every_measured_round(run: Run) -> None:
    everywhere = replace(run, history=type(run.history)({**run.history[2], "round": t} for t in (1, 2, 3)))
    for drawn, points in ((run, 1), (everywhere, 3)):
        lines = shown(drawn).all("polyline")
        texts_of_points = [(line.attributes["points"] or "").split() for line in lines]
        assert [len(texts) for texts in texts_of_points] == [points, points]
        places = [tuple(map(float, text.split(","))) for texts in texts_of_points for text in texts]
        assert all(MARGIN <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


def test_what_is_shown_loads_nothing_and_runs_nothing(run: Run) -> None:
    html = run._repr_html_()
    assert len(html) < 10_000
    assert not re.search(r"https?:|url\(|<script|<style|<link|<img|@import|\bon\w+=", html)
    colors = set(re.findall(r"#[0-9a-f]{3,8}\b", html))
    assert colors <= {"#0072b2", "#d55e00"}  # ink is that of the notebook, in light and dark
    assert "currentColor" in html


def test_names_are_escaped(run: Run) -> None:
    config = {**run.config, "method": "<b>&", "model": {"module": "<script>alert(1)</script>"}}
    named = replace(run, config=config)
    assert "<b>&" in texts(named)
    assert "<script>alert(1)</script>" in texts(named)
    assert shown(named).all("script") == []


def test_a_run_without_a_metric_draws_its_loss() -> None:
    """Three outputs for one number fit no built-in metric; a regression has its error."""
    import torch

    pairs = [(torch.randn(8, 2), torch.randn(8, 1)) for _ in range(2)]
    fed = ct.data.from_tensors(train=pairs, test=pairs)
    alg = ct.algorithms.local(epochs=1, lr=0.01)
    given = {"rounds": 2, "loss": lambda outputs, targets: (outputs - targets).abs().mean(), "progress": False}
    two, regression = (ct.fit(nn.Linear(2, outputs), fed, alg, **given) for outputs in (3, 1))
    none = replace(two, history=type(two.history)())
    assert two.config["metrics"] == []
    assert "training loss" in texts(two)
    assert "accuracy" not in texts(two)
    assert "personal MSE from " in texts(regression)
    assert "0 rounds" in texts(none)
    assert shown(none).all("svg") == []


def test_rows_become_a_frame(run: Run, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="a frame needs pandas: pip install pandas")
    frame = run.history.frame()
    assert frame["round"].tolist() == [1, 2, 3]
    assert list(frame.columns) == list(run.history[0])
    assert {kind.kind for kind in frame.dtypes} == {"i", "f"}  # None is NaN, not an object
    assert frame["personal_accuracy_after_mix"].isna().tolist() == [True, True, False]
    saved = ct.load(run.save(tmp_path / "a"))
    pandas.testing.assert_frame_equal(saved.history.frame(), frame)
    assert len(pandas.DataFrame(run.history)) == 3
    assert type(run.history)().frame().empty


def test_without_pandas_one_sentence_names_the_fix(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install 'coterie\[tables\]', or take run.history"):
        run.history.frame()


def test_both_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_model_and_data", "quick_start"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_bare(path: Path) -> None:
    """Without outputs, counts, paths or traces of whoever ran it last."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            assert max(map(len, cell["source"])) <= 121
    assert not re.search(r"/(?:home|Users|root|tmp)/|[A-Z]:\\\\", text)
    assert len(text) < 20_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="notebooks are run by nbclient: pip install 'coterie[dev]'")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    pytest.importorskip("plotly")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")  # otherwise a warning that it will be the default
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook: Any = nbformat.reads(path.read_text(encoding="utf-8").replace("rounds=8,", "rounds=2,"), as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    html = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any("<svg" in text for text in html)  # a run
    assert any("<table" in text and "dataframe" in text for text in html)  # a frame
    assert [output for output in outputs if output.get("name") == "stderr"] == []
