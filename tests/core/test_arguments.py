"""What public functions are given in Python: every argument is held against its annotation, before anything is done."""

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.core.annotations import Example, PositiveInt, Range
from coterie.core.arguments import accept, checked, checked_class
from coterie.papers.recipes import Changes
from coterie.training.client import Client

X, Y = torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
ROWS = (torch.arange(2), torch.arange(2, 4))
FED = ct.data.from_tensors([(X, Y)] * 2, [(X, Y)] * 2)
W = torch.eye(2, dtype=torch.float64)
NET = nn.Linear(3, 2)
SITE = ct.export.Personalized(Client({}, {}, None), None, None, None, 0)
FRAME = pandas.DataFrame({"a": range(8), "y": [0, 1] * 4})
RECIPE = ct.recipes.load("dfedalt-t1")
GRAPH_FACTS = ("degree", "degrees", "diameter", "edges", "in_neighbors", "spectral_gap", "stochasticity")
# One call of every documented function and class: the arguments that it needs, all of them right.
CALLS: dict[str, dict[str, Any]] = {
    "algorithms.build": {"name": "fedavg"},
    "algorithms.builder": {"name": "fedavg"},
    "data.federation.Federation": {"x": X, "y": Y, "test_x": X, "test_y": Y, "train": ROWS, "test": ROWS, "classes": 2},
    "data.frames.from_csv": {"path": "nowhere", "target": "y"},
    "data.frames.from_frame": {"frame": FRAME, "target": "y"},
    "data.frames.from_huggingface": {"path": "nowhere", "target": "y"},
    "data.frames.from_parquet": {"path": "nowhere", "target": "y"},
    "data.federation.from_tensors": {"train": [(X, Y)], "test": [(X, Y)]},
    "data.sources.federate": {"source": "synthetic"},
    "data.tables.TableOptions": {"target": "y"},
    "data.transform.Transform": {"mean": (0.5,), "std": (0.5,)},
    "export.personalize.personalize": {"run": "nowhere", "federation": FED},
    "export.predictor.predictor": {"run": "nowhere"},
    "export.restore.load": {"path": "nowhere"},
    "export.save": {"run": "nowhere", "client": 0, "path": "x.pt"},
    "export.save_all": {"run": "nowhere", "folder": "x"},
    "export.save_site": {"run": "nowhere", "site": SITE, "path": "x.pt"},
    "measure.metric.Metric": {"name": "error", "each": torch.sub, "value": torch.mean},
    "measure.metric.metric": {"function": torch.dist},
    "models.zoo.build": {"name": "mlp", "classes": 2},
    "papers.recipes.changes.Changes": {},
    "papers.recipes.changes.apply_changes": {"recipe": RECIPE, "changes": Changes()},
    "papers.recipes.published.published_numbers": {},
    "papers.recipes.recipe.load": {"name": "dfedalt-t1"},
    "papers.recipes.recipe.names": {},
    "papers.recipes.recipe.papers": {},
    "report.write": {"runs": ["nowhere"], "path": "x.html"},
    "study.compare.compare": {"methods": ["local"], "rounds": 1, "progress": False},
    "study.tune.tune": {"method": "local", "grid": {"lr": [0.1]}, "trials": 1, "rounds": 1, "progress": False},
    "submodels.lowrank.factor_pairs": {"module": NET},
    "submodels.lowrank.factorize": {"module": NET, "rank_ratio": 0.5},
    "submodels.lowrank.recover": {"module": NET},
    "submodels.width.narrow": {"module": NET, "rate": 0.5},
    "papers.theory.examine": {"method": "dfedsam"},
    "topology.draws.clique": {"n": 4, "size": 2},
    "topology.draws.random": {"n": 4, "k": 2},
    "topology.draws.random_pull": {"n": 4, "k": 2},
    "topology.draws.random_push": {"n": 4, "k": 2},
    **{f"topology.facts.{f}": {"W": W} for f in GRAPH_FACTS},
    "topology.graphs.Topology": {"name": "x", "n": 2, "stochastic": "doubly", "fixed": True, "matrix": lambda t: W},
    **{f"topology.graphs.{f}": {"n": 4} for f in ["exponential", "full", "grid", "none", "ring", "star"]},
    "topology.graphs.metropolis": {"adjacency": W},
    "topology.parse.build": {"topology": "ring", "n": 4},
    "topology.sparse.drop_messages": {
        "W": W,
        "probability": 0.5,
        "weight_stays_with": "receiver",
        "rng": np.random.default_rng(0),
    },
    "training.settings.Cluster": {},
    "training.prepare.fit": {"model": NET, "federation": FED, "algorithm": ct.algorithms.fedavg(), "rounds": 1},
    "training.run.load": {"path": "nowhere"},
    "training.time_limit.TimeLimit": {"time": "1m"},
    "track.tensorboard.TensorBoard": {},
    "track.mlflow.MLflow": {},
    "track.wandb.WandB": {},
}
# What Coterie makes and people read, or a method's author builds on: nobody is expected to call it.
HANDED_OUT = re.compile(
    r"algorithms\.base\.Algorithm|algorithms\.options\..*|core\.(errors|schema)\..*"
    r"|papers\.recipes\.(reading|recipe)\.[A-Z].*|papers\.recipes\.published\.PublishedNumber"
    r"|papers\.theory\.outcome\.Outcome|submodels\.width\.Cut|training\.run\.Run"
    r"|training\.client\.(Client|Predictor)"
    r"|training\.time_limit\.OutOfTime|export\.personalize\.Personalized|study\.(compared\.Compared|tune\.TuneResult)"
)
HOSTILE = [None, object(), b"x", [object()], 1j, {"a": 1}, slice(3)]


