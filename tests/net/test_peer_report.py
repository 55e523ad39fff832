"""Folders of peers: one is a run of one client, several are one run of the federation, with what a simulation says."""

import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.torch import load_file

import coterie as ct
from coterie.core.errors import UserError
from coterie.data import Federation
from coterie.measure.compare import Comparison
from coterie.models.model import Model, cross_entropy
from coterie.net.peer.rows import Carried
from coterie.report import html
from coterie.report.collect import collect
from coterie.report.groups import setups
from coterie.report.record import Record
from coterie.store.folder import RESAMPLED
from coterie.store.pack import pack
from coterie.store.safetensors import save_tensors
from helpers_cli import Cli, reseal
from local_peers import participants, run_together, write_log
from pages import Element, Page

NAMES = ("site-0", "site-1", "site-2")
ROUNDS = 2
TRAINED: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch_size": 8}


class Folders(NamedTuple):
    """What three members have, and what a simulation of the same makes of it."""

    peers: list[Path]
    alone: list[Path]  # of local, each with its own samples
    simulated: ct.Run
    federation: Federation


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    home = tmp_path_factory.mktemp("members")
    fed = ct.data.federate("synthetic:size=300,classes=4", clients=3, partition="dirichlet:1.0", seed=0)
    fed = replace(fed, names=NAMES)
    method = ct.algorithms.dfedalt(topology="ring", **TRAINED)

    def model() -> Model:
        return Model(ct.models.build("mlp", fed, seed=0), cross_entropy)

    peers = participants(model, fed, method, ROUNDS, home, wait=10.0)
    run_together(peers)
    simulated = ct.fit(model().module, fed, method, rounds=ROUNDS, seed=0, engine="serial", progress=False)
    alone = [home / f"alone-{i}" for i in range(3)]
    for i, out in enumerate(alone):
        own = fed.of_clients(np.array([i]))
        ct.fit(model().module, own, ct.algorithms.local(**TRAINED), rounds=ROUNDS, out=out, progress=False)
    return Folders([p.folder for p in peers], alone, simulated, fed)


@pytest.fixture
def copied(folders: Folders, tmp_path: Path) -> list[Path]:
    """Folders that a test may change."""
    return [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in folders.peers]


def joined(*paths: Path) -> Record:
    (record,) = collect(paths).records
    return record


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    reseal(path.parent)


def comparison(*paths: Path) -> Comparison:
    collected = collect(paths)
    (setup,) = setups(collected.records)
    return Comparison(setup.methods, None, collected.notes)


def test_members_together_have_the_rows_of_a_simulation(folders: Folders) -> None:
    record = joined(*reversed(folders.peers))
    assert record.finished
    assert len(record.history) == ROUNDS
    for mine, simulated in zip(record.history, folders.simulated.history, strict=True):
        assert set(mine) == set(simulated)
        personal = {k: v for k, v in simulated.items() if k.startswith("personal_")}
        assert {k: mine[k] for k in personal} == pytest.approx(personal, abs=1e-5)  # type: ignore[literal-required]
        assert mine["train_loss"] == pytest.approx(simulated["train_loss"], rel=1e-5)
        assert (mine["flops"], mine["messages_sent"]) == (simulated["flops"], simulated["messages_sent"])
        assert mine["consensus_distance"] is None


def test_and_its_summary_and_clients(folders: Folders) -> None:
    record, simulated = joined(*folders.peers), folders.simulated
    assert record.summary["personal_accuracy"] == {
        protocol: pytest.approx(known, abs=1e-5) for protocol, known in simulated.summary["personal_accuracy"].items()
    }
    theirs = {k: v for k, v in simulated.client_summary.items() if k not in ("resampled", "accuracy", "graph")}
    assert {k: record.client_summary[k] for k in theirs} == theirs  # type: ignore[literal-required]
    assert record.client_summary["graph"] == simulated.client_summary["graph"]
    assert len(record.client_summary["resampled"]) == 3
    assert len(record.run().clients) == 3


def test_a_member_with_many_test_samples_has_fewer_draws(copied: list[Path]) -> None:
    own = load_file(copied[0] / RESAMPLED)["resampled"][:, :400].contiguous()
    save_tensors(copied[0] / RESAMPLED, {"resampled": own})
    reseal(copied[0])
    drawn = joined(*copied).client_summary["resampled"]
    assert [len(row) for row in drawn] == [400] * 3
    assert drawn[0] == own[0].tolist()


