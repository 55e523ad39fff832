"""The table of a comparison: its numbers, its marks, its room, and what Markdown and LaTeX make of it."""

import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from coterie.cli.results import columns_with_room, latex, markdown, results_table, width_of
from coterie.measure.compare import Column, Comparison, MethodRuns, RunData, paired_test
from helpers_cli import DATA, Cli, contents
from pages import Element, Page, number

ACCURACIES = {"a_b": (0.84, 0.86, 0.85), "local": (0.7, 0.72, 0.71), "dfedsam-mgs": (0.9, 0.92, 0.88)}
BUSIEST = ("busiest_bytes_up", "busiest_bytes_down")
BYTES = {"a_b": 2_500_000, "local": 0, "dfedsam-mgs": 64_000_000_000}


def outcome(method: str, clients: Sequence[float | None], tuned: bool, seed: int = 0) -> RunData:
    """A run of two rounds with these accuracies at its end."""
    known = np.array([c for c in clients if c is not None])
    over = {"_std": float(known.std()), "_worst": float(known.min()), "_p10": float(np.quantile(known, 0.1))}
    mean, name = float(known.mean()), "personal_accuracy_after_mix"
    last = {name: mean, **{f"{name}{k}": v for k, v in over.items()}, "global_accuracy": mean - 0.1}
    each = {"final": mean, "std": over["_std"], "worst": over["_worst"]}
    protocols = ["after_mix", "after_train", *(["after_finetune"] if tuned else [])]
    cost = {"bytes_sent": BYTES.get(method, 1), "flops": 1e12, "seconds": 12.5, **dict.fromkeys(BUSIEST, 3e6)}
    history: list[dict[str, Any]] = [{"round": 1, name: mean / 2}, {"round": 2, **last}]
    summary = {"personal_accuracy": dict.fromkeys(protocols, each), **cost}
    config = {"data": {"clients": len(clients)}, "seed": seed, "engine": "serial", "device": "cpu"}
    client_summary = {"accuracy": {"after_mix": list(clients)}}
    return RunData({**config, "engine_reason": "asked for"}, history, summary, client_summary)


def result(method: str, means: Sequence[float], clients: int = 8, tuned: bool = False) -> MethodRuns:
    """Clients whose accuracies lie around a mean, one mean a seed."""
    around = np.linspace(-0.04, 0.04, clients)
    return MethodRuns(method, [outcome(method, list(m + around), tuned, seed) for seed, m in enumerate(means)])


RESULTS = [result(m, means, tuned=m == "a_b") for m, means in ACCURACIES.items()]
COMPARED = Comparison(RESULTS)
TITLES = ["after mixing", "after training", "after fine-tuning", "worst client", "10th percentile", "global"]
TITLES += ["rounds to 80 %", "sent", "FLOPs", "seconds", "busiest node"]


def plain(cell: str) -> str:
    return cell.replace("**", "").replace("$\\pm$", "±").removeprefix("\\textbf{").removesuffix("}")