def documented() -> Iterator[str]:
    """The functions and classes that the pages of the API show, but not the parts of a method; and the trackers."""
    pages = Path(__file__).parents[2] / "docs" / "api"
    for page in sorted(pages.glob("*.md")):
        shown = re.findall(r"^::: coterie\.(\S+)(?:\n +options:\n +members: \[(.*)\])?", page.read_text(), re.MULTILINE)
        for name, members in shown if page.name != "inside.md" else ():
            found = resolve(name)
            if not isinstance(found, types.ModuleType):
                yield name
                continue
            room = import_module(f"coterie.{re.match(r'papers[.][a-z]+|[a-z]+', name)[0]}")  # type: ignore[index]
            for member in members.split(", ") if members else room.__all__:
                if getattr(getattr(room, member), "__module__", None) == f"coterie.{name}":
                    yield f"{name}.{member}"
    yield from ("track.tensorboard.TensorBoard", "track.mlflow.MLflow", "track.wandb.WandB")


def resolve(name: str) -> Any:
    """Return what the documentation calls by this name."""
    head, _, last = f"coterie.{name}".rpartition(".")
    try:
        return import_module(f"coterie.{name}")
    except ModuleNotFoundError:
        return getattr(import_module(head), last)


PUBLIC = sorted({name for name in documented() if not HANDED_OUT.fullmatch(name)})


def test_every_documented_function_has_a_call() -> None:
    assert sorted(CALLS) == PUBLIC


