"""A method of a user's own file: commands take it like a built-in one, and no file makes anybody run it."""

import inspect
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie as ct
from coterie.core.errors import UserError
from coterie.papers import recipes
from coterie.papers.recipes.changes import add_own_methods
from coterie.papers.recipes.results import across_runs
from helpers_cli import Cli, Finished, assert_same_run, contents
from toys import experiment, models, net, ragged

MINE = """
from typing import Literal, Unpack
import torch
from coterie.method import Algorithm, Options, Peers, Phase, Problem, Program, Rate, Server, Training
from coterie.method import decentralized, federated, method, topology as topologies

@method(Training(momentum=0.0))
def lazy_gossip(
    p: Problem,
    t: Training,
    *,
    keep: Rate = 0.5,
    kept_by: Literal["all", "none"] = "all",
    rho: Rate = 0.7,
    topology: str = "ring",
    **options: Unpack[Options],
) -> Program[Peers]:
    '''Lazy gossip: every client keeps a part of its own model.

    x_i <- keep z_i + (1 - keep) sum_j W[i, j] z_j

    Args:
        keep: How much of its own model
            a client keeps.
    '''
    graph = topologies.build(topology, p.clients, p.seed)
    lazy = topologies.build(lambda r: (1 - keep) * graph(r) + keep * torch.eye(p.clients), p.clients)
    return decentralized(p, [Phase(p.parameters, t.amount, t.lr)], t, lazy, shared=p.names)

def net(shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(torch.Size(shape).numel(), classes))

def number(*, epochs: int = 1) -> int:
    return 3

def untyped(*, keep=0.5):
    raise AssertionError

def needing(*, keep: float, epochs: int = 1) -> Algorithm:
    raise AssertionError

def misspelled(*, keep: "flot" = 0.5) -> Algorithm:
    raise AssertionError

@method()
def returning_nothing(p: Problem, t: Training, **options: Unpack[Options]) -> Program[Server]:
    federated(p, [Phase(p.parameters, t.amount, t.lr)], t, p.names)

@method()
def sharing_another(p: Problem, t: Training, **options: Unpack[Options]) -> Program[Server]:
    return federated(p, [Phase(p.parameters, t.amount, t.lr)], t, p.names | {"1.wieght"})

@method()
def training_another(p: Problem, t: Training, **options: Unpack[Options]) -> Program[Server]:
    return federated(p, [Phase(frozenset({"1.wieght"}), t.amount, t.lr)], t, p.names)

three = 3
"""
BROKEN = "import torch\n\ntorch.not_there\n"
OWN = "mine_of_door:lazy_gossip"
TINY = ("--data", "synthetic:size=200,classes=3", "--clients", "3", "--rounds", "2", "--set", "epochs=1", "--quiet")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file and some that are wrong."""
    folder = tmp_path_factory.mktemp("door")
    for name, code in {"mine_of_door": MINE, "broken_of_door": BROKEN, "half_of_door": "def f(:\n"}.items():
        (folder / f"{name}.py").write_text(code)
    (folder / "empty_of_door.py").write_text("")
    (folder / "calendar.py").write_text("def f(): pass")  # as a module of Python is named
    (folder / "leaving_of_door.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "lacking_of_door.py").write_text("import no_such_package\n")
    return folder


@pytest.fixture(scope="module")
def trained(cli: Cli, here: Path) -> Path:
    """A finished run of the method."""
    cli.succeed("run", OWN, *TINY, "--model", "mine_of_door:net", "--set", "keep=0.25", "--out", "a", cwd=here)
    return here / "a"


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


class TestRun:
    def test_a_run_says_which_function_made_it(self, trained: Path) -> None:
        config = config_of(trained)
        assert config["method"] == OWN
        assert config["settings"]["keep"] == 0.25
        assert config["settings"]["rho"] == 0.7  # a preset chooses nothing that is the method's own
        assert config["settings"]["batch_size"] == 16  # what all methods have comes from the preset
        assert json.loads((trained / "summary.json").read_text())["method"] == OWN

    def test_it_computes_what_python_computes(self, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(here)
        config = config_of(trained)
        fed = ct.data.federate(**config["data"])
        algorithm = ct.algorithms.build(OWN, **config["settings"])
        model = ct.models.build("mine_of_door:net", fed)
        run = ct.fit(model, fed, algorithm, rounds=2, engine=config["engine"], progress=False)
        saved = ct.load(trained, model=model)
        for one, other in zip(run.clients, saved.clients, strict=True):
            assert all(bool((one.shared[k] == other.shared[k]).all()) for k in one.shared)

    def test_a_configuration_runs_no_code_by_itself(self, cli: Cli, trained: Path, here: Path) -> None:
        both = ("--trust", OWN, "--trust", "mine_of_door:net")
        for words in (("a",), ("a/config.json",), ("a", "--resume"), ("a", "--resume", *both[:2])):
            cli.refuse("run", *words, cwd=here, names=(shlex.join(both),))
        cli.refuse("run", "a", *both, "--trust", "os:abort", cwd=here, names=("os:abort", "leave it out"))
        cli.refuse("run", OWN, *TINY, "--trust", OWN, cwd=here, names=("--trust", "saved configuration"))
        cli.succeed("run", "a/config.json", *both, "--out", "b", "-q", cwd=here)
        assert_same_run(trained, here / "b")

    @pytest.mark.parametrize("change", [{"method": "os:abort"}, {"model": {"module": "os:abort"}}])
    def test_not_even_where_names_are_spelled_cunningly(
        self, cli: Cli, here: Path, change: dict, tmp_path: Path
    ) -> None:
        """Code of a file is not run, nor what only looks like other names."""
        cli.succeed("run", "local", *TINY, "--out", str(tmp_path / "c"), cwd=here)
        config = config_of(tmp_path / "c")
        for name in ("os:abort", "os:abort,x=1", " os:abort", "os: abort"):
            ((key, old),) = change.items()
            model = {"module": name, "classes": 3, "input_shape": [20]}
            spelled = {**config, key: name if isinstance(old, str) else model}
            (tmp_path / "config.json").write_text(json.dumps(spelled))
            cli.refuse("run", str(tmp_path / "config.json"), cwd=here, names=())

    def test_an_interrupted_run_goes_on_to_the_last_bit(self, cli: Cli, here: Path) -> None:
        stopped = cli.run(
            "run", OWN, *TINY, "--out", "whole", cwd=here, at="rename whole/summary.json", send=signal.SIGINT
        )
        assert stopped.status == 130, stopped.err
        assert stopped.continuation == f"coterie run whole --resume --trust {OWN} --quiet"
        cut = cli.run(
            "run", OWN, *TINY, "--out", "cut", cwd=here, at="*cut/checkpoint/round-000002*", send=signal.SIGINT
        )
        for done in (stopped, cut):
            cli.succeed(*shlex.split(done.continuation)[1:], cwd=here)
        assert_same_run(here / "whole", here / "cut")
        cli.succeed("run", OWN, *TINY, "--out", "cut", "--resume", cwd=here)
        cli.refuse("run", OWN, *TINY, "--set", "keep=0.1", "--out", "cut", "--resume", cwd=here, names=("keep",))


@pytest.fixture(scope="module")
def compared(cli: Cli, here: Path) -> Finished:
    """A comparison with a method of ours."""
    asked = ("--set", f"{OWN}.keep=0.25", "--set", "dfedavg.lr=0.1", "--format", "markdown")
    return cli.succeed("compare", "dfedavg", OWN, *TINY, *asked, "--out", "both", cwd=here)


class TestBesideOthers:
    def test_compare(self, compared: Finished, here: Path) -> None:
        assert OWN.replace("_", "\\_") in compared.out
        folders = {p.name: config_of(p) for p in (here / "both").iterdir() if p.is_dir()}
        assert set(folders) == {"dfedavg-seed0", "mine_of_door.lazy_gossip-seed0"}  # Windows has no colon in a name
        assert [c["settings"].get("keep") for _, c in sorted(folders.items())] == [None, 0.25]
        assert len({c["settings"]["topology"] for c in folders.values()}) == 1  # with whom is the set-up's choice

    def test_report_table_watch_and_export_need_no_code(
        self, cli: Cli, compared: Finished, here: Path, tmp_path: Path
    ) -> None:
        """Seen from a folder where the file is not."""
        both = str(here / "both")
        cli.succeed("report", both, "--out", "page.html", "--landscape", cwd=tmp_path)
        page = (tmp_path / "page.html").read_text()
        assert f"--trust {OWN}" in page  # in the command that repeats it
        assert f"It is left out: a report does not run {OWN}" in page
        assert page.index("dfedavg") < page.index(OWN)
        assert "mine_of_door.lazy_gossip-seed0" in cli.succeed("watch", both, "--once", cwd=tmp_path).out
        cli.succeed(
            "export", f"{both}/mine_of_door.lazy_gossip-seed0", "--client", "0", "--out", "c.safetensors", cwd=tmp_path
        )
        assert ct.export.load(tmp_path / "c.safetensors") is not None

    def test_recipe(self, cli: Cli, here: Path) -> None:
        small = (
            "--rounds",
            "1",
            "--clients",
            "3",
            "--seeds",
            "1",
            "--data",
            "synthetic:size=200,classes=3",
            "--model",
            "mlp",
        )
        asked = ("--set", "epochs=1", "--set", f"{OWN}.keep=0.25", "--out", "recipe")
        done = cli.succeed(
            "recipe", "run", "dfedalt-t1", "--case", "1", "--methods", f"dfedavgm,{OWN}", *small, *asked, cwd=here
        )
        assert "momentum=0.9" in done.err  # what the methods of the experiment agree on
        assert "keep 0.25" not in done.out  # it is no change of what was published
        results = json.loads((here / "recipe" / "recipe.json").read_text())["results"]
        assert [(r["method"], r["published"] is None) for r in results] == [("dfedavgm", False), (OWN, True)]
        config = config_of(here / "recipe" / "case1-mine_of_door.lazy_gossip-seed0")
        assert (config["method"], config["settings"]["keep"], config["settings"]["momentum"]) == (OWN, 0.25, 0.9)


def test_published_comparisons_are_among_published_methods(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a method of one's own is, nobody else's speed-up grows by it."""
    monkeypatch.chdir(here)
    recipe = add_own_methods(recipes.load("dfedalt-t2"), [OWN])

    def reaching(last: int) -> list[list[dict[str, float]]]:
        return [[{"round": t, "personal_accuracy_after_mix": 0.9 if t == last else 0.1} for t in range(1, last + 1)]]

    runs = {(1, "dfedalt"): reaching(2), (1, "dfedavgm"): reaching(6), (1, OWN): reaching(30)}
    metric = f"speedup_to_{recipe.cases[0].target}"
    found = {m: across_runs(metric)(recipe, runs, 1, m, metric) for _, m in runs}  # type: ignore[misc]
    assert found == {"dfedalt": [3.0], "dfedavgm": [1.0], OWN: [0.2]}
    alone = {(1, OWN): reaching(30)}
    assert across_runs(metric)(recipe, alone, 1, OWN, metric) == [1.0]  # type: ignore[misc]


