"""Tables as text: LaTeX that compiles, chosen columns, and methods by data sets from several comparisons."""

import re
from pathlib import Path

import pytest

from coterie.report.texts import printed_name, tex
from helpers_cli import DATA, Cli

pytest.importorskip("plotly", reason="a comparison leaves a report: pip install 'coterie[report]'")

TINY = (*DATA, "--model", "mlp", "--clients", "3", "--rounds", "2", "--set", "steps=1")


@pytest.fixture(scope="module")
def folder(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small comparisons on data of different difficulty; one method is in the first alone."""
    cwd = tmp_path_factory.mktemp("texts")
    cli.succeed("compare", "local", "fedavg-p", "dfedalt", *TINY, "--seeds", "2", "--out", "c1", cwd=cwd)
    noisy = ("--data", "synthetic:size=400,classes=4,noise=3", *TINY[2:])
    cli.succeed("compare", "local", "dfedalt", *noisy, "--seeds", "2", "--out", "c2", cwd=cwd)
    return cwd


def read_latex(text: str) -> tuple[list[list[str]], str, str]:
    """Read a table as LaTeX would: rows of cells, caption and label. What would stop LaTeX stops this."""
    code = [re.sub(r"(?<!\\)%.*", "", line) for line in text.splitlines()]
    body = "\n".join(line for line in code if line)
    opened: list[str] = []
    for verb, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if verb == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    bare = re.sub(r"\\[&%$#_{}]", "", body)
    assert bare.count("{") == bare.count("}")
    assert all(line.count("$") % 2 == 0 for line in bare.splitlines())
    outside = re.sub(r"\$[^$]*\$", "", bare)
    assert not re.search(r"[#_^~<>±]", outside.replace("tab:", ""))
    known = {"begin", "end", "centering", "small", "toprule", "midrule", "bottomrule", "caption", "label", "textbf"}
    assert set(re.findall(r"\\([a-z]+)", outside.replace(r"\\", " "))) <= {*known, "shortstack"}
    (columns,) = re.findall(r"\\begin\{tabular\}\{(l(?:r)*)\}", body)
    inside = body[body.index(r"\toprule") : body.index(r"\bottomrule")]
    inside = re.sub(r"\\shortstack\[r\]\{(.*?)\\\\(.*?)\}", r"\1 \2", inside)
    lines = [line.removesuffix(r" \\") for line in inside.splitlines() if line.endswith(r" \\")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)&", line)] for line in lines]
    assert all(len(row) == len(columns) for row in rows)
    (caption,), (label,) = re.findall(r"\\caption\{(.*)\}", body), re.findall(r"\\label\{(.*)\}", body)
    return rows, caption, label


def test_a_paper_gets_names_a_label_and_a_short_caption(cli: Cli, folder: Path) -> None:
    chosen = ("--format", "latex", "--columns", "worst client,AFTER-aggregation,sent")
    text = cli.succeed("report", "c1", *chosen, cwd=folder).out
    rows, caption, label = read_latex(text)
    assert rows[0] == ["Method", r"worst client (\%)", r"after aggregation (\%)", "sent"]
    assert [row[0] for row in rows[1:]] == ["Local", "FedAvg-P", "DFedAlt"]
    assert rows[1][3] == r"\textbf{0 B}"
    assert label == "tab:synthetic-size-400-classes-4-3-clients"
    assert len(caption) < 200
    assert r"over 2 seeds" in caption
    assert "seconds" not in text


def test_unless_columns_are_named_the_table_fits_into_one_of_a_paper(cli: Cli, folder: Path) -> None:
    """Method, mean, worst client and sent, narrow headings, and few comments, which begin with the answer."""
    text = cli.succeed("report", "c1", "--format", "latex", cwd=folder).out
    rows, _, _ = read_latex(text)
    assert rows[0] == ["Method", r"after aggregation (\%)", r"worst client (\%)", "sent"]
    plain = [[re.sub(r"\\textbf\{(.*)\}", r"\1", cell).replace(r"$\pm$", "±") for cell in row] for row in rows[1:]]
    assert sum(max(map(len, column)) for column in zip(*plain, strict=True)) <= 40
    assert re.findall(r"shortstack\[r\]\{(.*?)\}", text) == [r"after\\aggregation (\%)", r"worst\\client (\%)"]
    comments = [line[2:] for line in text.splitlines() if line.startswith("% ")]
    assert len(comments) <= 5
    above = cli.succeed("report", "c1", "--format", "markdown", cwd=folder).out.replace("\\", "").split("\n| method")[0]
    assert "\n\n".join(comments[1:]) == above.strip()


def test_compare_prints_the_same_table(cli: Cli, folder: Path) -> None:
    command = ("compare", "local", "dfedalt", "--data", "synthetic:size=400,classes=4,noise=3", *TINY[2:])
    again = cli.succeed(*command, "--seeds", "2", "--out", "c2", "--resume", "--format", "latex", cwd=folder).out
    assert read_latex(again) == read_latex(cli.succeed("report", "c2", "--format", "latex", cwd=folder).out)


def test_methods_by_data_sets(cli: Cli, folder: Path) -> None:
    """Every cell is that of the comparison it comes from, and a method that was not run there has none."""
    text = cli.succeed("report", "c1", "c2", "--format", "latex", "--columns", "global", cwd=folder).out
    rows, caption, label = read_latex(text)
    names = [r"synthetic (size=400, classes=4)", r"synthetic (size=400, classes=4, noise=3.0)"]
    assert rows[0] == ["Method", *names]
    assert (caption.split(",")[0], label) == ("Global", "tab:global-by-data-set")
    for place, name in enumerate(("c1", "c2"), 1):
        alone, _, _ = read_latex(
            cli.succeed("report", name, "--format", "latex", "--columns", "global", cwd=folder).out
        )
        known = {row[0]: row[1] for row in alone[1:]}
        assert {row[0]: row[place] for row in rows[1:] if row[place] != "-"} == known
    assert rows[2][2] == "-"
    printed = cli.succeed("report", "c1", "c2", "--format", "table", cwd=folder).out
    above, table = printed.split("\nmethod", maxsplit=1)
    assert table.splitlines()[2].startswith("local")
    assert "After aggregation, personal accuracy, %, by data set" in printed
    each = [cli.succeed("report", one, "--format", "table", cwd=folder).out for one in ("c1", "c2")]
    unequal = [next(line for line in out.splitlines() if line.startswith("Unequal work: ")) for out in each]
    told = [f"{name}: {said}" for name, said in zip(names, unequal, strict=True)]
    assert above.splitlines() == told
    assert text.split("\\end{table}")[1].replace("% ", "").splitlines()[1:3] == told
    markdown = cli.succeed("report", "c1", "c2", "--format", "markdown", cwd=folder).out
    assert markdown.replace("\\", "").startswith("\n\n".join(told))


def test_what_is_unequal_on_several_data_sets_is_said_once(cli: Cli, tmp_path: Path) -> None:
    for size in ("40", "50"):
        data = ("--data", f"synthetic:size={size},classes=2", "--model", "logreg", "--clients", "2", "--rounds", "1")
        cli.succeed("compare", "fedper@epochs=1", "local", *data, "--out", size, cwd=tmp_path)
    first = cli.succeed("report", "40", "50", "--format", "table", cwd=tmp_path).out.splitlines()[0]
    assert re.fullmatch(r"synthetic \(size=40.*\), synthetic \(size=50.*\): Unequal work: epochs 1 \(fedper@.*", first)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("c1 --format latex --columns wrost", ("unknown column 'wrost'", "worst client")),
        ("c1 --format latex --columns a", ("unknown column 'a'", "after aggregation, after local training")),
        ("c1 c2 --format latex --columns global,sent", ("2 data sets has one number", "global, sent")),
        ("c1 --columns global", ("the page has all columns", "--format")),
        ("c1 --format latex --out t.tex", ("--out is for the page", "> FILE")),
        ("c1 --format pdf", ("unknown format 'pdf'", "csv, html, json, latex, markdown, table")),
    ],
)
def test_what_is_refused(cli: Cli, folder: Path, typed: str, told: tuple[str, ...]) -> None:
    cli.refuse("report", *typed.split(), cwd=folder, names=told)


def test_names_and_signs() -> None:
    assert [printed_name(n) for n in ("dfedsam-mgs", "local", "fedrod lr=0.1 (2)", "mine:net")] == [
        "DFedSAM-MGS", "Local", "Fed-RoD lr=0.1 (2)", "mine:net",
    ]  # fmt: skip
    assert tex("50 % of a_b & {c} ±1 <2") == r"50 \% of a\_b \& \{c\} $\pm$1 $<$2"
