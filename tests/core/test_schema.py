"""The columns of a run's files are those of their types, no more and no fewer."""

import json
import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from torch import nn

import coterie as ct
from coterie.core.schema import (
    ClientSummary,
    Config,
    DataOrigin,
    MeasureName,
    ModelOrigin,
    Normalization,
    Row,
    Summary,
)
from coterie.export.formats import FORMATS
from coterie.measure import CHANGES, MEASURES
from coterie.measure.convergence import BY_CLIENT
from coterie.store import RunFolder
from coterie.training.settings import RunSettings, options

OPEN = (DataOrigin, ModelOrigin, Normalization)  # options of a source, a model or a transform are keys as well
ONE = {"epochs": 1, "batch_size": 16, "lr": 0.01}
TEXT = "text:length=8,rows=4,vocabulary=12"
SMALL = "transformer-mlm:layers=1,dim=8,heads=2,hidden=8"


def runs(folder: Path) -> dict[str, Path]:
    """A server on a table, peers, push-sum with a module of one's own and, on text, layers of low rank, fine-tuned.

    Together they record everything.
    """
    text, table = folder / "text.txt", folder / "table.csv"
    table.write_text("site,a,b,y\n" + "".join(f"{i % 3},{i},{'uv'[i % 2]},{i % 4}\n" for i in range(48)))
    text.write_text("the cat sat on the mat and the dog lay on the rug while it rained . " * 20)
    asked: dict[str, tuple[str, str, dict[str, Any], list[Any]]] = {
        "fedavg": (f"csv:{table},target=y,client=site", "logreg", {"participation": 0.5}, []),
        "dfedalt": (
            "synthetic:size=80,classes=3",
            "mlp",
            {"topology": "ring"},
            ["gradients", "sharpness", "train-accuracy", "own-train", "constants", "deltas", "clients"],
        ),
        "dfedpgp": ("synthetic:size=80,classes=3", "mlp", {"topology": "random-push:1"}, ["mass"]),
        "fedlmt": (f"{TEXT},path={text}", SMALL, {"finetune_epochs": 1}, ["perplexity", "singular-values"]),
    }
    for method, (source, model, settings, record) in asked.items():
        fed = ct.data.federate(source, clients=3, partition="natural" if "csv" in source else "iid", seed=0)
        module = ct.models.build(model, fed)
        ct.fit(
            nn.Sequential(module) if method == "dfedpgp" else module,  # then it is one that Coterie did not build
            fed,
            ct.algorithms.build(method, **ONE, **settings),
            rounds=2,
            evaluate_every=2,
            record=record,
            holdout_clients=1 if method == "fedavg" else 0,
            **(
                {"validation": 0.2, "select": "best-validation-per-client", "patience": 3, "stop_at": 1000.0}
                if method == "fedavg"
                else {}
            ),
            out=folder / method,
            progress=False,
        )
    assert {name for row in asked.values() for name in row[3]} == set(get_args(MeasureName))
    return {method: folder / method for method in asked}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of all runs."""
    return runs(tmp_path_factory.mktemp("runs"))


def fits(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON is of a type."""
    kind, members = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind is Literal:
        return value in members
    if kind in (Union, types.UnionType):
        return any(fits(value, member) for member in members)
    if is_typeddict(hint):
        return isinstance(value, dict) and not problems(value, hint)
    if kind is dict:
        return isinstance(value, dict) and all(fits(v, members[1]) for v in value.values())
    if kind is list:
        return isinstance(value, list) and all(fits(v, members[0]) for v in value)
    if kind is tuple:
        return isinstance(value, list) and len(value) == len(members) and all(map(fits, value, members))
    return isinstance(value, int | float) if hint is float else type(value) is hint


def problems(value: dict[str, Any], hint: Any) -> list[str]:
    """The keys that are missing, that the type has not, or whose values are of another type."""
    hints = get_type_hints(hint)
    missing = [f"{k} is missing" for k in hint.__required_keys__ - value.keys()]
    unknown = [f"{k} has no type" for k in value.keys() - hints.keys() if hint not in OPEN]
    return missing + unknown + [f"{k} is {v!r}" for k, v in value.items() if k in hints and not fits(v, hints[k])]