class TestPython:
    def test_names_are_found_before_they_are_used(self) -> None:
        """As a notebook completes them, in a process that has used none of them."""
        code = "import coterie as ct; print(*dir(ct)); [getattr(ct, name) for name in dir(ct)]"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert set(ct.__all__) <= set(told)
        assert {"fit", "algorithms", "submodels", "measure"} <= set(told)
        assert not {"Any", "TYPE_CHECKING", "import_module"} & set(told)
        assert {name.replace("-", "_") for name in ct.algorithms.BUILDERS} < set(dir(ct.algorithms))
        assert not {"Callable", "unknown", "peers", "pushsum"} & set(dir(ct.algorithms))

    def test_all_that_a_method_needs_is_there_and_told(self) -> None:
        """The docstring is the table of contents: it names everything, and nothing else."""
        offered = set(ct.method.__all__)
        assert all(hasattr(ct.method, name) for name in offered)
        told = re.findall(r"``(\w+)``", (ct.method.__doc__ or "").partition("What is here:")[2])
        assert sorted(told) == sorted(offered)

    @pytest.mark.parametrize("name", ["local", "fedprox", "fedper", "dfedalt", "dfedpgp", "ditto", "pfedme", "apfl"])
    def test_methods_of_ours_could_be_ones_own(self, name: str) -> None:
        """Their files, with everything imported from the door alone, make the same methods."""
        source = Path(inspect.getfile(inspect.unwrap(ct.algorithms.builder(name)))).read_text()
        code = re.sub(r"^from \.[\w.]* import", "from coterie.method import", source, flags=re.MULTILINE)
        names: dict[str, Any] = {"__name__": "mine"}
        exec(compile(code, "mine.py", "exec"), names)
        graph = {"topology": "ring"} if "topology" in ct.algorithms.build(name).settings else {}
        few = {"epochs": 1, "batch_size": 4, **graph}
        theirs, ours = names[name](**few), ct.algorithms.build(name, **few)
        assert theirs.settings == ours.settings
        one, other = (models(experiment(net("mlp"), ragged("mlp"), a), 1) for a in (theirs, ours))
        assert all(torch.equal(one[k], other[k]) for k in other)

    @pytest.mark.parametrize("page", ["docs/your-own-method.md", "docs/your-own-optimizer.md"])
    def test_code_of_ones_own_imports_nothing_private(self, page: str) -> None:
        text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
        used = re.findall(r"^(?:from|import) (coterie[\w.]*)", text, flags=re.MULTILINE)
        assert set(used) == {"coterie", "coterie.method"}


