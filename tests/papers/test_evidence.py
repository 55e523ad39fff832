"""The pages of the evidence: one rule for all verdicts, and they say what the numbers beside them say."""

import ast
import importlib
import json
import re
import sys
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest
import torch

import tried
from coterie.papers import recipes

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


@pytest.fixture(scope="module", autouse=True)
def scripts() -> None:
    sys.path.append(str(EVIDENCE))


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def numbers(name: str) -> dict[str, object]:
    return dict(json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8")))


def text(name: str) -> str:
    return (EVIDENCE / f"{name}.md").read_text(encoding="utf-8")


def used_names(path: Path) -> set[tuple[str, str]]:
    """(module of Coterie, name) that a script imports, or looks up in a module that it has imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = (a for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names)
    modules = {a.asname or a.name: a.name for a in plain if a.name.split(".")[0] == "coterie"}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "coterie":
            for a in node.names:
                found.add((node.module or "", a.name))
                if isinstance(getattr(importlib.import_module(node.module or ""), a.name, None), ModuleType):
                    modules[a.asname or a.name] = f"{node.module}.{a.name}"
    looked_up = (
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    )
    return found | {(modules[n.value.id], n.attr) for n in looked_up if n.value.id in modules}  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(EVIDENCE.glob("*.py")), ids=lambda path: path.name)
def test_scripts_use_names_that_there_are(path: Path) -> None:
    """Most of them run for hours or need a GPU, so that nobody else would notice."""
    missing = [pair for pair in used_names(path) if not hasattr(importlib.import_module(pair[0]), pair[1])]
    assert not missing


def test_three_words_by_one_rule() -> None:
    v = script("verdicts")
    sure, turned = [1.0, 1.1, 1.2], [-1.0, -1.1, -1.2]
    assert (v.verdict(sure), v.verdict(turned)) == ("reproduced", "contradicted")
    unsure = ([0.1, 0.1, 2.0], [-0.1, 1.0, 1.1], [1.0], [])  # beyond its deviation, of one sign, of several seeds
    assert {v.verdict(d) for d in unsure} == {"not reproduced"}
    assert v.verdict([1.0, 1.0, 3.6]) == "reproduced"  # 1.87 against a deviation of 1.50 for n - 1
    assert v.verdict([1.0, 1.0, 5.5]) == "not reproduced"  # 2.50 against 2.60, but 2.12 for n
    assert v.differences({0: 1.0, 1: 2.0}, {0: 2.0}) == []  # a seed that diverged
    steps = [{0: a, 1: a + 0.1} for a in (1.0, 2.0, 3.0)]
    assert (v.rising(steps), v.rising(steps[::-1]), v.rising([*steps, steps[1]])) == (
        "reproduced",
        "contradicted",
        "not reproduced",
    )
    assert (v.unmoved(steps), v.unmoved(steps[::-1])) == ("contradicted: rises by 190 %", "contradicted: falls by 66 %")
    there_and_back = [steps[0], steps[1], {0: 0.9, 1: 1.2}]
    assert v.unmoved(there_and_back) == "not reproduced: rises by 95 % at step 1, falls by 49 % at step 2"
    assert v.unmoved([{0: 1.0, 1: 1.1}, {0: 1.1, 1: 1.0}, {0: 0.9, 1: 1.2}]) == "reproduced"


def test_fashion_pages_say_what_their_runs_say() -> None:
    tables, found = script("fashion_tables"), []
    for name, study in script("fashion_studies").STUDIES.items():
        old = numbers(f"fashion-{name}")
        claims = [tables.judged(claim, old["runs"]) for claim in study.claims]
        assert claims == old["claims"]
        assert text(f"fashion-{name}") == tables.page(name, study, old["lr"], claims, old["runs"])
        found += [c["verdict"] for c in claims]
    assert found.count("contradicted") == 7
    assert text("fashion").count("| contradicted |") == 6  # two of the seven stand in one row


def test_digits_say_how_many_seeds_a_number_has(tmp_path: Path) -> None:
    digits, old = script("digits"), numbers("digits")
    (tmp_path / "digits.md").write_text(text("digits"), encoding="utf-8")
    assert digits.pages(old, tmp_path) == text("digits-tables")
    assert (tmp_path / "digits.md").read_text(encoding="utf-8") == text("digits")
    (row,) = [line for line in text("digits-tables").splitlines() if line.startswith("| scaffold |") and "82.6" in line]
    assert "| 3 of 5 |" in row
    assert text("digits-tables").count("is not finite any more") == 2


def test_capacities_say_what_their_runs_say(tmp_path: Path) -> None:
    (tmp_path / "capacities.json").write_bytes((EVIDENCE / "capacities.json").read_bytes())
    script("capacities").rewritten(tmp_path)
    assert (tmp_path / "capacities-tables.md").read_text(encoding="utf-8") == text("capacities-tables")


def test_the_text_on_capacities_quotes_the_tables() -> None:
    """Means with a deviation, all of them, and those at equal communication method by method."""
    page, tables = " ".join(text("capacities").split()), text("capacities-tables")
    quoted = re.findall(r"\d+\.\d ± \d+\.\d", page)
    assert len(quoted) == 8
    assert all(pair in tables for pair in quoted)
    rows = tables.partition("at equal communication")[2].splitlines()
    for method in ("fedlmt", "fedhm", "fedavg", "heterofl", "fedrolex"):
        spread = next(row for row in rows if row.startswith(f"| {method} |")).split(" | ")[4]
        assert (f"it has {spread}" if method == "fedlmt" else f"{method} {spread}") in page


def test_texts_on_overlap_say_what_its_runs_say() -> None:
    """The page, the index and the table of measured performance."""
    overlap, works = script("overlap"), numbers("overlap")["found"]
    assert overlap.page(works) == text("overlap")
    shares = [overlap.costs(work) for work in works]
    assert f"evaluating costs {100 * shares[0]['evaluating']:.1f} % with five local epochs" in text("index")
    rows = (EVIDENCE.parent / "performance.md").read_text(encoding="utf-8").partition("| work | evaluated |")[2]
    for share, row in zip(shares, rows.splitlines()[2:], strict=False):
        both, beside = (f"{100 * share[part]:.1f} %" for part in ("both", "all that a round has beside them"))
        assert row.replace(" of the training's time", "").endswith(f"| {both} | {beside} |")


def test_the_index_tells_both_radii_of_the_gap() -> None:
    """One of them alone would say that SAM does not help, or that it does."""
    tables, old = script("fashion_tables"), numbers("fashion-gap")
    claims = {(c["low"], c["high"], c["measure"]): c for c in old["claims"]}
    small, large = (claims[arm, "dfedavg", "gap"] for arm in ("dfedsam", "dfedsam, rho = 0.1"))
    larger = f"{-fmean(small['differences']):.1f} points larger with rho = 0.01, in all seeds ({small['verdict']})"
    spread = tables.spread(large["differences"])
    smaller = f"{spread} points smaller with rho = 0.1, in all seeds too ({large['verdict']})"
    assert larger in text("index")
    assert smaller in text("index")
    assert max(small["differences"]) < 0 < min(large["differences"])


def test_optimizers_say_what_their_runs_say() -> None:
    """The page is made of its runs, and the index quotes its verdicts."""
    import optimizers

    results = json.loads(optimizers.FILE.read_text(encoding="utf-8"))
    assert (EVIDENCE / "optimizers.md").read_text(encoding="utf-8") == optimizers.page(results)
    (line,) = (line for line in text("index").splitlines() if "(optimizers.md)" in line)
    for task in results["tasks"].values():
        for method, rows in task["methods"].items():
            sgd, adamw = (optimizers.shown(rows[name]["values"]) for name in optimizers.OPTIMIZERS)
            if optimizers.verdict(task, rows) != "no clear difference":
                assert f"{method} {adamw} beside {sgd}" in line


def test_radii_say_what_their_runs_say() -> None:
    """The index quotes the page, and the page is made of its runs."""
    import radii

    results = json.loads(radii.FILE.read_text(encoding="utf-8"))
    assert (EVIDENCE / "radii.md").read_text(encoding="utf-8") == radii.page(results)
    salt, without = results["dfedsalt"], "dfedalt"
    means = [sum(salt[row]) / 2 for row in ("plain 0.7", without, "adaptive 0.7")]
    index = (EVIDENCE / "index.md").read_text(encoding="utf-8")
    (line,) = (line for line in index.splitlines() if "(radii.md)" in line)
    assert [f"{value:.1f} %" in line for value in means] == [True] * 3
    for method, radius in (("dfedsalt", 0.7), ("dfedsam", 0.4), ("fedsam", 0.4)):
        baseline = results[method][radii.STUDIES[method].without]
        assert radii.untrained(results[method], "plain", radii.STUDIES[method].without).startswith(
            f"The plain form does not train with a radius of {radius}"
        )
        assert not radii.untrained(results[method], "adaptive", radii.STUDIES[method].without)
        assert min(results[method]["adaptive 0.7"]) > max(baseline) - 3
    plain, _, adaptive = means
    said = f"on digits they have {plain:.1f} and {adaptive:.1f} % (docs/evidence/radii.md)"
    for recipe in (r for r in map(recipes.load, recipes.names()) if "dfedsalt" in r.methods):
        (row,) = (row for row in recipe.readings if row.what == "form of SAM")
        assert said in row.why, recipe.name


def test_the_warning_of_a_printed_radius_quotes_its_run() -> None:
    """The recipes tell two evaluated rounds of DFedSalt with plain SAM, of which one is the best."""
    accuracies = numbers("cifar10")["dfedsalt, sam=plain"]["after_mix"]
    first, best = accuracies[9], accuracies[69]
    assert best == max(a for a in accuracies if a is not None)
    said = f"{100 * first:.1f} % in round 10 and {100 * best:.1f} % in round 70 on CIFAR-10"
    for recipe in (r for r in map(recipes.load, recipes.names()) if "dfedsalt" in r.methods):
        (warning,) = recipe.warnings("paper", ["dfedsalt"])
        assert said in warning, recipe.name


def test_the_index_quotes_its_pages() -> None:
    """Every decimal number of a row stands on a page that the row links, with as many digits or more."""
    for row in (line for line in text("index").splitlines() if line.startswith("| [")):
        linked = " ".join(map(text, re.findall(r"\]\(([\w-]+)\.md\)", row)))
        for number in re.findall(r"\d+\.\d+", row.rpartition(" | ")[2]):
            digits = len(number.partition(".")[2])
            assert number in {f"{float(told):.{digits}f}" for told in re.findall(r"\d+\.\d+", linked)}, row


def test_gradient_norms_say_what_their_runs_say() -> None:
    pytest.importorskip("matplotlib")
    assert script("004_figures").page(numbers("004_figures")) == text("004_figures")


def test_equation_7_as_printed_fails_where_every_assumption_of_its_theorem_holds() -> None:
    e, told = script("equation_7"), numbers("equation_7")
    assert e.page(told) == text("equation_7")
    problem, g = e.problem(), torch.Generator().manual_seed(1)
    lengths = torch.logspace(-3, 4, 200, dtype=torch.float64)[:, None]  # within the radius, around it, far outside
    x, y = (lengths * torch.nn.functional.normalize(torch.randn(200, 200, generator=g).double()) for _ in range(2))
    near = x + 0.01 * y
    slopes = [(e.gradient(x) - e.gradient(z)).norm(dim=1) / (x - z).norm(dim=1) for z in (y, near)]
    assert 0.99 < max(float(s.max()) for s in slopes) <= 1 + 1e-9  # L = 1
    assert float(e.gradient(x).norm(dim=1).max()) == pytest.approx(5.0)  # B
    assert float(problem.noise.mean(1).abs().max()) < 1e-12
    assert problem.noise.square().sum(2).mean(1).numpy() == pytest.approx(200.0)  # sigma_l^2
    for place in (0, 130, 199):  # what a client follows is that gradient, and a sample's is so far away from it
        module, data = e.Huber(), problem.federation.x[:64]
        with torch.no_grad():
            module.u.copy_(x[place, :100] + problem.minimum[:100])
            module.v.copy_(x[place, 100:] + problem.minimum[100:])
        losses = module(data)
        for loss, shift in ((losses.mean(), 0.0), (losses[3], problem.noise[0, 3])):
            got = torch.cat(torch.autograd.grad(loss, [module.u, module.v], retain_graph=True))
            torch.testing.assert_close(got, e.gradient(x[place]) - shift, rtol=1e-9, atol=1e-9)
    found = e.numbers(seeds=2)
    assert found["least"] > 1.15 * e.bound() == pytest.approx(1.15 * 0.2356, rel=1e-3)
    assert told["least"] == 0.29
    assert told["last"][0] == pytest.approx(told["expected"][2], abs=3 * told["last"][1])


def test_every_experiment_and_every_claim_of_the_papers_is_listed() -> None:
    page, known = tried.everything(), tried.load_attempts()
    assert set(known) <= set(recipes.names())
    lines = {name: next(x for x in page.splitlines() if x.startswith(f"| `{name}` |")) for name in recipes.names()}
    for name, line in lines.items():
        assert all(claim in line for claim in recipes.load(name).claims)
        assert f"| {tried.state(name, known)} |" in line
    for entry in known.values():
        assert entry["state"] in tried.STATES[:2]
        assert (EVIDENCE / entry["page"]).exists()
    assert "<!-- tried -->" in text("tried")
    assert "](tried.md)" in text("index")


def test_the_page_of_fedavg_p_s_recipes_says_what_their_runs_say() -> None:
    """All cases and seeds of all seven recipes, of three of them in the reading of the paper, too, and nothing else."""
    page = script("004_recipes")
    runs = json.loads((EVIDENCE / "004_recipes.json").read_text(encoding="utf-8"))
    wanted = {
        (reading, figure, case.label, seed)
        for reading, figures in (("ours", page.FIGURES), ("paper", page.OF_STEPS))
        for figure in figures
        for case in page.recipe_of(figure).cases
        for seed in range(page.recipe_of(figure).seeds)
    }
    assert {(r["reading"], r["figure"], r["case"], r["seed"]) for r in runs} == wanted
    assert len(runs) == len(wanted) == 63 + 27
    assert text("004_recipes") == page.page(runs)


def test_the_page_of_cifar10_says_what_its_runs_say() -> None:
    """The tables, and the accuracies that the text quotes: of other rates, of generic models and between peers."""
    pytest.importorskip("matplotlib")
    tables, page = script("cifar10_tables"), text("cifar10")
    assert tables.page({t: runs for t in tables.TABLES if (runs := tables.kept(t))}) == page
    runs = json.loads((EVIDENCE / "cifar10.json").read_text(encoding="utf-8"))
    stepped = runs["fedbabu, stepped rate"]
    assert stepped["finetune_rates"]["0.001"] == stepped["after_finetune"][-1]
    quoted = [*stepped["finetune_rates"].values(), runs["fedrod"]["global"][-1], runs["fedavg"]["global"][-1]]
    quoted.append(runs["fedavg"]["global"][99])  # in round 100, where the rate is 0.037
    peers = runs["dfedavgm"], runs["dfedalt, every round evaluated"], runs["dispfl"]
    quoted += [run[point][149] for run in peers for point in ("after_mix", "after_train")]
    quoted += [runs[row]["after_mix"][t - 1] for row in ("dfedalt", "dfedsalt") for t in (140, 170)]
    quoted += [runs["dfedsalt"]["after_mix"][69], runs["dfedsalt, rho=0.05, sam=plain"]["after_mix"][69]]
    quoted += [runs[row]["worst"][169] for row in ("dfedalt", "dfedsalt")]
    assert all(f"{100 * value:.1f} %" in " ".join(page.split()) for value in quoted)
    small = script("cifar10_small")
    tried = small.lines(json.loads(small.FILE.read_text(encoding="utf-8")), "dfedalt-t1")
    signs: dict[str, set[str]] = {}
    for method, *_, what, personal, _ in (line for line in tried if small.UNCHANGED not in line):
        known = "fedbabu: " if method == "fedbabu" else ""
        signs.setdefault(known + what, set()).add(personal.partition("(")[2][0])
    assert signs == {  # which way each detail points, as the text says
        "partition=dirichlet-reuse:0.3": {"+"},
        "momentum=0, lr_decay=0.998": {"-"},
        "weight_decay=0.005": {"-"},
        "fedbabu: momentum=0, lr_decay=0.998": {"+"},
        "fedbabu: weight_decay=0": {"+"},
        "fedbabu: finetune_lr=0.01": {"-"},
        "lam=0.5": {"-"},
        "lam=0.5, prox=split": {"-"},
        "epochs=2": {"-"},
        "lam=0.5, prox=split, epochs=2, personal_epochs=3": {"-"},
    }
    mean = {
        (run["method"], *run["changed"].values()): run["global"]
        for run in json.loads(small.FILE.read_text(encoding="utf-8"))
        if run["recipe"] == "dfedsam-t1"
    }
    assert mean["dfedsam", "clique:10"] - mean["dfedavgm", "clique:10"] == pytest.approx(4.6, abs=0.05)
    for graph in ((), ("clique:10",)):  # DFedAvg is last in the paper
        assert mean["dfedavg", *graph] > min(mean[method, *graph] for method in ("dfedsam", "dfedavgm"))
    order = [runs[method]["after_mix"] for method in ("dfedavgm", "dispfl", "dfedalt, every round evaluated")]
    looked_at = [each for each in zip(*order, strict=True) if None not in each]
    assert len(looked_at) == 15
    assert all(sorted(each) == list(each) for each in looked_at)  # in every round that was looked at, as the page says
    assert "| dfedavgm | 354 | not in the first 150 |" in page
    runs = json.loads((EVIDENCE / "cifar10-dfedsam-t1.json").read_text(encoding="utf-8"))
    plain, sharp = ([v for v in runs[method]["global"] if v is not None] for method in ("dfedavg", "dfedsam"))
    assert len(plain) == 15
    assert all(v > w for v, w in zip(plain, sharp, strict=True))  # in all evaluations, as the page says
    assert all(f"{100 * v:.1f} %" in " ".join(page.split()) for v in (plain[-1], sharp[-1]))


def capacity_run(folder: Path, method: str, accuracy: float, *, rounds: int = 2000, **changed: Any) -> Path:
    """The folder of a run of FedLMT's Table 2 that was evaluated after its last round alone."""
    recipe = recipes.load("fedlmt-t2-image")
    settings = {**recipe.settings(method, 1), **changed.pop("settings", {})}
    config = {
        "method": method,
        "settings": settings,
        "data": {"source": "cifar10", "clients": 100, "partition": changed.pop("partition", "dirichlet-by-class:0.5")},
        "model": {"name": "resnet18-bn"},
        "rounds": 2000,
        "precision": "bf16",
        "seed": 0,
        **changed,
    }
    row = {"seconds": 0.3, "train_loss": 1.0, "bytes_sent": 1, "parameters_sent": 10**8, "forward_flops": 10**9}
    known = dict.fromkeys(("personal_accuracy_after_mix", "global_accuracy_local"), accuracy)
    rows = [row] * (rounds - 1) + [row | known]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def test_a_run_finds_its_table_and_names_what_was_changed(tmp_path: Path) -> None:
    """Rows of one command: published numbers from the recipe, differences, and verdicts by the rule for all pages."""
    pytest.importorskip("matplotlib")
    cifar10, tables = script("cifar10"), script("cifar10_tables")
    seeds = {("fedlmt", s): 0.9 + s / 1000 for s in range(3)} | {("heterofl", s): 0.92 + s / 500 for s in range(3)}
    made = [capacity_run(tmp_path / f"{m}{s}", m, value, seed=s) for (m, s), value in seeds.items()]
    made += [capacity_run(tmp_path / "short", "fedrolex", 0.99, rounds=100)]
    made += [capacity_run(tmp_path / "other", "fedlmt", 0.99, partition="iid", settings={"lr": 0.05})]
    made += [capacity_run(tmp_path / "images", "heterofl", 0.99, transform={"pad": 2, "flip": True}, init="common")]
    rows = {name: run for folder in made for table, name, run in cifar10.gathered(folder) if table is tables.CAPACITY}
    named = ["fedlmt", "fedlmt, seed=1", "fedlmt, seed=2", "heterofl", "heterofl, seed=1", "heterofl, seed=2"]
    assert sorted(rows) == sorted([*named, "fedrolex", "fedlmt, lr=0.05, partition=iid", "heterofl, pad=2"])
    told = tables.compared(tables.CAPACITY, rows)
    assert "| fedlmt | 91.03 | 90.00 | -1.03 | 2,000 | 28.62 / 100.00 | 2.80 / 2.00 | 90.00 | 0.30 |" in told
    assert "| fedrolex | 89.11 | 99.00 | - | 100 | 134.70 / - | 6.75 / - | 99.00 | 0.30 |" in told
    said = [tables.judged(tables.CAPACITY, claim, rows) for claim in tables.CAPACITY.claims]
    assert said[0][1:] == ("heterofl", "+6.01", "-2.1 ± 0.1 points", "3", "contradicted")  # the changed row is left out
    assert said[1] is None  # there is no FedAvg
    assert said[2][-3:] == ("stopped: fedrolex", "0", "not reproduced")
    none = {"personal_accuracy_after_mix": 0.5}
    (tmp_path / "short" / "metrics.jsonl").write_text(json.dumps({"bytes_sent": 1, "seconds": 1.0, **none}) + "\n")
    with pytest.raises(SystemExit, match="short was never evaluated"):
        list(cifar10.gathered(tmp_path / "short"))
    with pytest.raises(SystemExit, match="fedavg on digits with resnet18-bn and 100 clients belongs to none of dfed"):
        cifar10.recognized(
            {"method": "fedavg", "data": {"source": "digits", "clients": 100}, "model": {"name": "resnet18-bn"}}
        )


def test_who_passes_the_target_first_is_open_where_the_other_was_stopped_before() -> None:
    pytest.importorskip("matplotlib")
    tables = script("cifar10_tables")
    claim = tables.Claim("DFedAlt passes 80 % before DFedAvgM", "dfedalt", ("dfedavgm",), "rounds")

    def run(*accuracies: float) -> dict[str, Any]:
        return {"config": {"seed": 0}, "point": "after_mix", "after_mix": accuracies}

    for slow, said in {(0.5, 0.6): "stopped: dfedalt, dfedavgm", (0.5, 0.6, 0.7): "+1.0 rounds"}.items():
        found = tables.judged(tables.PERSONAL, claim, {"dfedalt": run(0.5, 0.7, 0.8), "dfedavgm": run(*slow)})
        assert found[2:4] == ("+223.00", said)
