"""The report: what it shows is what the runs measured, it loads nothing, and it stays small."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import coterie as ct
from coterie.cli import main
from coterie.core.errors import UserError
from coterie.measure.compare import Comparison
from coterie.papers.figures.landscape import TOGETHER, slice_of
from coterie.papers.figures.recipe_charts import exchanges
from coterie.report.clients import heat_map
from coterie.report.collect import collect
from coterie.report.graph import gap_of
from coterie.report.groups import setups
from coterie.report.library import compressed_library, pack_json
from coterie.report.page import page
from coterie.report.record import Record
from coterie.report.titles import page_title
from coterie.topology import spectral_gap
from helpers_cli import DATA, Cli
from pages import Page, number, value

pytest.importorskip("plotly", reason="a report needs plotly: pip install 'coterie[report]'")

LIMIT = 5_000_000
METHODS = ("local", "fedavg", "dfedalt", "dfedsam")
DIGITS = ("--data", "digits", "--clients", "6", "--rounds", "2", "--set", "epochs=1", "--topology", "random:3")
WANTED = ("--seeds", "2", "--target", "50")  # rounds to 80 % are more than these have
TINY = (*DATA, "--model", "logreg", "--clients", "3", "--rounds", "2", "--set", "steps=1")


@pytest.fixture(scope="module")
def compared(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real comparison with two seeds."""
    cwd = tmp_path_factory.mktemp("compared")
    done = cli.succeed("compare", *METHODS, *DIGITS, *WANTED, "--out", "c", cwd=cwd)
    assert done.out.rstrip().endswith("report: c/report.html")
    return cwd / "c"


@pytest.fixture(scope="module")
def shown(compared: Path) -> Page:
    return Page(compared / "report.html")


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def runs(folder: Path, method: str) -> list[Path]:
    return [folder / f"{method}-seed{seed}" for seed in (0, 1)]


def test_it_is_small_and_loads_nothing(compared: Path, shown: Page) -> None:
    assert (compared / "report.html").stat().st_size < LIMIT
    for element in shown.root.all():
        for name in ("src", "srcset", "data", "poster", "action"):
            assert name not in element.attributes, element.tag
        assert re.fullmatch(r"#[\w-]+|data:,", element.attributes.get("href") or "data:,")
    style = shown.root.one("style").text
    assert "url(" not in style
    assert "@import" not in style
    plain = re.sub(r'<script type="application/octet-stream".*?</script>', "", shown.text, flags=re.DOTALL)
    assert not re.search(r"https?:|fetch\(|XMLHttp|import\(", plain)


def test_every_section_is_there(shown: Page) -> None:
    names = {e.attributes.get("id") for e in shown.root.all()}
    slices = {f"landscape-{i}" for i in range(4)}
    charts = {"gains", "rounds", "bytes", "traffic", "clients", "labels", "topology", "consensus", *slices}
    assert {f"s1-{chart}" for chart in charts} == set(shown.charts)
    assert set(shown.charts) | {"s1", "command"} <= names
    assert len(shown.root.all("h1")) == 1
    assert "recorded" not in " ".join(shown.charts)  # nothing was


def test_no_mark_of_the_template_is_left(shown: Page) -> None:
    assert "<!--" not in re.sub(r"<script.*?</script>", "", shown.text, flags=re.DOTALL)


@pytest.mark.parametrize("method", METHODS)
def test_the_table_is_what_the_runs_came_to(compared: Path, shown: Page, method: str) -> None:
    both = [json.loads((run / "summary.json").read_text()) for run in runs(compared, method)]
    row = shown.table()[method]
    for column, point in (("after aggregation", "after_mix"), ("after local training", "after_train")):
        known = [s["personal_accuracy"][point] for s in both]
        assert value(row[column]) == pytest.approx(100 * fmean(a["final"] for a in known))
        assert f"±{100 * fmean(a['std'] for a in known):.1f} clients" in row[column].text
        assert "seeds" in row[column].text
    lowest = [100 * s["personal_accuracy"]["after_mix"]["worst"] for s in both]
    assert value(row["worst client"]) == pytest.approx(fmean(lowest))
    assert value(row["global"]) == pytest.approx(100 * fmean(s["global_accuracy"] for s in both))
    for column, name in (("sent", "bytes_sent"), ("FLOPs", "flops"), ("seconds", "seconds")):
        assert value(row[column]) == pytest.approx(fmean(s[name] for s in both))
    up, down = (max(s[f"busiest_bytes_{way}"] for s in both) for way in ("up", "down"))
    assert value(row["busiest node"]) == max(up, down)
    reached = [s["rounds_to"]["50"] for s in both]
    cell = row["rounds to 50 %"]
    if None in reached:
        assert "data-value" not in cell.attributes
    else:
        assert value(cell) == fmean(reached)


