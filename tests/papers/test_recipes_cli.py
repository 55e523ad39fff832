"""``coterie recipe``: what it prints, what it refuses, and that an interruption changes no number."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core.spec import scaled
from coterie.papers.commands.recipe_show import Circumstances, show_results
from coterie.papers.recipes import load
from forks import ENVIRONMENT
from helpers_cli import Cli, assert_same_run

SMALL = ("--data", "digits", "--model", "small-cnn", "--rounds", "2", "--seeds", "1")
SHORT = (*SMALL, "--case", "1", "--clients", "5")


def test_list_and_show_need_no_torch() -> None:
    program = (
        "import sys; from coterie.papers.commands.recipe_show import show_recipe, show_recipes\n"
        "from coterie.papers.recipes import names\n"
        "show_recipes(None)\nfor name in names(): show_recipe(name)\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    facts = ("dfedalt-t1", "Table 1, Figure 3", "88.85", "weight_decay=0.005", "85.30?")
    changed = ("Changed, so that a claim can show; --reading paper undoes it", "* gamma = 0.005 instead of 0.001")
    for text in (*facts, *changed):
        assert text in done.stdout


def test_a_shortened_run_stands_beside_the_published_numbers_and_says_so(cli: Cli, tmp_path: Path) -> None:
    done = cli.succeed("recipe", "run", "dfedalt-t1", "--methods", "fedavg,dfedalt", *SHORT, "--out", "a", cwd=tmp_path)
    assert "SHORTENED OR CHANGED, not comparable" in done.out
    told = (
        "2 of 500 rounds",
        "5 of 100 clients",
        "1 of 3 seeds",
        "digits instead of cifar10",
        "small-cnn instead of",
        "topology random-pull:4 instead of random-pull:10",
    )
    assert [text for text in told if text not in " ".join(done.out.split())] == []
    assert "at its published size: 817 PFLOP" in done.err
    assert "84.17" in done.out
    assert "88.85" in done.out
    assert "after local training" in done.out
    assert "after aggregation" in done.out
    saved = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert [r["method"] for r in saved["results"]] == ["fedavg", "dfedalt"]
    assert saved["shortened"]
    best = max(json.loads(line)["personal_accuracy_after_mix"] for line in metrics(tmp_path / "a/case1-dfedalt-seed0"))
    assert saved["results"][1]["ours"] == [pytest.approx(100 * best)]


def metrics(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_an_interrupted_recipe_is_resumed_to_the_same_numbers(cli: Cli, tmp_path: Path) -> None:
    command = ("recipe", "run", "dfedalt-t1", "--methods", "fedavg,dfedalt", *SHORT)
    cli.succeed(*command, "--out", "whole", cwd=tmp_path)
    killed = cli.run(*command, "--out", "cut", cwd=tmp_path, at="rename cut/case1-dfedalt-seed0/checkpoint/*2.json")
    assert killed.status == -signal.SIGKILL
    cli.refuse(*command, "--out", "cut", cwd=tmp_path, names=("already exists", "--resume"))
    cli.succeed(*command, "--out", "cut", "--resume", cwd=tmp_path)
    for method in ("fedavg", "dfedalt"):
        assert_same_run(tmp_path / "whole" / f"case1-{method}-seed0", tmp_path / "cut" / f"case1-{method}-seed0")
    one, other = (json.loads((tmp_path / a / "recipe.json").read_text()) for a in ("whole", "cut"))
    assert one == other
    shutil.rmtree(tmp_path / "cut")


def test_settings_measures_and_the_rhythm_can_be_asked_for(cli: Cli, tmp_path: Path) -> None:
    asked = ("--set", "lr=0.05", "--set", "dfedsalt.personal_lr=0.01", "--record", "gradients", "--evaluate-every", "2")
    command = ("recipe", "run", "dfedalt-t1", "--methods", "fedavg,dfedsalt", *SHORT, "--reading", "paper", *asked)
    done = cli.succeed(*command, "--out", "a", cwd=tmp_path)
    (line,) = (line for line in done.out.splitlines() if line.startswith("SHORTENED OR CHANGED"))
    told = (
        "2 of 500 rounds, 5 of 100 clients, 1 of 3 seeds, data digits instead of cifar10",
        "lr 0.05 instead of 0.1, topology random:4 instead of random:10, personal_lr 0.01 instead of 0.001",
        "evaluated every 2 rounds; reading: paper",
    )
    assert [text for text in told if text not in line] == []
    warning = "dfedsalt: the plain form of SAM with rho = 0.7 was seen not to train"
    assert f"warning: {warning}" in done.err
    assert f"warning: {warning}" in done.out  # beside the numbers, too, which are what is read days later
    assert f"<p>Warning: {warning}" in (tmp_path / "a/report.html").read_text()
    for method, init in (("fedavg", "common"), ("dfedsalt", "per-client")):  # as the paper's box has it
        folder = tmp_path / f"a/case1-{method}-seed0"
        config = json.loads((folder / "config.json").read_text())
        assert (config["settings"]["lr"], config["init"], config["settings"]["weight_decay"]) == (0.05, init, 0.005)
        assert config["settings"].get("sam", "plain") == "plain"
        first, second = map(json.loads, metrics(folder))
        assert first.get("gradient_norm_shared") is None
        assert second["gradient_norm_shared"] > 0
    cli.refuse(*command, "--out", "a", "--resume", "--set", "lr=0.1", cwd=tmp_path, names=("lr",))


def test_what_is_changed_so_that_a_claim_shows_is_said_beside_the_numbers(cli: Cli, tmp_path: Path) -> None:
    few = ("--data", "synthetic:size=400,classes=2", "--partition", "iid", "--rounds", "2", "--seeds", "1")
    command = ("recipe", "run", "fedavg-p-f1c", "--case", "K=5", *few)
    ours = cli.succeed(*command, "--out", "ours", cwd=tmp_path)
    assert "changed: gamma = 0.005 instead of 0.001" in ours.out
    assert "<p>Changed: gamma = 0.005 instead of 0.001" in (tmp_path / "ours/report.html").read_text()
    paper = cli.succeed(*command, "--reading", "paper", "--out", "paper", cwd=tmp_path)
    assert "changed:" not in paper.out
    assert "<p>Changed:" not in (tmp_path / "paper/report.html").read_text()
    assert "in our choice:" in paper.err
    assert "2 of 2400 rounds" in paper.out
    settings = json.loads((tmp_path / "paper/case1-fedavg-p-seed0/config.json").read_text())["settings"]
    assert settings["lr"] * settings["outer_lr"] == pytest.approx(0.001)


def test_a_changed_recipe_has_not_the_published_size(capsys: pytest.CaptureFixture[str]) -> None:
    for name, size in (("fedavg-p-f1c", "size but for what is changed;"), ("dfedalt-t1", "size; reading")):
        show_results(load(name), [], Circumstances())
        assert size in capsys.readouterr().out


SIZES = ("--data", "digits", "--model", "small-cnn", "--rounds", "2", "--set", "keep_layers=1")


def test_a_table_with_tuned_coefficients_is_one_command(cli: Cli, tmp_path: Path) -> None:
    """Each method has values of its own; they are chosen on the fifth of the data that the paper holds back."""
    grids = ("--tune", "low-rank-fd.regularizer=frobenius=1e-5,frobenius=1e3", "--tune", "low-rank-none.lr=1e-4,0.05")
    methods = "full,low-rank-none,low-rank-fd"
    command = ("recipe", "run", "fedlmt-t4", "--case", "1", "--methods", methods, *SIZES, "--reading", "paper", *grids)
    done = cli.succeed(*command, "--select", "best-validation", "--out", "a", cwd=tmp_path)
    assert "before that, 4 trainings to choose settings" in done.err
    said = (
        "Methods were not tuned alike, with one training for each of their own values, low-rank-none lr=1e-4,0.05, "
        "low-rank-fd regularizer=frobenius=1e-5,frobenius=1e3, chosen on validation samples (0.2 of every client's "
        "training samples, seed 0), never on test samples: case 1, low-rank-none lr=0.05 (the best of 2); case 1, "
        "low-rank-fd regularizer=frobenius=1e-5 (the best of 2)."
    )
    assert said in " ".join(done.out.split())
    assert "not tuned alike" in (tmp_path / "a" / "report.html").read_text()
    told = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert "round that is best on the clients' validation samples instead of last round" in told["shortened"]
    for method, key, chosen in (("full", "lr", 0.1), ("low-rank-none", "lr", 0.05), ("low-rank-fd", "lr", 0.1)):
        config = json.loads((tmp_path / f"a/case1-{method}-seed0/config.json").read_text())
        assert (config["settings"][key], config["validation"], config["select"]) == (chosen, 0.2, "best-validation")
    assert config["settings"]["regularizer"] == "frobenius=1e-5"
    (ours,) = (r["ours"] for r in told["results"] if (r["method"], r["metric"]) == ("low-rank-none", "test_accuracy"))
    rows = [json.loads(line) for line in metrics(tmp_path / "a/case1-low-rank-none-seed0")]
    best = max(rows, key=lambda row: row["personal_accuracy_validation"])
    assert ours == [pytest.approx(100 * best["global_accuracy"])]
    again = cli.succeed(*command, "--select", "best-validation", "--out", "a", "--resume", cwd=tmp_path)
    assert said in " ".join(again.out.split())


def test_a_dry_run_forecasts_every_cell(cli: Cli, tmp_path: Path) -> None:
    """FLOPs and bytes are those that the run counts, on the samples that a reading trains on; nothing is written."""
    command = ("recipe", "run", "fedlmt-t4", "--case", "1", "--methods", "low-rank-none", *SIZES)
    told = {}
    for reading in ("code", "paper"):
        done = cli.succeed(*command, "--reading", reading, "--dry-run", cwd=tmp_path)
        (told[reading],) = (line for line in done.out.splitlines() if line.startswith("case 1, low-rank-none"))
        assert "Nothing was trained or written" in done.out
    assert not list(tmp_path.iterdir())
    cli.succeed(*command, "--reading", "paper", "--out", "a", cwd=tmp_path)
    rows = [json.loads(line) for line in metrics(tmp_path / "a/case1-low-rank-none-seed0")]
    counted = [scaled(sum(row[key] for row in rows), unit) for key, unit in (("flops", "FLOP"), ("bytes_sent", "B"))]
    assert " ".join(told["paper"].split()).startswith(f"case 1, low-rank-none {' '.join(counted)} ")
    assert counted[0] not in told["code"]


WRONG = {
    "unknown recipe": (("run", "dfedalt-t9"), ("did you mean dfedalt-t",)),
    "unknown by its number": (("show", "000-t1x"), ("did you mean dfedalt-t1",)),
    "unknown recipe shown": (("show", "nothing"), ("nothing",)),
    "unknown paper": (("list", "--paper", "dfedatl"), ("dfedalt",)),
    "method of another recipe": (("run", "dfedalt-t3", "--methods", "fedavg"), ("dfedalt-t3", "fedavg")),
    "no method": (("run", "dfedalt-t3", "--methods", ","), ("--methods", "dfedsalt-uv")),
    "no case": (("run", "dfedalt-t3", "--case", ""), ("an empty text behind --case", "leave it out")),
    "case out of range": (("run", "dfedalt-t3", "--case", "3"), ("1 to 2",)),
    "case without meaning": (("run", "dfedalt-t3", "--case", "svhn"), ("svhn", "cifar10 dirichlet:0.3")),
    "unknown reading": (("run", "dfedalt-t3", "--reading", "notes"), ("paper", "code")),
    "method not run in this case": (("run", "fedlmt-t3", "--case", "2", "--methods", "fedavg"), ("fedavg", "--case")),
    "one of two not run in this case": (
        ("run", "fedlmt-t3", "--case", "2", "--methods", "fedlmt,fedavg"),
        ("fedavg", "--case"),
    ),
    "clients for a grid": (
        ("run", "dfedalt-f4", *SMALL, "--case", "grid", "--clients", "7", "--methods", "dfedalt"),
        ("ring", "8 clients"),
    ),
    "more clients than samples": (("run", "dfedalt-t3", *SMALL, "--clients", "9000"), ("9000", "1352")),
    "images too small for the model": (("run", "dfedsam-t1", *SHORT, "--model", "vgg11-gn"), ("8 x 8", "small-cnn")),
    "a model of tokens for images": (("run", "dfedalt-t3", *SHORT, "--model", "transformer-mlm"), ("[1, 8, 8]",)),
    "rounds of nothing": (("run", "fedlmt-t1", "--rounds", "3"), ("--rounds", "trains nothing")),
    "sizes of another model": (("run", "fedlmt-t1", "--model", "resnet8-bn"), ("coterie capacity --model",)),
    "an engine for nothing": (("run", "fedlmt-t1", "--engine", "serial"), ("--engine", "trains nothing")),
    "a tracker of nothing": (("run", "dfedpgp-f4", "--tensorboard"), ("--tensorboard", "trains nothing")),
    "methods that draw": (("run", "dfedpgp-f4", "--methods", "fedavg"), ("--methods", "trains nothing")),
    "classes of words": (("run", "dfedpgp-f4", "--data", "text", "--clients", "3"), ("text",)),
    "data that is not there": (("run", "dfedalt-t3", "--data", "cifar11"), ("cifar11",)),
    "a model that does not fit": (("run", "dfedalt-t3", *SHORT, "--model", "resnet19"), ("resnet18-gn",)),
    "a setting that nobody has": (("run", "dfedalt-t3", *SHORT, "--set", "zzz=1"), ("zzz", "rho")),
    "a setting of a method not chosen": (
        ("run", "dfedalt-t3", *SHORT, "--methods", "dfedalt", "--set", "sam_on=both"),
        ("sam_on", "dfedalt", "personal_lr"),
    ),
    "a setting of another recipe's method": (
        ("run", "dfedalt-t3", *SHORT, "--set", "osgp.lr=1"),
        ("osgp", "dfedsalt-uv"),
    ),
    "a setting without a value": (("run", "dfedalt-t3", *SHORT, "--set", "lr"), ("KEY=VALUE",)),
    "a setting out of range": (("run", "dfedalt-t3", *SHORT, "--set", "lr=-1"), ("lr",)),
    "a measure there is not": (("run", "dfedalt-t3", *SHORT, "--record", "sharpnes"), ("did you mean sharpness",)),
    "resume of nothing": (("run", "dfedalt-t3", "--resume"), ("--out",)),
    "a round by samples that nobody has": (
        ("run", "dfedalt-t3", *SHORT, "--select", "best-validation"),
        ("there are none", "validation=0.2"),
    ),
    "a round for each client": (
        ("run", "dfedalt-t3", *SHORT, "--validation", "0.2", "--select", "best-validation-per-client"),
        ("one round for all clients", "leave --select"),
    ),
    "all samples for validation": (("run", "dfedalt-t3", *SHORT, "--validation", "1"), ("validation",)),
    "values that are set": (
        ("run", "dfedalt-t3", *SHORT, "--tune", "lr=0.1,0.2", "--set", "dfedalt.lr=0.1"),
        ("--set and --tune both have lr",),
    ),
    "values of another recipe's method": (
        ("run", "dfedalt-t3", *SHORT, "--tune", "osgp.lr=0.1,0.2"),
        ("osgp", "dfedsalt-uv"),
    ),
    "trials of a value out of range": (("run", "dfedalt-t3", *SHORT, "--tune", "lr=0.1,-1"), ("lr",)),
    "trials that are counted": (("run", "dfedalt-t3", *SHORT, "--tune", "lr=0.1,1", "--dry-run"), ("--tune",)),
    "costs of nothing": (("run", "fedlmt-t1", "--dry-run"), ("--dry-run", "trains nothing")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_run_is_refused_in_one_sentence(cli: Cli, tmp_path: Path, wrong: str) -> None:
    arguments, told = WRONG[wrong]
    cli.refuse("recipe", *arguments, cwd=tmp_path, names=told)
    assert not list(tmp_path.iterdir())


def test_rounds_to_a_target_count_from_one(cli: Cli, tmp_path: Path) -> None:
    command = ("recipe", "run", "dfedalt-t6", "--methods", "dfedalt,fedrep", *SHORT, "--out", "a")
    done = cli.succeed(*command, cwd=tmp_path)  # 20 % are soon reached on ten digits
    assert "rounds until 20 % personal accuracy after aggregation, the first one counted as 1" in " ".join(
        done.out.split()
    )
    results = json.loads((tmp_path / "a" / "recipe.json").read_text())["results"]
    each = {r["method"]: r["ours"][0] for r in results if r["metric"] == "rounds_to_20"}
    slowest = max((t for t in each.values() if t is not None), default=None)
    for result in (r for r in results if r["metric"] == "speedup_to_20"):
        own = each[result["method"]]
        assert result["ours"] == [None if own is None or slowest is None else slowest / own]
        assert "slowest method that was run" in result["protocol"]
    (mean,) = [r for r in results if r["metric"] == "speedup_mean"]
    assert (mean["case"], mean["method"], mean["ours"]) == ("all cases", "dfedalt", [None])  # one of four cases ran
    for result in (r for r in results if r["metric"].startswith("rounds_to")):
        rows = [json.loads(line) for line in metrics(tmp_path / f"a/case1-{result['method']}-seed0")]
        reached = [i for i, row in enumerate(rows, 1) if row["personal_accuracy_after_mix"] >= 0.2]
        assert result["metric"] == "rounds_to_20"
        assert result["ours"] == [reached[0] if reached else None]


def test_sizes_are_printed_beside_the_published_ones_without_training(cli: Cli, tmp_path: Path) -> None:
    done = cli.succeed("recipe", "run", "fedlmt-t1", "--out", "a", cwd=tmp_path)
    row = next(line.split() for line in done.out.splitlines() if "fedlmt" in line and "params b2" in line)
    assert row[-3:] == ["1,430,000", "1,430,538", "+538.00"]
    results = json.loads((tmp_path / "a" / "recipe.json").read_text())["results"]
    assert len(results) == 46
    assert all(r["ours"][0] and r["protocol"].endswith("counted") for r in results)
    assert "1430538" in (tmp_path / "a" / "report.html").read_text()
    cli.refuse("recipe", "run", "fedlmt-t1", "--out", "a", cwd=tmp_path, names=("already exists",))


def test_a_split_is_drawn_without_training(cli: Cli, tmp_path: Path) -> None:
    small = ("--data", "digits", "--clients", "6")
    done = cli.succeed("recipe", "run", "dfedpgp-f4", *small, "--out", "a", cwd=tmp_path)
    saved = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert [split["case"] for split in saved["splits"]] == ["cifar10 dirichlet:0.3", "cifar10 pathological:2"]
    assert all(sum(map(bool, client)) == 2 for client in saved["splits"][1]["labels"])
    assert "classes per client: 2 least, 2 mean, 2 most" in done.out
    assert saved["shortened"] == ["6 of 100 clients", "data digits instead of cifar10"]
    assert (tmp_path / "a" / "case2.png").read_bytes().startswith(b"\x89PNG")
    assert "dfedpgp-f4-split-2" in (tmp_path / "a" / "report.html").read_text()
    alone = cli.succeed("data", "show", "digits", "--partition", "pathological:2", "--clients", "6", cwd=tmp_path)
    assert "classes per client: 2 least, 2 mean, 2 most" in alone.out
    cli.succeed("data", "show", "digits", "--clients", "6", "--png", "a.png", cwd=tmp_path)
    assert (tmp_path / "a.png").exists()
    cli.refuse("data", "show", "digits", "--png", "a.pdf", cwd=tmp_path, names=("a.png",))