def read(folder: Path, name: str) -> Any:
    """A JSON file of a run."""
    return json.loads((folder / name).read_text())


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows, without the columns whose names are counted."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    block = re.compile(r"smallest_singular_value_block_\d+")
    assert all(isinstance(v, float) for row in rows for k, v in row.items() if block.fullmatch(k))
    return [{k: v for k, v in row.items() if not block.fullmatch(k)} for row in rows]


@pytest.mark.parametrize("method", ["fedavg", "dfedalt", "dfedpgp", "fedlmt"])
def test_files_have_the_keys_of_their_types(folders: dict[str, Path], method: str) -> None:
    folder = folders[method]
    assert [problems(row, Row) for row in rows_of(folder)] == [[], []]
    assert problems(read(folder, "summary.json"), Summary) == []
    assert problems(read(folder, "config.json"), Config) == []
    clients = read(folder, "clients.json")
    assert problems(clients, ClientSummary) == []
    assert "resampled" in RunFolder(folder).client_summary()
    some = {"names", "newcomers", "rounds"}  # of data with names, of runs with newcomers or with a choice
    some |= {"right"} if method == "fedlmt" else set()  # many tokens of a sample are neither right nor wrong
    elsewhere = {"resampled"}  # a file of its own
    assert clients.keys() == ClientSummary.__annotations__.keys() - elsewhere - (set() if method == "fedavg" else some)


def test_types_have_no_key_that_no_run_has(folders: dict[str, Path]) -> None:
    assert {k for folder in folders.values() for row in rows_of(folder) for k in row} == Row.__annotations__.keys()
    for name, hint in (("summary.json", Summary), ("config.json", Config)):
        found = [read(folder, name).keys() for folder in folders.values()]
        assert set().union(*found) == get_type_hints(hint).keys() - {
            "metrics",  # of a run with another metric than accuracy
            "peer",  # of a participant's own folder
            "sample_type",  # of samples with several inputs
            "in_one_place",  # of pooled
        }
        assert all(keys >= hint.__required_keys__ for keys in found)
    graphs = [read(folder, "clients.json")["graph"] for folder in folders.values()]
    assert [graph is None for graph in graphs] == [True, False, False, True]


def test_every_word_of_a_type_has_its_function() -> None:
    assert {*MEASURES, *CHANGES, *BY_CLIENT} == set(get_args(MeasureName))
    assert FORMATS.keys() == set(get_args(ct.export.FormatName))


def test_a_configuration_has_a_type_for_every_option_that_it_keeps() -> None:
    """What is kept in any case is required, what is kept where it is unusual is not."""
    kept = {fact: {f.name for f in options("saved") if f.metadata["saved"] == fact} for fact in ("always", "unusual")}
    assert kept["always"] <= Config.__required_keys__
    assert kept["unusual"] <= Config.__optional_keys__
    assert RunSettings(rounds=3).saved.keys() == kept["always"]
    changed = RunSettings(rounds=3, select="best-test", validation=0.5, patience=2, stop_at=1, holdout_clients=1)
    assert changed.saved.keys() == kept["always"] | kept["unusual"]
    assert RunSettings.of({**changed.saved, "engine": "serial"}).saved == changed.saved  # type: ignore[arg-type,typeddict-item]


def test_a_wrong_file_is_noticed() -> None:
    """Or the tests above could not fail."""
    graph = {"name": "ring", "fixed": True, "stochastic": "doubly", "round": 1, "messages": 6, "edges": [[0, 1, 0.5]]}
    assert problems({"graph": graph}, ClientSummary) == []
    assert problems({"graph": {**graph, "stochastic": "fully"}, "seed": 0}, ClientSummary) == [
        "seed has no type",
        f"graph is { ({**graph, 'stochastic': 'fully'})!r}",
    ]