def test_the_best_of_every_column_is_marked_in_words_too(shown: Page) -> None:
    table = shown.table()
    for column in table["local"]:
        high = column in (
            "after aggregation",
            "after local training",
            "worst client",
            "10th percentile",
            "weighted",
            "global",
        )
        cells = [row[column] for row in table.values() if "data-value" in row[column].attributes]
        printed = [number(cell) for cell in cells]
        best = printed[(max if high else min)(range(len(cells)), key=lambda i: value(cells[i]))] if cells else ""
        for cell, text in zip(cells, printed, strict=True):  # whoever prints the same as the best is as good
            won = text == best and len(set(printed)) > 1
            assert (cell.attributes.get("class") == "best") == won
            assert ("best" in cell.text) == won


def test_the_protocol_is_stated(shown: Page) -> None:
    said = " ".join(shown.root.one(id="s1").text.split())
    for words in (
        "last evaluated round: round 2",
        "each client's own model on its own test samples, mean over all 6 clients",
        "standard deviation over 2 seeds",
        "right after the models were averaged",
        "before aggregation",
        "without evaluation",
        "digits, 6 clients, partition dirichlet:0.1, model small-cnn",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("view", "field", "factor"),
    [
        ("after aggregation", "personal_accuracy_after_mix", 100),
        ("after local training", "personal_accuracy_after_train", 100),
        ("worst client after aggregation", "personal_accuracy_after_mix_worst", 100),
        ("global", "global_accuracy", 100),
        ("training loss", "train_loss", 1),
    ],
)
def test_the_curves_are_the_history(compared: Path, shown: Page, view: str, field: str, factor: float) -> None:
    for chart in ("s1-rounds", "s1-bytes"):
        traces = shown.view(chart, view)["data"]
        drawn = {t["name"]: t for t in traces if t.get("fill") is None}
        bands = {t["name"]: t for t in traces if t.get("fill")}
        assert list(drawn) == list(bands) == list(METHODS)
        for method in METHODS:
            both = [history(run) for run in runs(compared, method)]
            values = [[factor * rows[t][field] for rows in both] for t in range(2)]
            assert drawn[method]["y"] == pytest.approx([fmean(v) for v in values], rel=1e-5)
            high, low = [max(v) for v in values], [min(v) for v in values]
            assert bands[method]["y"] == pytest.approx([*high, *reversed(low)], rel=1e-5)
            sent = [fmean(sum(row["bytes_sent"] for row in rows[: t + 1]) for rows in both) for t in range(2)]
            assert drawn[method]["x"] == pytest.approx([1, 2] if chart == "s1-rounds" else sent, rel=1e-5)


def test_the_consensus_is_the_history(compared: Path, shown: Page) -> None:
    traces = {t["name"]: t for t in shown.view("s1-consensus")["data"] if t.get("fill") is None}
    assert set(traces) == {"dfedalt", "dfedsam"}  # the others share nothing, or hold the same
    both = [history(run) for run in runs(compared, "dfedalt")]
    means = [fmean(rows[t]["consensus_distance"] for rows in both) for t in range(2)]
    assert traces["dfedalt"]["y"] == pytest.approx(means, rel=1e-5)
    assert "local, fedavg" in shown.root.one(id="s1-consensus").text


def test_the_clients_are_those_of_the_runs(compared: Path, shown: Page) -> None:
    for point, view in (("after_mix", "after aggregation"), ("after_train", "after local training")):
        for trace in shown.view("s1-clients", view)["data"]:
            both = [json.loads((run / "clients.json").read_text()) for run in runs(compared, trace["name"])]
            assert trace["x"] == pytest.approx([100 * a for c in both for a in c["accuracy"][point]], rel=1e-5)
    for method in METHODS:  # and their mean is what the last row says
        known = [json.loads((run / "clients.json").read_text())["accuracy"] for run in runs(compared, method)]
        rows = [history(run)[-1] for run in runs(compared, method)]
        for point in ("after_mix", "after_train"):
            means = [row[f"personal_accuracy_{point}"] for row in rows]
            assert [fmean(a[point]) for a in known] == pytest.approx(means, rel=1e-12)