def parsed_markdown(text: str) -> list[list[str]]:
    """The rows of the only table, its ruler left out."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1
    assert all(re.fullmatch(r"---:?", cell.strip()) for cell in rows[1])
    return [[cell.strip() for cell in row] for row in (rows[0], *rows[2:])]


def parsed_latex(text: str) -> list[list[str]]:
    """The rows of the only tabular; braces and environments must match, and nothing special may be bare."""
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert opened == closed[::-1] == ["table", "tabular"]
    body = text.split("\n", 1)[1]  # the first line is a comment
    assert not re.search(r"(?<!\\)[%_#]", body)
    rules = re.split(r"\\(?:top|mid|bottom)rule\n", body)
    lines = [line for part in rules[1:3] for line in part.splitlines()]
    assert all(line.endswith(r" \\") for line in lines)
    rows = [re.split(r" (?<!\\)& ", line.removesuffix(r" \\")) for line in lines]
    alignment = re.search(r"\\begin{tabular}{(\w+)}", text)
    assert alignment is not None
    assert {len(row) for row in rows} == {len(alignment[1])}
    return rows


def written(name: str) -> list[list[str]]:
    write, parse = {"markdown": (markdown, parsed_markdown), "latex": (latex, parsed_latex)}[name]
    return parse(write(COMPARED))


@pytest.mark.parametrize("name", ["markdown", "latex"])
class TestFormats:
    def test_all_columns_and_methods(self, name: str) -> None:
        head, *rows = written(name)
        assert [re.sub(r" \(\\?%\)", "", h).replace("\\%", "%") for h in head] == ["method", *TITLES]
        assert [row[0] for row in rows] == [r"a\_b", "local", "dfedsam-mgs"]

    def test_the_numbers(self, name: str) -> None:
        for row, means in zip(written(name)[1:], ACCURACIES.values(), strict=True):
            percent = [100 * m for m in means]
            assert plain(row[1]) == f"{fmean(percent):.1f} ± {pstdev(percent):.1f}"
            assert plain(row[4]).startswith(f"{fmean(percent) - 4:.1f} ")
        cells = [[plain(c) for c in row] for row in written(name)[1:]]
        assert [row[7] for row in cells] == ["2.0 ± 0.0", "-", "2.0 ± 0.0"]
        assert [row[8] for row in cells] == ["2.5 MB", "0 B", "64 GB"]
        assert [row[3] for row in cells] == ["85.0 ± 0.8", "-", "-"]

    def test_the_best_of_every_column_is_bold(self, name: str) -> None:
        bold = [["**" in cell or "\\textbf" in cell for cell in row] for row in written(name)[1:]]
        won = [[i for i in range(3) if bold[i][j]] for j in range(1, len(TITLES) + 1)]
        # Nobody where only one method has the number, or all have the same.
        assert won == [[2], [2], [], [2], [2], [2], [], [1], [], [], []]


def test_equal_as_far_as_the_digits_tell() -> None:
    close = [result("a", (0.80001,)), result("b", (0.80002,)), result("c", (0.7,))]
    assert [c.best for c in Comparison(close).columns[0].cells] == [True, True, False]


def column(comparison: Comparison, title: str) -> Column:
    return next(c for c in comparison.columns if c.title == title)


def test_a_target_that_some_seeds_reach() -> None:
    some = [result("a", (0.79, 0.81)), result("b", (0.9, 0.9))]
    rounds = column(Comparison(some), "rounds to 80 %")
    assert rounds.cells[0].text == "1 of 2 seeds"
    assert column(Comparison(some, 40), "rounds to 40 %").cells[1].text == "1.0"


def lines_at(width: int) -> list[str]:
    table = results_table(COMPARED, columns_with_room(COMPARED, width))
    console = Console(width=width, record=True, file=StringIO())
    console.print(table, width=width_of(table), crop=False)
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 140])
def test_no_cell_is_cut(width: int) -> None:
    lines = lines_at(width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    assert all(cell in text for cell in ("dfedsam-mgs", "85.0 ±0.8", "90.0 ±1.6*", "71.0 ±0.8"))


def test_what_matters_least_goes_first() -> None:
    kept = [{c.title for c in columns_with_room(COMPARED, w)} for w in range(20, 150)]
    assert all(less <= more for less, more in pairwise(kept))
    assert kept[0] == {"after mixing", "after training"}
    assert kept[-1] == set(TITLES)
    at_80 = kept[80 - 20]
    assert {"after mixing", "after training", "after fine-tuning", "worst client", "sent"} <= at_80
    assert "FLOPs" not in at_80


class TestVerdict:
    def test_clear(self) -> None:
        head, *sentences = paired_test(RESULTS)
        assert "dfedsam-mgs has the highest mean of 8 clients" in head
        assert "all 3 pairs" in head
        p = "(paired test over clients, p = 0.023)"  # 3 x 2 / 2^8
        assert sentences == [f"dfedsam-mgs against {m}: better for 8 of 8 clients {p}" for m in ("a_b", "local")]

    def test_not_clear(self) -> None:
        turns = [0.8 + 0.05 * (-1) ** i for i in range(9)]
        other = [0.8 - 0.05 * (-1) ** i for i in range(9)]
        (_, sentence) = paired_test(
            [MethodRuns(m, [outcome(m, each, False)]) for m, each in (("a", turns), ("b", other))]
        )
        assert sentence == (
            "a against b: no clear difference (better for 5 of 9 clients; paired test over clients, p = 1.000)"
        )

    @pytest.mark.parametrize("clients", [1, 5])
    def test_too_few(self, clients: int) -> None:
        few = [result("a", (0.9, 0.9), clients), result("b", (0.5, 0.5), clients)]
        (sentence,) = paired_test(few)
        assert f"{clients} clients are too few" in sentence
        assert "against" not in sentence

    def test_clients_without_test_samples_do_not_count(self) -> None:
        each: list[float | None] = [0.9] * 7
        pair = [
            MethodRuns(m, [outcome(m, [None, *(None if a is None else a - less for a in each)], False)])
            for m, less in (("a", 0.0), ("b", 0.1))
        ]
        assert "better for 7 of 7 clients" in paired_test(pair)[1]

    def test_nothing_measured_or_nobody_to_compare(self) -> None:
        assert paired_test(RESULTS[:1]) == []
        unknown = [MethodRuns(m, [RunData({"seed": 0}, [], {}, {})]) for m in "ab"]
        assert paired_test(unknown)[0].startswith("0 clients are too few")


# The command


COMMAND = ("compare", "local", "fedbabu", *DATA, "--clients", "6", "--rounds", "2", "--seeds", "2", "--out", "c")


@pytest.fixture(scope="module")
def compared(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison."""
    cwd = tmp_path_factory.mktemp("compared")
    out = cli.succeed(*COMMAND, cwd=cwd).out
    assert all(word in out for word in ("2 seeds", "paired test over clients", "fine-tuning", "results: c"))
    return cwd


