"""A few sites, each with its own samples and its own name, from the file to the verdict."""

import json
import shutil
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import coterie as ct
from coterie.core.clients import in_file_name
from coterie.measure.compare import MethodRuns, RunData
from coterie.measure.compare.sites import SiteTests, site_pairs, site_tests
from coterie.measure.paired import holm, sign_flip
from helpers_cli import Cli

SITES = {"mayo": 24, "nice": 16, "oslo": 12, "pisa": 8}  # training samples; half as many for testing

METHODS = ["local", "fedavg", "fedper"]


@cache
def arrays() -> dict[str, Any]:
    """Four sites that disagree on what the classes are called."""
    draw, found = np.random.default_rng(0), {}
    for part, share in (("", 1), ("test_", 2)):
        owner = np.repeat(list(SITES), [n // share for n in SITES.values()])
        y = np.arange(len(owner)) % 3
        x = draw.normal(size=(len(owner), 4)).astype(np.float32) / 2
        x[np.arange(len(y)), (y + (owner == "pisa")) % 3] += 1
        found |= {f"{part}x": x, f"{part}y": y, f"{part}client": owner}
    return found


def write(folder: Path, *left_out: str) -> str:
    np.savez(folder / "sites.npz", **{k: v for k, v in arrays().items() if k not in left_out})
    return "npz:sites.npz"


@pytest.fixture(scope="module")
def compared(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which three methods were compared at four sites."""
    folder = tmp_path_factory.mktemp("sites")
    typed = ("--data", write(folder), "--partition", "natural", "--model", "logreg", "--rounds", "2", "--seeds", "2")
    done = cli.succeed("compare", *METHODS, *typed, "--out", "a", cwd=folder)
    (folder / "said").write_text(done.out)
    return folder


def test_a_comparison_asks_the_data_how_many_clients_there_are(compared: Path) -> None:
    assert "mean over all 4 clients" in (compared / "said").read_text()


def test_test_samples_that_nobody_is_named_for_are_not_dealt_out(cli: Cli, tmp_path: Path) -> None:
    data = write(tmp_path, "test_client")
    for command in (("run", "fedavg"), ("compare", "local", "fedavg")):
        typed = (*command, "--data", data, "--partition", "natural", "--rounds", "1")
        cli.refuse(*typed, cwd=tmp_path, names=("not whose the test samples are", "save test_client beside test_x"))
    assert not (tmp_path / "runs").exists()
    cli.succeed("run", "fedavg", "--data", data, "--partition", "iid", "--clients", "2", "--rounds", "1", cwd=tmp_path)


def test_a_test_table_without_the_column_of_sites_is_refused(cli: Cli, tmp_path: Path) -> None:
    rows = "\n".join(f"{i / 7:.3f},{'ab'[i % 2]},{('mayo', 'nice')[i % 3 > 0]}" for i in range(24))
    (tmp_path / "train.csv").write_text(f"age,kind,site\n{rows}\n")
    (tmp_path / "test.csv").write_text("age,kind\n1,a\n2,b\n")
    data = "csv:train.csv,target=kind,client=site,test-file=test.csv"
    cli.refuse("run", "fedavg", "--data", data, cwd=tmp_path, names=("test.csv has no column 'site'",))


def test_test_images_without_folders_of_clients_are_refused(cli: Cli, tmp_path: Path) -> None:
    for folder in ("train/mayo/cat", "train/mayo/dog", "train/nice/cat", "test/cat", "test/dog"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(np.full((4, 4), 40 * i, np.uint8)).save(tmp_path / "images" / folder / f"{i}.png")
    typed = ("--data", "image-folder:images,clients-by=folder", "--partition", "natural")
    names = ("test/cat holds images, and nobody knows whose they are", "images/test/CLIENT/cat")
    cli.refuse("run", "fedavg", *typed, cwd=tmp_path, names=names)


def test_sites_are_exported_by_name(cli: Cli, compared: Path) -> None:
    done = cli.succeed("export", "a/fedper-seed0", "--client", "nice", "--out", "nice.safetensors", cwd=compared)
    assert done.out.splitlines() == ["nice of a/fedper-seed0 is in nice.safetensors"]
    cli.succeed("export", "a/fedper-seed0", "--client", "NICE", "--out", "one.safetensors", cwd=compared)
    assert (compared / "nice.safetensors").read_bytes() == (compared / "one.safetensors").read_bytes()
    with safe_open(compared / "nice.safetensors", "pt") as file:
        assert (file.metadata()["client"], file.metadata()["name"]) == ("1", "nice")
    cli.succeed("export", "a/fedper-seed0", "--client", "all", "--out", "all", cwd=compared)
    assert {path.name for path in (compared / "all").iterdir()} == {
        f"client-000{i}-{name}.safetensors" for i, name in enumerate(SITES)
    }
    done = cli.succeed("export", "a/fedper-seed0", "--client", "1", "--out", "two.safetensors", cwd=compared)
    assert done.out.splitlines() == ["nice of a/fedper-seed0 is in two.safetensors"]
    names = ("there is no client rome: choose one of mayo, nice, oslo, pisa, or a number from 0 to 3, or all",)
    cli.refuse("export", "a/fedper-seed0", "--client", "rome", "--out", "x.safetensors", cwd=compared, names=names)


def test_sites_are_found_by_name_in_python_and_in_the_folder(compared: Path, tmp_path: Path) -> None:
    run = ct.load(compared / "a/fedper-seed0")
    assert run.clients["nice"] is run.clients["NICE"] is run.clients[1]
    assert run.clients[-1:] == [run.clients["pisa"]]
    with pytest.raises(ct.UserError, match="there is no client rome: choose one of mayo, nice, oslo, pisa"):
        run.clients["rome"]
    files = {path.name for path in (compared / "a/fedper-seed0/clients").iterdir()}
    assert files == {f"client-000{i}-{name}.safetensors" for i, name in enumerate(SITES)}
    shutil.copytree(compared / "a/fedper-seed0", tmp_path / "packed", ignore=shutil.ignore_patterns("clients"))
    with pytest.raises(ct.UserError, match="no model of nice here: coterie pack"):
        ct.load(tmp_path / "packed").clients["nice"]


def test_a_long_name_of_a_site_fits_into_a_file_name() -> None:
    assert len(in_file_name(["\N{SNOWMAN}ほ" * 100], 0).encode()) < 100


def test_sentences_name_the_site(cli: Cli, tmp_path: Path) -> None:
    """Who diverges, who holds what is no number, and who has too few samples to give some away."""
    given = arrays()
    typed = ("--data", write(tmp_path), "--partition", "natural", "--model", "logreg", "--rounds", "2", "--quiet")
    names = ("of mayo is not finite any more in round 1",)
    cli.refuse("run", "fedavg", *typed, "--set", "lr=1e38", cwd=tmp_path, names=names)
    wrong = given["x"].copy()
    wrong[given["client"] == "oslo"] = np.nan
    np.savez(tmp_path / "sites.npz", **{**given, "x": wrong})
    cli.refuse("run", "fedavg", *typed, cwd=tmp_path, names=("the train samples (oslo) contain NaN",))
    few = np.r_[np.flatnonzero(given["client"] != "pisa"), np.flatnonzero(given["client"] == "pisa")[:1]]
    kept = {k: v if k.startswith("test") else v[few] for k, v in given.items()}
    np.savez(tmp_path / "sites.npz", **kept)
    done = cli.succeed("run", "fedavg", *typed, "--validation", "0.2", cwd=tmp_path)
    assert "pisa has fewer than" in done.err


def test_names_in_python() -> None:
    pair = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    fed = ct.data.from_tensors([pair] * 2, [pair] * 2, names=["mayo", "nice"])
    assert fed.names == ("mayo", "nice")
    for names, said in ((["mayo"], "2 clients and 1 names"), (["mayo", "mayo"], "two clients are called mayo")):
        with pytest.raises(ct.UserError, match=said):
            ct.data.from_tensors([pair] * 2, [pair] * 2, names=names)
    other = torch.zeros(4, 3), pair[1]
    with pytest.raises(ct.UserError, match=r"train samples of nice are .* but those of mayo"):
        ct.data.from_tensors([pair, other], [pair] * 2, names=["mayo", "nice"])


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_with_few_sites_their_own_test_samples_decide(compared: Path) -> None:
    """McNemar's test anew from what each run says is right, site by site, corrected for all 4 x 3 comparisons."""
    right = {m: [read(compared / f"a/{m}-seed{s}/clients.json")["right"] for s in (0, 1)] for m in METHODS}
    saved = {entry["method"]: entry.get("sites") for entry in read(compared / "a/compare.json")}
    (best,) = (method for method, sites in saved.items() if sites)
    raw: dict[tuple[str, str, int], float] = {}
    for one, other in combinations(METHODS, 2):
        for site in range(4):
            pairs = [zip(right[one][s][site], right[other][s][site], strict=True) for s in (0, 1)]
            apart = np.sum([[int(a) - int(b) for a, b in each] for each in pairs], axis=0)
            raw[one, other, site] = sign_flip(apart[apart != 0].astype(float)) if apart.any() else 1.0
    expected = dict(zip(raw, holm([*raw.values()]), strict=True))
    assert len(saved[best]) == 8
    for told in saved[best]:
        pair = tuple(sorted((best, told["against"]), key=METHODS.index))
        assert told["p"] == pytest.approx(expected[pair[0], pair[1], told["client"]])
        assert told["name"] == list(SITES)[told["client"]]
        assert told["verdict"] == ("unclear" if told["p"] >= 0.05 else "better" if told["difference"] > 0 else "worse")
        assert told["low"] <= told["difference"] <= told["high"]


def test_the_sentences_and_the_page_name_the_sites(compared: Path) -> None:
    said = (compared / "said").read_text()
    assert "4 clients are too few for a test over clients: the test samples of each decide" in said
    assert "exact sign-flip test of the right answers of 2 seeds, two-sided, Holm-corrected" in said
    assert "too few for a paired test" not in said
    page = (compared / "a/report.html").read_text()
    assert all(name in page for name in SITES)
    assert "4 clients are too few for a test over clients" in page


def test_what_is_kept_of_the_answers_is_what_was_measured(compared: Path) -> None:
    """The share of right answers is the accuracy, and the weighted mean is that of all samples together."""
    for method in METHODS:
        clients, summary = (read(compared / f"a/{method}-seed0/{name}.json") for name in ("clients", "summary"))
        hits = [text.count("1") for text in clients["right"]]
        assert [n / len(t) for n, t in zip(hits, clients["right"], strict=True)] == clients["accuracy"]["after_mix"]
        weighted = sum(hits) / sum(clients["test_samples"])
        assert summary["personal_accuracy"]["after_mix"]["weighted"] == pytest.approx(weighted)
        lines = (compared / f"a/{method}-seed0/metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["personal_accuracy_after_mix_weighted"] == pytest.approx(weighted)
        assert weighted != pytest.approx(summary["personal_accuracy"]["after_mix"]["final"], abs=1e-4)
    assert "weighted" in (compared / "a/report.html").read_text()


def site_runs(label: str, right: list[str], **changed: Any) -> MethodRuns:
    """Return one run of a method, as its files tell it; the draws are the accuracy itself."""
    share = [text.count("1") / len(text) for text in right]
    clients: Any = {"accuracy": {"after_mix": share}, "resampled": [[v, v] for v in share], "right": right, **changed}
    clients["train_samples"] = [8] * len(right)
    config: Any = {"seed": 0, "fingerprints": {"data": "d"}, "data": {"clients": len(right)}}
    return MethodRuns(label, [RunData(config, [], {}, clients)])  # type: ignore[typeddict-item]


def sites_of(*methods: MethodRuns) -> list[SiteTests]:
    """Return the first method against the others."""
    return site_tests(methods, site_pairs(methods), 0)


def test_a_site_that_gains_is_told_so() -> None:
    good, bad, even = "1" * 20, "0" * 12 + "1" * 8, "10" * 10
    (found,) = sites_of(site_runs("a", [good, bad, even]), site_runs("b", [bad, good, even]))
    assert [gain.verdict for gain in found.each] == ["helps", "harms", "unclear"]
    assert found.each[0].p == pytest.approx(3 * 2 / 2**12)
    assert found.said == (
        "better for client 0 (+60, p = 0.0015); worse for client 1 (-60, p = 0.0015); tie for client 2"
    )
    (apart,) = sites_of(site_runs("a", [good]), site_runs("b", [bad], names=["mayo"]))
    assert apart.each[0].verdict == "helps"


def test_other_metrics_are_told_by_intervals_and_many_clients_not_at_all() -> None:
    good, bad = ["1111"], ["1000"]
    one, other = site_runs("a", good, names=["mayo"]), site_runs("b", bad)
    for method in (one, other):
        del method.runs[0].client_summary["right"]
    (found,) = sites_of(one, other)
    assert (found.each[0].p, found.said) == (None, "better for mayo (+75, +75 to +75)")
    assert sites_of(site_runs("a", good * 6), site_runs("b", bad * 6)) == []
    assert sites_of(one) == []


def test_data_that_name_their_clients_are_divided_so(cli: Cli, tmp_path: Path) -> None:
    """Nobody has to type it: dealt out anew, samples of one site would train and test others."""
    client = np.repeat(["lyon", "nice"], 12)
    np.savez(tmp_path / "two.npz", x=np.arange(96.0).reshape(24, 4), y=np.arange(24) % 2, client=client)
    done = cli.succeed("run", "fedavg", "--data", "npz:two.npz", "--rounds", "1", "--out", "r", cwd=tmp_path)
    assert "2 clients, natural" in done.err.splitlines()[0]