def test_the_heat_map_counts_the_labels(shown: Page) -> None:
    for seed in (0, 1):
        fed = ct.data.federate("digits", clients=6, partition="dirichlet:0.1", seed=seed)
        (trace,) = shown.view("s1-labels", f"seed {seed}")["data"]
        assert [[v or 0 for v in row] for row in trace["z"]] == fed.class_counts().T.tolist()


@pytest.mark.parametrize(("clients", "step"), [(1, 1), (4, 1), (20, 1), (21, 2), (100, 5), (900, 50), (9000, 9000)])
def test_an_axis_of_clients_has_whole_numbers(clients: int, step: int) -> None:
    assert heat_map([[1, 2]] * clients)["layout"]["xaxis"]["dtick"] == step


def test_clients_with_names_are_called_by_them() -> None:
    figure = heat_map([[1, 2], [3, 4]], ["north", "south"])
    assert figure["data"][0]["x"] == ["north", "south"]
    assert figure["layout"]["xaxis"]["type"] == "category"


def test_the_title_is_the_data_and_the_question(shown: Page) -> None:
    assert shown.root.one("h1").text == "digits, 6 clients: is fedavg, dfedalt or dfedsam better than local?"
    assert shown.root.all("h2")[0].text == "digits, 6 clients, partition dirichlet:0.1, model small-cnn"


@pytest.mark.parametrize(
    ("data", "methods", "alone", "title"),
    [
        (["digits (renamed=4), 20 clients"], ["dfedalt"], None, "digits (renamed=4), 20 clients: how good is dfedalt?"),
        (["d, 2 clients"] * 2, ["a", "b"], None, "d, 2 clients: which is best, a or b?"),
        (["d, 2 clients", "e"], list("abcdef"), "a", "d, 2 clients; e: which of 6 methods is best?"),
        (list("abcde"), ["a", "local"], "local", "5 data sets: is a better than local?"),
    ],
)
def test_titles(data: list[str], methods: list[str], alone: str | None, title: str) -> None:
    assert page_title(data, methods, alone) == title


def test_terminal_and_page_have_the_same_numbers(cli: Cli, compared: Path, shown: Page) -> None:
    """Every cell of the table, its worst client, its target and its spread; the sentences below it, too."""
    done = cli.succeed(
        "compare", *METHODS, *DIGITS, *WANTED, "--out", "c", "--resume", "--format", "markdown", cwd=compared.parent
    )
    lines = [line.strip("| ").split(" | ") for line in done.out.splitlines() if line.startswith("|")]
    headings = [re.sub(r" \(%\)$", "", text) for text in lines[0]]
    assert "rounds to 50 %" in headings
    rows = {row[0]: dict(zip(headings, (c.strip("*") for c in row), strict=True)) for row in lines[2:]}
    for method, cells in shown.table().items():
        for title, cell in cells.items():
            text, _, spread = rows[method][title].partition(" ± ")
            assert number(cell) == text
            assert f"±{spread} seeds" in cell.text or not spread
    said = [line.removeprefix("* ").replace("\\", "") for line in done.out.splitlines() if line and line[0] != "|"]
    answer = [e for e in shown.root.one(id="s1").all("p") if e.attributes.get("class") == "answer"]
    on_page = [*answer, *shown.root.one("ul", **{"class": "verdict"}).all("li")]
    assert [item.text.replace("\xa0", " ") for item in on_page] == said[: len(on_page)]