class TestList:
    def test_a_method_with_its_settings(self, cli: Cli, here: Path) -> None:
        shown = cli.succeed("list", OWN, cwd=here).out
        assert shown.startswith("Lazy gossip: every client keeps a part of its own model.\n")
        assert "x_i <- keep z_i + (1 - keep) sum_j W[i, j] z_j" in shown
        assert re.search(r"^keep +0.5 +0.5 +a number +How much of its own model a client keeps.", shown, re.MULTILINE)
        assert re.search(r"^kept_by +all +all +all or none", shown, re.MULTILINE)
        assert re.search(r"^batch_size +128 +16 +an integer or none +Samples in one batch", shown, re.MULTILINE)
        assert "Reference" not in shown

    def test_one_of_ours(self, cli: Cli, here: Path) -> None:
        shown = cli.succeed("list", "dfedsam_mgs", cwd=here).out
        assert "Reference: DFedSAM" in shown
        assert "Differs from the paper in:" in shown
        assert set(ct.algorithms.dfedsam_mgs().settings) <= set(re.findall(r"^(\w+) ", shown, re.MULTILINE))

    def test_another_name_is_refused(self, cli: Cli, here: Path) -> None:
        cli.refuse("list", "dfedatl", cwd=here, names=("did you mean dfedalt",))
        cli.refuse("list", "mine_of_door:lazy_gosip", cwd=here, names=("did you mean lazy_gossip",))