def test_rows_count_what_is_acknowledged_between_two_rounds() -> None:
    snapshots = iter({"messages_out": {"copy": n}, "bytes_out": 100, "bytes_in": 7} for n in (1, 4, 4))
    transport: Any = SimpleNamespace(snapshot=lambda: next(snapshots))
    carried = Carried(transport)
    assert [carried.since_last() for _ in range(3)] == [
        {"messages_out": 1, "bytes_out": 100, "bytes_in": 7},
        {"messages_out": 3, "bytes_out": 0, "bytes_in": 0},
        {"messages_out": 0, "bytes_out": 0, "bytes_in": 0},
    ]


def test_one_folder_is_a_run_of_one_client_and_says_who_is_missing(folders: Folders) -> None:
    found = comparison(folders.peers[1])
    assert found.methods[0].runs[0].client_summary["names"] == ["site-1"]
    assert found.notes == [
        "Federation test: all numbers are those of site-1; the folders of site-0 and site-2 are not here."
    ]
    two = comparison(*folders.peers[1:])
    assert two.notes == [
        "Federation test: all numbers are those of site-1 and site-2; the folder of site-0 is not here."
    ]
    graph = two.methods[0].runs[0].client_summary["graph"]
    assert graph is not None
    assert graph["edges"] == [[1, 0, pytest.approx(1 / 3)], [0, 1, pytest.approx(1 / 3)]]


def test_each_member_gains_against_its_own_run_alone(folders: Folders) -> None:
    """The runs of ``local`` belong to whoever has their samples, in whatever order they are named."""
    found = comparison(*folders.alone[::-1], *folders.peers)
    (gains,) = found.gains
    assert (gains.label, gains.reference) == ("dfedalt", "local")
    ends = [[collect([path]).records[0].client_summary["accuracy"]["after_mix"][0] for path in paths]
            for paths in (folders.peers, folders.alone)]  # fmt: skip
    wanted = {name: 100 * (a - b) for name, a, b in zip(NAMES, *ends, strict=True)}
    assert {gain.name: gain.difference for gain in gains.each} == pytest.approx(wanted)
    assert found.notes == []
    mine = comparison(folders.peers[2], folders.alone[2])
    assert [gain.name for gain in mine.gains[0].each] == ["site-2"]
    assert any(sentence.startswith("One client is too few") for sentence in mine.verdict)


def test_runs_alone_of_some_members_are_another_set_up(folders: Folders) -> None:
    every = setups(collect([*folders.peers, folders.alone[0]]).records)
    assert [setup.title for setup in every] == [
        "federation test, 3 clients, model mlp",
        "site-0 of federation test, model mlp",
    ]


def test_a_member_that_was_away_counts_with_its_latest_model(folders: Folders, copied: list[Path]) -> None:
    for name in ("summary.json", "clients.json"):
        (copied[1] / name).unlink()
    rows = (copied[1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied[1] / "metrics.jsonl").write_text(rows[0])
    record, collected = joined(*copied), collect(copied)
    assert not record.finished
    assert collected.notes == [
        "Federation test: of the rounds, site-1 has 1 of 2; a member counts with its latest model."
    ]
    known = [json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) for folder in copied]
    each = [row["personal_accuracy_after_mix"] for row in known]
    assert record.history[-1]["personal_accuracy_after_mix"] == pytest.approx(sum(each) / 3)
    assert record.client_summary["accuracy"]["after_mix"] == pytest.approx(each)
    sizes = folders.simulated.client_summary["test_samples"]
    assert record.client_summary["test_samples"] == sizes
    weighted = sum(n * v for n, v in zip(sizes, each, strict=True)) / sum(sizes)
    assert record.history[-1]["personal_accuracy_after_mix_weighted"] == pytest.approx(weighted)
    assert record.history[-1]["messages_sent"] < record.history[0]["messages_sent"]