def arguments(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that have a name, with their annotations."""
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            yield name, hints[name]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_of_a_public_function_is_checked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function = resolve(name)
    for argument, hint in arguments(function):
        for value in HOSTILE:
            if (value is None and type(None) in get_args(hint)) or (
                isinstance(value, dict) and {dict, Mapping} & {get_origin(kind) for kind in (hint, *get_args(hint))}
            ):
                continue
            with pytest.raises(ct.UserError, match=rf"\b{argument}\b") as refused:
                function(**{**CALLS[name], argument: value})
            assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ct.algorithms.BUILDERS)
def test_every_setting_of_a_method_is_checked(method: str) -> None:
    build = ct.algorithms.builder(method)
    usual = build().settings
    own = {k: p.annotation for k, p in inspect.signature(build).parameters.items() if p.kind is p.KEYWORD_ONLY}
    for setting in usual:
        for value in HOSTILE[1:]:
            with pytest.raises(ct.UserError, match=rf"\b{setting}\b"):
                build(**{setting: value})
    assert own.keys() <= usual.keys()
    with pytest.raises(ct.UserError, match="lr cannot be none: leave it out"):
        build(lr=None)


FIT = {
    "rounds": [0, -1, 1.5, "3", True, 10**12, float("nan"), np.array([1, 2])],
    "seed": [1.5, "0", True, float("inf")],
    "engine": [3, "", "serail", ["serial"]],
    "device": [3, "tpu", "", 0.5],
    "loss": ["x", 3, nn.CrossEntropyLoss],
    "metric": ["nonsense", 3, "", [3], ["accuracy", "accuracy"], "mse"],
    "out": [3, True, ["a"]],
    "resume": ["yes", 1],
    "progress": [3, 1.0],
    "evaluate_every": [0, 1.5, "never", True],
    "validation": [-1, 1.5, "half", None],
    "holdout_clients": ["2", -1, True],
    "select": ["best", None, 3],
    "patience": [0, 1.5, "long"],
    "stop_at": ["80", True, float("inf")],
    "init": ["own", 3, True],
    "drop_messages": [-0.1, 1.5, "x", float("nan"), True],
    "offline": [2, "x", float("inf")],
    "record": ["gradients", ["gradient"], [None], 3],
    "precision": ["fp64", 32, True],
    "trackers": [3, [3], "tensorboard", [ct.track.TensorBoard]],
    "cluster": [3, "auto"],
    "time_limit": ["25m", 60],
    "model": ["mlp", 3],
    "federation": ["digits", (X, Y)],
    "algorithm": ["fedavg", ct.algorithms.fedavg],
}


@pytest.mark.parametrize("argument", FIT)
def test_what_people_type_by_mistake_is_refused_in_one_sentence(argument: str, tmp_path: Path) -> None:
    assert sorted(FIT) == sorted(name for name, _ in arguments(ct.fit))
    for value in FIT[argument]:
        with pytest.raises(ct.UserError) as refused:
            ct.fit(**{**CALLS["training.prepare.fit"], "progress": False, "out": tmp_path / "a", argument: value})
        said = str(refused.value)
        assert argument in said
        assert "\n" not in said
        assert len(said) < 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "value"), [("model", nn.Linear), ("model", lambda x: x), ("loss", lambda outputs: outputs)]
)
def test_a_function_of_other_arguments_ends_in_the_words_of_python(argument: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        ct.fit(**{**CALLS["training.prepare.fit"], "progress": False, "out": tmp_path / "a", argument: value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", [ct.Run.save, ct.Run.report, ct.data.Federation.to])
def test_methods_that_take_something_check_it(method: Any) -> None:
    for value in (3, b"x", None, ["a"]):
        with pytest.raises(ct.UserError, match=rf"(path|device)=.* does not fit function {method.__name__}"):
            method(None, value)


def test_an_option_that_a_function_does_not_have_is_said() -> None:
    with pytest.raises(ct.UserError, match=r"function fit has no option 'round' \(did you mean rounds"):
        ct.fit(NET, FED, ct.algorithms.fedavg(), round=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="fit: missing a required argument: 'rounds'"):
        ct.fit(NET, FED, ct.algorithms.fedavg())  # type: ignore[call-arg]


def test_numbers_of_numpy_are_taken_as_the_numbers_they_are(tmp_path: Path) -> None:
    algorithm = ct.algorithms.dfedavg(
        topology="ring",
        lr=np.float32(0.5),
        epochs=np.int8(1),
        batch_size=np.uint64(2),  # type: ignore[arg-type]
        keep_optimizer_state=np.bool_(True),
        momentum=np.array(0.5),  # type: ignore[arg-type]
    )
    fed = ct.data.federate("synthetic", np.int32(3), "iid", np.int64(5), size=np.int64(60), classes=np.int16(2))  # type: ignore[arg-type]
    model = ct.models.build("mlp", fed, width=np.int64(3), seed=np.int64(1))  # type: ignore[arg-type]
    given = {
        "rounds": np.int64(1),
        "seed": np.int64(3),
        "drop_messages": np.float64(0.25),
    }
    run = ct.fit(model, fed, algorithm, progress=np.bool_(False), **given)  # type: ignore[arg-type]
    again = ct.load(run.save(tmp_path / "a"))
    assert again.config == run.config
    assert (run.config["seed"], run.config["rounds"], run.config["drop_messages"]) == (3, 1, 0.25)
    assert type(run.config["settings"]["keep_optimizer_state"]) is bool


@runtime_checkable
class Named(Protocol):
    name: str

    def tell(self) -> None: ...


class Teller:
    name = "x"

    def tell(self) -> None: ...


TELLER = Teller()


@pytest.mark.parametrize(
    ("value", "hint", "found"),
    [
        (3, float, 3.0),
        (3, float | int, 3),
        (np.int64(3), Annotated[float | int, Range()], 3),
        (np.float64(3), float | int, 3.0),
        (np.float16(0.5), Annotated[float, Range(0, 1)], 0.5),
        (np.bool_(False), bool, False),
        (np.array(2), PositiveInt, 2),
        ("auto", PositiveInt | Literal["auto"], "auto"),
        ([np.int64(1), 2], tuple[int, ...], (1, 2)),
        ([np.int64(1), 2], Sequence[int], (1, 2)),
        (("a", 1), tuple[str, int], ("a", 1)),
        (None, int | None, None),
        (TELLER, Named | None, TELLER),
    ],
)
def test_a_value_becomes_what_the_annotation_says(value: Any, hint: Any, found: Any) -> None:
    got = accept("thing x", "key", value, hint)
    assert (got, type(got)) == (found, type(found))


@pytest.mark.parametrize(
    ("value", "hint", "told"),
    [
        (True, int, "key=True does not fit thing x: key takes an integer"),
        ("3", int | None, "key='3' does not fit thing x: key takes an integer or none"),
        (10**400, float, "key takes a number"),
        (float("inf"), float, "key=inf is out of range"),
        (np.datetime64("2026-01-01"), int, "key takes an integer"),
        (torch.tensor(3), int, r"key=tensor\(3\) does not fit"),
        (0, PositiveInt | Literal["auto"], "key=0 is out of range: it must be a number at least 1"),
        ("atuo", PositiveInt | Literal["auto"], "key='atuo' is not a choice: did you mean auto"),
        (1, Literal["a", "b"], "key=1 does not fit thing x: key takes a or b"),
        ("ab", Sequence[str], r"key takes a list of \(a string\)"),
        (["a", 3], Sequence[str], r"key\[1\]=3 does not fit thing x: key\[1\] takes a string"),
        ([["a"], [3]], Sequence[Sequence[str]], r"key\[1\]\[0\]=3|key\[1\]=\[3\]"),
        ((1, 2, 3), tuple[int, int], "does not fit"),
        (3, Callable[[int], int], "key takes a function"),
        (Teller, Named, "key=<class .* takes a Named"),
        (object(), Annotated[Named, Example("Teller()")] | None, r"key takes none or a Named, such as Teller\(\)"),
        ("x" * 5000, int, "key='xxx"),
    ],
)
def test_a_value_that_the_annotation_does_not_allow_is_refused(value: Any, hint: Any, told: str) -> None:
    with pytest.raises(ct.UserError, match=told) as refused:
        accept("thing x", "key", value, hint)
    assert len(str(refused.value)) < 200


def test_items_that_fit_are_not_copied() -> None:
    given = [X, X]
    assert accept("thing x", "key", given, Sequence[Tensor]) is given


@checked_class("class")
class Shape:
    """A class that names itself."""

    def __init__(self, n: PositiveInt, inside: "Shape | None" = None) -> None:
        self.n, self.inside = n, inside


def test_a_class_is_checked_when_it_is_made() -> None:
    assert Shape(np.int64(3), Shape(1)).n == 3  # type: ignore[arg-type]
    with pytest.raises(ct.UserError, match="n=0 is out of range"):
        Shape(0)
    with pytest.raises(ct.UserError, match="inside=3 does not fit class Shape: inside takes a Shape or none"):
        Shape(1, 3)  # type: ignore[arg-type]


def test_a_function_may_check_some_arguments_itself() -> None:
    @checked("function", own=("parts",))
    def own(parts: int, n: int = 3) -> tuple[Any, int]:
        return parts, n

    assert own("anything") == ("anything", 3)  # type: ignore[arg-type]
    with pytest.raises(ct.UserError, match="n='x' does not fit function own"):
        own(1, n="x")  # type: ignore[arg-type]


class Mine(Exception):  # noqa: N818 (what people raise)
    """An error of somebody's own code, which takes two arguments and cannot be made again from its text."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} {other}")


def topology_that_fails(t: int) -> Tensor:
    if t == 2:
        raise Mine(1, 2)
    return W


def loss_that_fails(at: int) -> Callable[[Tensor, Tensor], Tensor]:
    seen: list[None] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(None)
        if len(seen) > at:
            raise Mine(1, 2)
        return nn.functional.cross_entropy(outputs, targets)

    return loss


def test_errors_of_ones_own_topology_pass_as_they_are(tmp_path: Path) -> None:
    algorithm = ct.algorithms.dfedavg(topology=topology_that_fails, steps=1)
    for rounds, engine in ((3, "serial"), (3, "auto")):
        with pytest.raises(Mine) as raised:
            ct.fit(NET, FED, algorithm, rounds=rounds, engine=engine, progress=False)
        said = "\n".join(raised.value.__notes__)
        assert "the function of the topology, with t=2" in said
        assert "round 3" in said
    with pytest.raises(Mine) as raised:
        ct.topology.build(lambda t: topology_that_fails(2), 2)
    assert "with t=0" in raised.value.__notes__[0]


def test_errors_of_ones_own_loss_pass_as_they_are(tmp_path: Path) -> None:
    local = ct.algorithms.local(steps=1)
    with pytest.raises(Mine) as raised:
        ct.fit(NET, FED, local, rounds=1, loss=loss_that_fails(0), out=tmp_path / "a", progress=False)
    assert raised.value.__notes__[0] == "It happened with the first samples."
    assert "before the first round" in raised.value.__notes__[-1]
    assert list(tmp_path.iterdir()) == []
    calls = next(n for n in range(1, 60) if _fails_in_a_round(n, local))
    assert calls > 1


def _fails_in_a_round(calls: int, algorithm: ct.algorithms.Algorithm) -> bool:
    """Return whether a loss that fails after so many calls fails in a round, with the client that it failed for."""
    with pytest.raises(Mine) as raised:
        ct.fit(NET, FED, algorithm, rounds=50, loss=loss_that_fails(calls), engine="serial", progress=False)
    said = "\n".join(raised.value.__notes__)
    return re.search(r"round \d", said) is not None and "client" in said