def test_the_graph_is_the_last_rounds(compared: Path, shown: Page) -> None:
    W = ct.topology.build("random:3", 6, seed=0)(1)
    graph = json.loads((compared / "dfedalt-seed0" / "clients.json").read_text())["graph"]
    assert {(j, i): w for j, i, w in graph["edges"]} == {
        (j, i): float(W[i, j]) for i in range(6) for j in range(6) if i != j and W[i, j]
    }
    assert gap_of(graph, 6) == pytest.approx(spectral_gap(W))
    caption = shown.root.one(id="s1-topology").one("figcaption").text
    assert f"spectral gap of this one alone {spectral_gap(W):.4f}" in caption
    assert "round 2" in caption
    assert "local, fedavg" in caption
    views = shown.charts["s1-topology"]["views"]
    for method, view in views.items():  # two methods on one graph: the colors are those of the one that is shown
        accuracy = json.loads((compared / f"{method}-seed0" / "clients.json").read_text())["accuracy"]["after_mix"]
        assert view["data"][-1]["marker"]["color"] == pytest.approx([100 * v for v in accuracy], rel=1e-5)
        assert view["data"][-1]["marker"]["colorbar"]["title"]["text"] == f"accuracy of {method}, %"
    assert list(views) == ["dfedalt", "dfedsam"]
    handles = next(t for t in view["data"] if "weight" in str(t.get("text")))
    assert len(handles["text"]) == len(graph["edges"]) / 2
    told = re.fullmatch(r"(\d) → (\d): weight ([\d.]+)<br>\2 → \1: weight ([\d.]+)", handles["text"][0])
    assert told is not None
    assert float(told[3]) == pytest.approx(float(W[int(told[2]), int(told[1])]), rel=1e-3)


@pytest.mark.parametrize("name", ["random-push:2", "random-pull:2", "ring", "star"])
def test_the_gap_of_any_graph_is_found_from_its_edges(name: str) -> None:
    topology = ct.topology.build(name, 8, seed=3)
    W = topology(4)
    edges = [[j, i, float(W[i, j])] for i in range(8) for j in range(8) if i != j and W[i, j]]
    assert gap_of({"edges": edges, "stochastic": topology.stochastic}, 8) == pytest.approx(spectral_gap(W))


def test_the_loss_in_the_middle_of_the_slice_is_the_models(compared: Path, shown: Page) -> None:
    (trace,) = shown.view("s1-landscape-2")["data"]
    assert shown.root.one(id="s1-landscape-2").one("h3").text == "dfedalt"
    fed = ct.data.federate("digits", clients=6, partition="dirichlet:0.1", seed=0)
    most = int(re.search(r"at most (\d+) per client", shown.root.one(id="s1").text)[1])  # type: ignore[index]
    run = ct.load(compared / "dfedalt-seed0")
    losses = []
    for client, mine in zip(run.clients, fed.train, strict=True):
        outputs = client.module()(fed.x[mine[:most]]).detach()
        losses.append(float(torch.nn.functional.cross_entropy(outputs, fed.y[mine[:most]])))
    assert trace["customdata"][5][5] == pytest.approx(fmean(losses), rel=1e-4)
    assert 10 ** trace["z"][5][5] == pytest.approx(fmean(losses), rel=1e-4)


def test_plotly_knows_every_word_of_the_figures(shown: Page) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    tokens = {"ink": "#000000", "faint ink": "#000000", "scale": "Cividis"}

    def filled(given: Any) -> Any:
        if isinstance(given, dict):
            return {k: filled(v) for k, v in given.items()}
        return [filled(v) for v in given] if isinstance(given, list) else tokens.get(given, given)

    for chart in shown.charts.values():
        for view in chart["views"].values():
            graph_objects.Figure(**filled(view))


def test_configuration_and_commands_repeat_it(compared: Path, shown: Page) -> None:
    details = shown.root.one(id="s1").all("details")
    assert [d.one("summary").text.split()[0] for d in details] == list(METHODS)
    for method, detail in zip(METHODS, details, strict=True):
        command, config = (pre.text for pre in detail.all("pre"))
        assert json.loads(config) == json.loads((compared / f"{method}-seed0" / "config.json").read_text())
        first = shlex.split(command.splitlines()[0])
        assert first[:2] == ["coterie", "run"]
        assert first[2].endswith(f"{method}-seed0/config.json")
    (typed,) = shown.root.one(id="command").all("pre")
    assert shlex.split(typed.text) == ["coterie", "compare", *METHODS, *DIGITS, *WANTED]


def test_the_page_begins_with_the_answer_and_one_test(shown: Page) -> None:
    """The second sentence names the best and the next of the table, and calls the lead chance as p tells."""
    first, second = [e.text.replace("\xa0", " ") for e in shown.root.one(id="s1").all("p")][:2]
    table = shown.table()
    best, following, *_ = sorted(table, key=lambda m: -value(table[m]["after aggregation"]))
    assert re.match(rf"({best} helps|Training alone \(local.*\) is best on average: )", first)
    p = re.search(r"paired test, p [=<] ([\d.]+)\)", second)
    assert p is not None
    assert second.startswith(f"{best} (")
    assert f" {following} (" in second
    assert ("more than chance" in second) == (float(p[1]) < 0.05)