def test_undefined_values_are_counted_and_left_out(folders: Folders, copied: list[Path]) -> None:
    path = copied[0] / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row |= {k: None for k in row if k.startswith("personal_accuracy_after_mix")}
        row["personal_accuracy_after_mix_undefined"] = 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (copied[0] / "summary.json").unlink()
    record = joined(*copied)
    assert record.history[-1]["personal_accuracy_after_mix_undefined"] == 1  # type: ignore[typeddict-item]
    others = [joined(path).history[-1]["personal_accuracy_after_mix"] for path in copied[1:]]
    assert record.history[-1]["personal_accuracy_after_mix"] == pytest.approx(sum(filter(None, others)) / 2)
    assert record.client_summary["accuracy"]["after_mix"][0] is None


def test_two_folders_of_one_member_are_refused(folders: Folders, copied: list[Path]) -> None:
    with pytest.raises(UserError, match="are both of site-0 in the federation test: give one of them"):
        collect([*folders.peers, copied[0]])
    assert len(collect([*folders.peers, folders.peers[0]]).records) == 1  # the same folder twice is one


def test_federations_that_share_a_name_alone_are_refused(copied: list[Path]) -> None:
    settings = json.loads((copied[1] / "config.json").read_text())["settings"]
    change(copied[1] / "config.json", settings={**settings, "lr": 0.5}, rounds=7)
    with pytest.raises(UserError, match=r"\(rounds: 2 and 7; settings\.lr: 0\.1 and 0\.5\): give folders of one fed"):
        collect(copied)
    peer = json.loads((copied[1] / "config.json").read_text())["peer"]
    change(copied[1] / "config.json", peer={**peer, "federation": "another"})
    assert len(collect(copied).records) == 2