WRONG = {
    "not_there:f": ("not_there.py",),
    "mine_of_door:lazy_gosip": ("did you mean lazy_gossip",),
    "mine_of_door:three": ("is a int", "function"),
    "mine_of_door:number": ("returned int", "Algorithm"),
    "mine_of_door:untyped": ("'keep'", "keep: float"),
    "mine_of_door:needing": ("'keep'", "default"),
    "mine_of_door:misspelled": ("flot",),
    "mine_of_door:returning_nothing": ("returns NoneType", "return a Program"),
    "mine_of_door:sharing_another --model logreg": ("shares '1.wieght'", "did you mean 1.weight"),
    "mine_of_door:training_another --model logreg": ("trains '1.wieght'", "did you mean 1.weight"),
    "broken_of_door:f": ("AttributeError", "not_there", "broken_of_door.py, line 3"),
    "half_of_door:f": ("SyntaxError", "half_of_door.py, line 1"),
    "leaving_of_door:f": ("SystemExit", "leaving_of_door.py, line 2"),
    "lacking_of_door:f": ("no_such_package",),
    f"{OWN} --set mu=1": ("no option 'mu'", "keep"),
    f"{OWN} --set keep=much": ("keep takes a number",),
    f"{OWN} --set keep=-1": ("keep=-1", "at least 0"),
    f"{OWN} --set kept_by=some": ("kept_by='some'", "all or none"),
    "mine_of_dor.py:lazy_gossip": ("there is no file mine_of_dor.py",),
    "empty_of_door:f": ("has no function", "write f"),
    "calendar:f": ("another module 'calendar'", "rename"),
}


@pytest.mark.parametrize("typed", WRONG)
def test_what_is_wrong_is_one_sentence(cli: Cli, here: Path, typed: str) -> None:
    before = contents(here)
    cli.refuse("run", *typed.split(), *TINY, cwd=here, names=WRONG[typed])
    assert {k for k in contents(here) if "__pycache__" not in k} == {k for k in before if "__pycache__" not in k}


def test_a_file_of_a_model_names_no_code_either(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown method 'os:abort'"):
        ct.algorithms.rebuild("os:abort")
    with pytest.raises(UserError, match="unknown model"):
        ct.models.rebuild_trusted({"module": "os:abort,x=1"})