@pytest.fixture(scope="module")
def folder(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several runs of one method."""
    cwd = tmp_path_factory.mktemp("several")
    for name, extra in {
        "a": (),
        "again": (),
        "other seed": ("--seed", "1"),
        "faster": ("--set", "lr=0.5"),
        "elsewhere": ("--clients", "4"),
    }.items():
        cli.succeed("run", "fedper", *TINY, *extra, "--out", name, cwd=cwd)
    return cwd


class TestWhichRuns:
    """What stands side by side."""

    def labels(self, *folders: Path) -> list[list[str]]:
        return [[m.label for m in s.methods] for s in setups(collect(folders).records)]

    def test_seeds_make_one_row(self, folder: Path) -> None:
        ((method,),) = ([*s.methods] for s in setups(collect([folder / "a", folder / "other seed"]).records))
        assert [run.seed for run in method.runs] == [0, 1]

    def test_settings_tell_methods_apart(self, folder: Path) -> None:
        assert self.labels(folder / "a", folder / "faster") == [["fedper lr=0.02", "fedper lr=0.5"]]

    def test_a_repetition_is_no_seed(self, folder: Path) -> None:
        assert self.labels(folder / "a", folder / "again") == [["fedper in a", "fedper in again"]]

    def test_cases_of_a_recipe_stay_apart(self, folder: Path) -> None:
        """Two data sets of a paper, both put on the same other data: equal set-ups, different published numbers."""
        (record,) = collect([folder / "a"]).records
        found = setups([replace(record, case="3"), replace(record, case="7")])
        assert [s.title[:7] for s in found] == ["case 3:", "case 7:"]

    def test_named_twice_it_counts_once(self, folder: Path) -> None:
        assert self.labels(folder / "a", folder / "a" / "config.json", folder / ".." / folder.name / "a") == [
            ["fedper"]
        ]

    def test_other_clients_are_another_table(self, folder: Path, cli: Cli) -> None:
        done = cli.succeed("report", "a", "elsewhere", cwd=folder)
        assert done.out == "report: report.html\n"
        shown = Page(folder / "report.html")
        assert [a.attributes["href"] for a in shown.root.one("nav").all("a")] == ["#s1", "#s2"]
        assert list(shown.table("s1")) == list(shown.table("s2")) == ["fedper"]
        assert "best" not in shown.table("s1")["fedper"]["after aggregation"].text  # there is nothing to be better than

    def test_a_single_run_has_its_page_in_its_folder(self, folder: Path, cli: Cli) -> None:
        assert cli.succeed("report", "a", cwd=folder).out == "report: a/report.html\n"
        assert "fedper: personal accuracy" in Page(folder / "a" / "report.html").root.one(id="s1").text

    def test_a_run_under_way(self, folder: Path, cli: Cli) -> None:
        cli.run("run", "fedper", *TINY, "--out", "cut", cwd=folder, at="rename cut/checkpoint/round-000002.json")
        with (folder / "cut" / "metrics.jsonl").open("a") as file:
            file.write('{"round": 3, "personal_acc')
        cli.succeed("report", "cut", cwd=folder)
        said = Page(folder / "cut" / "report.html").root.one(id="s1").text
        assert "fedper (unfinished)" in said
        assert "no clients.json" in said


def test_in_python_the_same_page(tmp_path: Path) -> None:
    fed = ct.data.federate("synthetic", clients=4, partition="dirichlet:0.3", seed=0)
    alg = ct.algorithms.dfedsam(topology="ring", epochs=1)
    run = ct.fit(ct.models.build("mlp", fed), fed, alg, rounds=2, progress=False)
    run.save(tmp_path / "a")
    ct.report.write([ct.load(tmp_path / "a")], tmp_path / "loaded.html")
    assert run.report(tmp_path / "held.html") == tmp_path / "held.html"
    ct.report.write([tmp_path / "a"], tmp_path / "folder.html")
    frozen, loaded, folder = (Page(tmp_path / f"{name}.html") for name in ("held", "loaded", "folder"))
    assert frozen.text == loaded.text
    assert frozen.charts == folder.charts
    assert "s1-landscape-0" in frozen.charts


def test_data_and_modules_of_ones_own(tmp_path: Path) -> None:
    """Targets without classes, a module without a name: what cannot be shown is left out in words."""
    pairs = [(torch.randn(10, 5), torch.randn(10)) for _ in range(5)]
    fed = ct.data.from_tensors(train=pairs, test=pairs)
    run = ct.fit(
        lambda: torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Flatten(0)),
        fed,
        ct.algorithms.dfedsam(topology="ring", epochs=1, lr=0.01),
        loss=lambda outputs, targets: (outputs - targets).square().mean(),
        rounds=2,
        progress=False,
    )
    shown = Page(run.report(tmp_path / "own <&> page.html"))
    measured = {
        "after aggregation",
        "after local training",
        "worst client after aggregation",
        "global",
    }  # of the mean squared error
    assert set(shown.charts["s1-rounds"]["views"]) == {*measured, "training loss"}
    assert shown.view("s1-rounds", "after aggregation")["layout"]["yaxis"]["title"]["text"] == "MSE"
    assert set(shown.charts) == {"s1-rounds", "s1-bytes", "s1-clients", "s1-topology", "s1-consensus"}
    said = shown.root.one(id="s1").text
    assert "accuracy" not in said
    assert "targets are no classes" in said
    assert "left out: this run was made in Python" in said
    assert "repeat it from there" in said


def test_runs_from_before_clients_were_kept(compared: Path, tmp_path: Path) -> None:
    records = [replace(r, client_summary={}) for r in collect([compared / "dfedalt-seed0"]).records]
    text = page(collect([compared / "dfedalt-seed0"])._replace(records=records), "", lambda _: None)
    assert "no clients.json" in text


def test_singular_values_of_low_rank_runs(cli: Cli, tmp_path: Path) -> None:
    cli.succeed("run", "fedlmt", *DIGITS[:-2], "--record", "singular-values", "--out", "a", cwd=tmp_path)
    cli.succeed("report", "a", "--out", "deep/er/page.html", cwd=tmp_path)
    shown = Page(tmp_path / "deep" / "er" / "page.html")
    (trace,) = shown.view("s1-recorded", "smallest singular value of all factors")["data"]
    recorded = [r["smallest_singular_value"] for r in history(tmp_path / "a")]
    assert trace["y"] == pytest.approx(recorded, rel=1e-5)
    (layers,) = shown.view("s1-factors")["data"]  # from the saved models, whatever was recorded
    assert min(layers["y"]) == pytest.approx(recorded[-1], rel=1e-5)


def test_published_numbers_stand_beside_ours(cli: Cli, tmp_path: Path) -> None:
    words = ["recipe", "run", "dfedalt-t1", "--methods", "fedavg,dfedalt", "--case", "1", "--data", "digits"]
    words += ["--model", "small-cnn", "--clients", "5", "--rounds", "2", "--seeds", "2", "--out", "r"]
    assert "report: r/report.html" in cli.succeed(*words, cwd=tmp_path).out
    shown = Page(tmp_path / "r" / "report.html")
    assert list(shown.table()) == ["fedavg", "dfedalt"]
    part = shown.root.one(id="published")
    assert "SHORTENED OR CHANGED, not comparable" in part.text
    results = json.loads((tmp_path / "r" / "recipe.json").read_text())["results"]
    rows = part.one("tbody").all("tr")
    for row, result in zip(rows, results, strict=True):
        assert row.one("th").text == result["method"]
        known = [value(cell) for cell in row.all("td")[2:]]
        assert known == pytest.approx([result["published"], fmean(result["ours"]), result["difference"]])
        assert f"{result['method']}: {result['protocol']}" in part.text
    cli.succeed("report", "r/case1-dfedalt-seed0", "--out", "one.html", cwd=tmp_path)  # one of its runs alone
    alone = Page(tmp_path / "one.html").root.one(id="published")
    assert [row.one("th").text for row in alone.one("tbody").all("tr")] == ["dfedalt"]


def test_a_large_page_stays_small(compared: Path) -> None:
    """Three set-ups of twelve methods with three seeds, 500 rounds, 100 clients and 100 classes."""
    (record,) = collect([compared / "dfedalt-seed0"]).records
    draw = torch.Generator().manual_seed(0)
    records = [
        _large(record, draw, clients, method, seed)
        for clients in (100, 101, 102)
        for method in range(12)
        for seed in range(3)
    ]
    text = page(collect([compared])._replace(records=records), compressed_library(), lambda _: None)
    assert len(text.encode()) < LIMIT


def _large(record: Record, draw: torch.Generator, n: int, method: int, seed: int) -> Record:
    """A run of the size of a published one, with numbers that do not compress."""

    def some(*shape: int) -> Any:
        return torch.rand(shape, generator=draw, dtype=torch.float64).tolist()

    def changed(row: dict[str, Any], factors: list[float]) -> dict[str, Any]:
        return {k: v * x if isinstance(v, float) else v for (k, v), x in zip(row.items(), factors, strict=False)}

    rows = [changed(record.history[0], factors) | {"round": t} for t, factors in enumerate(some(500, 20), 1)]
    edges = [[j, (j + 1 + k) % n, w] for j, row in enumerate(some(n, 10)) for k, w in enumerate(row)]
    client_summary = {
        "train_samples": [500] * n,
        "test_samples": [100] * n,
        "labels": torch.randint(0, 30, (n, 100), generator=draw).tolist(),
        "accuracy": {"after_mix": some(n), "after_train": some(n)},
        "graph": {**record.client_summary["graph"], "edges": edges, "messages": len(edges), "stochastic": "column"},
    }
    config = {**record.config, "method": f"method-{method}", "seed": seed, "rounds": 500}
    config["data"] = {**record.config["data"], "clients": n}
    return replace(
        record, config=config, history=rows, client_summary=client_summary, folder=Path(f"m{n}-{method}-{seed}")
    )


@pytest.fixture
def _no_plotly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compressed_library.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    yield
    compressed_library.cache_clear()


@pytest.mark.usefixtures("_no_plotly")
class TestWithoutPlotly:
    """The core does not need it."""

    def test_one_sentence_names_the_extra(self, compared: Path, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="coterie\\[report\\]"):
            ct.report.write([compared], tmp_path / "a.html")
        assert not list(tmp_path.iterdir())

    def test_a_comparison_does_not_fail(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["coterie", "compare", "local", "fedavg", *TINY, "--out", "c"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        missing = "a report needs plotly: run pip install 'coterie[report]'"
        assert f"no report: {missing}, then coterie report c" in capsys.readouterr().err
        assert sorted(p.name for p in Path("c").iterdir()) == [
            "command.txt",
            "compare.json",
            "fedavg-seed0",
            "local-seed0",
            "plan.json",
        ]


WRONG = {
    "nothing there": (("nowhere",), ("nowhere", "holds no run", "comparison")),
    "an empty folder": (("empty",), ("empty", "holds no run")),
    "no accuracy": (("whole", "--target", "0"), ("--target 0", "above 0", "100")),
    "no page": (("empty", "--out", "page.pdf"), ("page.html",)),
    "a damaged configuration": (("damaged",), ("damaged/config.json", "JSON")),
    "half a configuration": (("half",), ("half/config.json", "settings is missing")),
    "no round yet": (("begun",), ("begun", "no finished round")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_shown_is_refused_in_one_sentence(cli: Cli, compared: Path, tmp_path: Path, wrong: str) -> None:
    config = (compared / "local-seed0" / "config.json").read_text()
    for name, text in {"empty": None, "damaged": "{", "half": '{"method": "local"}', "begun": config}.items():
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "whole").symlink_to(compared / "local-seed0")  # whose metric says what a target may be
    arguments, names = WRONG[wrong]
    cli.refuse("report", *arguments, cwd=tmp_path, names=names)


def test_columns_without_numbers_come_last_and_are_not_best(compared: Path) -> None:
    (setup,) = setups(collect([compared]).records)
    for column in Comparison(setup.methods).columns:
        cells = column.cells
        assert all(c.text for c in cells)
        won = [c for c in cells if c.best]
        known = {c.value: c.text for c in cells if c.value is not None}
        told_apart = len(set(known.values())) > 1
        assert bool(won) == told_apart
        assert not won or column.best(known) in [c.value for c in won]


def test_packed_charts_are_the_same_every_time() -> None:
    assert pack_json({"a": [1.0, None]}) == pack_json({"a": [1.0, None]})
    with pytest.raises(ValueError):
        pack_json({"a": float("nan")})


def test_the_loss_around_the_mean_of_all_models(compared: Path, tmp_path: Path) -> None:
    """In the middle it is the loss of the mean model on the samples of all clients together."""
    (record,) = collect([compared / "dfedalt-seed0"]).records
    drawn = slice_of(record, TOGETHER, budget=6e8)
    fed = ct.data.federate("digits", clients=6, partition="dirichlet:0.1", seed=0)
    models = [c.shared | c.personal for c in record.run().clients]
    mean = {k: torch.stack([m[k] for m in models]).double().mean(0).float() for k in models[0]}
    some = torch.cat([mine[: drawn.samples] for mine in fed.train])
    outputs = torch.func.functional_call(record.run().clients[0].module(), mean, (fed.x[some],)).detach()
    assert drawn.losses[5][5] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, fed.y[some])), rel=1e-4)


def test_the_mean_model_is_drawn_on_request_whatever_the_method(tmp_path: Path) -> None:
    fed = ct.data.federate("synthetic:size=200", clients=4, partition="iid", seed=0)
    runs = [
        ct.fit(ct.models.build("mlp", fed), fed, alg, rounds=1, progress=False)
        for alg in (ct.algorithms.fedavg(epochs=1), ct.algorithms.heterofl(epochs=1, capacities="b4-b2"))
    ]
    ct.report.write(runs, tmp_path / "asked.html", landscape=True)
    asked = Page(tmp_path / "asked.html")
    assert {name for name in asked.charts if "landscape" in name} == {f"s1-landscape-mean-{i}" for i in (0, 1)}
    assert "the averaged model after the last round, or the server's" in asked.root.one(id="s1").text
    sam = ct.fit(
        ct.models.build("mlp", fed), fed, ct.algorithms.dfedsam(topology="ring", epochs=1), rounds=1, progress=False
    )
    ct.report.write([*runs, sam], tmp_path / "own.html")
    said = Page(tmp_path / "own.html").root.one(id="s1").text
    assert "left out: the clients of a method hold models of unequal size" in said


def test_what_a_recipe_draws_over_exchanges(tmp_path: Path) -> None:
    """A round of four gossip steps counts as four exchanges; a line a case, a chart a graph."""
    config = {"method": "dfedsam-mgs", "seed": 0, "settings": {"gossip_steps": 2}}
    rows = [{"round": t, "global_accuracy": a} for t, a in ((1, 0.25), (2, None), (3, 0.5))]
    records = [Record(config, rows, {}, {}, case=str(n)) for n in (1, 2, 5)]
    charts = exchanges({"recipe": "dfedsam-f4", "draws": "exchanges", "shortened": []}, records)
    assert [c.title.rpartition(" ")[2] for c in charts] == ["ring", "grid"]
    first, second = charts[0].views[""]["data"]
    assert (first["name"], second["name"]) == ("gossip_steps=1", "gossip_steps=2")
    assert (first["x"], first["y"]) == ([2, 6], [25, 50])
    assert exchanges({"recipe": "dfedsam-t1", "draws": ""}, records) == []


def test_traffic_and_blocks_over_rounds(tmp_path: Path) -> None:
    """Stages that grow send more and more; every block of a low-rank model has its line."""
    fed = ct.data.federate("digits", clients=2, partition="iid", seed=0)
    common = {"steps": 1, "epochs": None, "batch_size": 8, "participation": 1.0}
    grow, low = (
        ct.fit(
            ct.models.build("resnet8-bn:width=4", fed),
            fed,
            alg,
            rounds=6,
            record=record,
            evaluate_every=3,
            progress=False,
        )
        for alg, record in (
            (ct.algorithms.progfed(**common), ()),
            (ct.algorithms.fedlmt(rank_ratio=0.5, keep_layers=1, **common), ("singular-values",)),
        )
    )
    ct.report.write([grow, low], tmp_path / "both.html")
    page = Page(tmp_path / "both.html")
    grown, _ = page.view("s1-traffic", "parameters per message")["data"]
    assert grown["y"] == [r["parameters_sent"] / r["messages_sent"] for r in grow.history]
    assert len(set(grown["y"])) == 3
    traces = page.view("s1-blocks", "fedlmt")["data"]
    assert [trace["name"] for trace in traces] == ["block 1", "block 2", "block 3"]
    assert traces[1]["y"] == pytest.approx([low.history[t]["smallest_singular_value_block_2"] for t in (2, 5)])