def test_the_page_names_the_members(folders: Folders, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a report needs plotly")
    (tmp_path / "page.html").write_text(html([*folders.peers, *folders.alone]), encoding="utf-8")
    page = Page(tmp_path / "page.html")
    assert page.root.one("h1").text.strip() == "federation test, 3 clients: is dfedalt better than local?"
    assert {"s1-gains", "s1-clients", "s1-labels", "s1-topology"} <= set(page.charts)
    (heat,) = page.charts["s1-labels"]["views"].values()
    assert heat["data"][0]["x"] == list(NAMES)
    assert set(page.table()) == {"dfedalt", "local"}
    for name in NAMES:
        assert f"# the part of {name}, who runs it with coterie peer --config peer.toml" in page.root.text


def leave_out(folder: Path, round: int) -> None:
    """Make a row that of a round which the others ran without the member."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = {k: None if v is None or k.startswith("personal_") else 0 for k, v in rows[round - 1].items()}
    rows[round - 1] = {**kept, "round": round, "train_loss": None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reseal(folder)


def test_the_page_tells_who_took_part(copied: list[Path], tmp_path: Path) -> None:
    """Of the third member there is no folder; the second was started again after its first round, and left out one."""
    pytest.importorskip("plotly", reason="a report needs plotly")
    leave_out(copied[1], 1)
    write_log(copied[0], {1: ["site-1", "site-2"], 2: ["site-2"]})
    write_log(copied[1], {2: []}, begun=(1, 1))
    with (copied[1] / "log.jsonl").open("a") as log:
        log.write('{"event": "round", "round": "three"}\n[1]\n{"event": "rou')  # nobody's events, and half a line
    (tmp_path / "page.html").write_text(html(copied[:2]), encoding="utf-8")
    page = Page(tmp_path / "page.html")
    (table,) = [s.one("table") for s in page.root.all("section") if s.attributes.get("class") == "members"]
    rows = [[cell.text for cell in row.children if isinstance(cell, Element)] for row in table.one("tbody").all("tr")]
    told = {row[0]: row[3:7] for row in rows}
    assert told == {
        "site-0": ["2", "0", "2site-2 2site-1 1", "0"],
        "site-1": ["1", "11", "0", "1site-0 1"],
        "site-2its folder is not here": ["-", "-", "-", "2site-0 2"],
    }
    assert [row[7] for row in rows] == ["0", "1", "-"]
    (figure,) = page.charts["s1-attendance"]["views"].values()
    bars = {trace["name"]: trace.get("customdata") for trace in figure["data"]}
    assert bars["left out"] == ["<b>site-1</b><br>round 1: left out"]
    assert bars["without a neighbor"][0] == "<b>site-0</b><br>round 1: without site-1, site-2"
    lines = page.charts["s1-members"]["views"]
    assert [trace["y"][0] is None for trace in lines["after aggregation"]["data"]] == [False, True]  # a gap, not 0
    assert [trace["y"] for trace in lines["mass"]["data"]] == [[1, 0.5], [None, 0.5]]


def test_without_logs_the_page_has_what_rows_tell(folders: Folders, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a report needs plotly")
    (tmp_path / "page.html").write_text(html(folders.peers), encoding="utf-8")
    page = Page(tmp_path / "page.html")
    (figure,) = page.charts["s1-attendance"]["views"].values()
    assert [trace["name"] for trace in figure["data"]] == ["not in the log any more"]
    assert "mass" not in page.charts["s1-members"]["views"]


def test_links_have_the_names_of_members(folders: Folders, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a report needs plotly")
    (tmp_path / "page.html").write_text(html(folders.peers), encoding="utf-8")
    (figure,) = Page(tmp_path / "page.html").charts["s1-topology"]["views"].values()
    links = [text for trace in figure["data"] for text in trace.get("text", ()) if "→" in text]
    assert links[0] == "site-0 → site-1: weight 0.3333<br>site-1 → site-0: weight 0.3333"


def test_a_model_of_a_form_of_its_own_is_loaded(folders: Folders, tmp_path: Path) -> None:
    """The second member's rank is that of the second of three, not that of a client alone."""
    method = ct.algorithms.pfedlmt(topology="ring", capacities="1-0.5-0.25", keep_layers=1, **TRAINED)
    fed = folders.federation
    run_together(participants(
        lambda: Model(ct.models.build("mlp", fed, seed=0), cross_entropy), fed, method, 1, tmp_path, wait=10.0
    ))  # fmt: skip
    sizes = [ct.load(tmp_path / name).clients[0].module()(fed.x[:2]).shape for name in NAMES]
    assert sizes == [(2, 4)] * 3
    file = ct.export.save(tmp_path / "site-1", "site-1", tmp_path / "mine.safetensors", form="factorized")
    own = ct.load(tmp_path / "site-1").clients[0].module()
    assert (ct.export.load(file)(fed.x) == own(fed.x)).all()
    assert collect([tmp_path / name for name in NAMES]).records[0].client_summary["parameters"][1] > 0


COMMANDS = {
    "report": (("report", "site-0", "--format", "table"), 0, "Federation test: all numbers are those of site-0"),
    "together": (("report", "site-0", "site-1", "site-2", "--format", "json"), 0, '"federation test, 3 clients"'),
    "latex": (("report", "site-0", "site-2", "--format", "latex"), 0, "federation test, 2 clients"),
    "watch": (("watch", "site-0", "--once"), 0, "finished, round 2/2"),
    "number": (("export", "site-0", "--client", "0", "--out", "a.safetensors"), 0, "a.safetensors"),
    "name": (("export", "site-0", "--client", "site-0", "--out", "b.safetensors"), 0, "b.safetensors"),
    "resume": (("run", "site-0", "--resume"), 2, "site-0 in the federation test.*coterie peer --config peer.toml"),
    "again": (("run", "site-0/config.json"), 2, "site-0 in the federation test.*coterie peer --config peer.toml"),
}


def test_commands_take_a_member_s_folder(cli: Cli, copied: list[Path]) -> None:
    for words, status, said in COMMANDS.values():
        done = cli.run(*words, cwd=copied[0].parent)
        assert done.status == status, (words, done)
        assert re.search(said, done.err if status else done.out), (words, done)
        assert len(done.sentences) == (1 if status else 0)


def test_an_unfinished_folder_names_the_command_that_goes_on(copied: list[Path]) -> None:
    (copied[0] / "summary.json").unlink()
    with pytest.raises(UserError, match=r"not finished: continue it with `coterie peer --config peer\.toml`"):
        ct.load(copied[0])


@pytest.mark.parametrize("finished", [True, False])
def test_a_pack_has_messages_of_others_only_where_they_are_needed_to_go_on(copied: list[Path], finished: bool) -> None:
    folder = copied[0]
    (folder / "inbox" / "transfer-000002-0-site-1.safetensors").write_bytes(b"their share")
    if not finished:
        (folder / "summary.json").unlink()
    pack([folder], folder.parent / "a.tar")
    with tarfile.open(folder.parent / "a.tar") as archive:
        packed = {Path(name).parent.name for name in archive.getnames()}
    assert ("inbox" in packed) == (not finished)
    assert "clients" not in packed