@pytest.mark.parametrize(("name", "parse"), [("markdown", parsed_markdown), ("latex", parsed_latex)])
def test_printed_once_more_and_nothing_else(cli: Cli, compared: Path, name: str, parse: Any) -> None:
    before = list(contents(compared))
    done = cli.succeed(*COMMAND, "--resume", "--format", name, "--target", "37.5", cwd=compared)
    head, *rows = parse(done.out.rstrip("\n"))
    assert [row[0] for row in rows] == ["local", "fedbabu"]
    assert any(h.startswith("rounds to 37.5") for h in head)
    assert done.out.lstrip()[0] in "|%"
    assert "results: c" not in done.out
    assert "results: c" in done.err
    assert list(contents(compared)) == before


def printed(cell: Element) -> str:
    """A cell of the page as the terminal prints it: the number, its first spread, the mark of the best."""
    first = next((small.text.split()[0] for small in cell.all("small") if small.text.startswith("±")), "")
    return f"{number(cell)} {first}".rstrip() + ("*" if cell.attributes.get("class") == "best" else "")


def test_terminal_and_page_show_the_same(cli: Cli, compared: Path) -> None:
    """Numbers, spreads, marks, target, verdict and protocol: two methods with two seeds each."""
    pytest.importorskip("plotly", reason="a report needs plotly: pip install 'coterie[report]'")
    out = cli.succeed(*COMMAND, "--resume", "--target", "37.5", cwd=compared).out
    page = Page(compared / "c" / "report.html")
    table, lines = page.table(), out.splitlines()
    assert list(table) == ["local", "fedbabu"]
    assert list(table["local"]) == [t.replace("80", "37.5") for t in TITLES]
    for method, cells in table.items():
        line = next(line for line in lines if line.startswith(f"{method} "))
        assert re.split(r"\s{2,}", line.strip()) == [method, *map(printed, cells.values())]
    said = page.root.one(id="s1").text.replace("\xa0", " ")
    sentences = lines[lines.index(line) + 1 : lines.index("results: c")]
    assert len(sentences) > len(TITLES)
    for sentence in sentences:
        assert sentence.strip().replace("* the best", "★ the best") in said
    cli.succeed("report", "c", "--target", "60", cwd=compared)  # another one, for the page alone
    assert "rounds to 60 %" in Page(compared / "c" / "report.html").table()["local"]


def test_the_worst_client_is_a_mean_over_seeds() -> None:
    """So that a number does not fall with every seed that is added, and it stands so in the protocol."""
    worst = column(COMPARED, "worst client")
    for r, cell in zip(RESULTS, worst.cells, strict=True):
        lowest = [100 * run.history[-1]["personal_accuracy_after_mix_worst"] for run in r.runs]
        assert cell.value == pytest.approx(fmean(lowest))
        assert cell.spread == f"{pstdev(lowest):.1f}"
    assert "Worst client: the lowest accuracy of all clients after mixing; over several seeds, the mean" in " ".join(
        COMPARED.protocol([worst], "*")
    )


def test_a_mean_is_over_all_seeds_or_none() -> None:
    """A run that lacks the number is told, not left out."""
    whole, part = result("a", (0.8, 0.9)), result("b", (0.8, 0.9))
    part.runs[0].summary["personal_accuracy"]["after_train"] = None
    cells = column(Comparison([whole, part]), "after training").cells
    assert [c.text for c in cells] == ["85.0", "1 of 2 seeds"]
    assert cells[1].value is None


def test_what_a_paired_test_needs_is_said() -> None:
    a, b = result("a", (0.8, 0.9)), result("b", (0.7, 0.8))
    other = MethodRuns("c", a.runs[:1])
    assert "same seeds" in paired_test([a, other])[0]
    cut = MethodRuns("d", [replace(b.runs[0], finished=False), b.runs[1]])
    assert "needs finished runs" in paired_test([a, cut])[0]
    assert "round 2 of a, d (unfinished)" in Comparison([a, cut]).protocol([], "*")[0]
    assert (
        "over 1 to 2 seeds; of a method with one seed, over the clients" in Comparison([a, other]).protocol([], "*")[1]
    )
