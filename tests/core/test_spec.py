"""Typed texts: the same mistake has the same words, whatever it is made with."""

from typing import Annotated, Any, Literal

import numpy as np
import pytest

import coterie as ct
from coterie.algorithms.settings import parse_settings
from coterie.core.annotations import Range, in_words
from coterie.core.arguments import checked
from coterie.core.errors import UserError
from coterie.core.spec import Spec, bind, convert, parameters, parse
from coterie.data.partition import split
from coterie.training.select_engine import choose

# What answers a mistake. The table below fills it in, once per kind of thing that people type.
WORDS = {
    "name": "unknown {kind} {typed!r}: did you mean {fix}?",
    "option": "{kind} {name} has no option {key!r} (did you mean {fix}?): it takes {takes}",
    "type": "{key}={typed!r} does not fit {kind} {name}: {key} takes {fix}",
    "range": "{key}={typed} is out of range: it must be a number {fix}",
    "choice": "{key}={typed!r} is not a choice: use {fix}",
    "missing": "{kind} {name} needs {key} ({fix}): write {name}:{key}=VALUE",
    "twice": "{name} is given {key} twice: keep one of {fix}",
    "too many": "{kind} {name} has no place for {typed!r}: it takes {fix}",
}
COMMON = ", ".join(ct.algorithms.options.Options.__annotations__)
TABLE: list[tuple[str, str, str, dict[str, str]]] = [
    ("name", "method", "dittto", {"typed": "dittto", "fix": "ditto"}),
    ("name", "source", "digitz", {"typed": "digitz", "fix": "digits"}),
    ("name", "partition", "shrads:2", {"typed": "shrads", "fix": "shards"}),
    ("name", "topology", "rnig", {"typed": "rnig", "fix": "ring"}),
    ("name", "model", "mpl", {"typed": "mpl", "fix": "mlp"}),
    ("name", "engine", "serail", {"typed": "serail", "fix": "serial"}),
    ("option", "method", "local lrr=1", {"name": "local", "key": "lrr", "fix": "lr", "takes": COMMON}),
    (
        "option",
        "source",
        "mnist-halves:sice=3",
        {"name": "mnist-halves", "key": "sice", "fix": "size", "takes": "size"},
    ),
    (
        "option",
        "partition",
        "dirichlet:0.1,alfa=1",
        {"name": "dirichlet", "key": "alfa", "fix": "alpha", "takes": "alpha"},
    ),
    ("option", "topology", "random:kk=3", {"name": "random", "key": "kk", "fix": "k", "takes": "k"}),
    ("option", "model", "mlp:widht=3", {"name": "mlp", "key": "widht", "fix": "width", "takes": "width, rate"}),
    (
        "option",
        "engine",
        "vectorized:chunks=3",
        {"name": "vectorized", "key": "chunks", "fix": "chunk", "takes": "chunk"},
    ),
    ("type", "method", "fedavg lr=abc", {"name": "fedavg", "key": "lr", "typed": "abc", "fix": "a number"}),
    (
        "type",
        "source",
        "synthetic:size=1.5",
        {"name": "synthetic", "key": "size", "typed": "1.5", "fix": "an integer"},
    ),
    (
        "type",
        "partition",
        "iid:balanced=1",
        {"name": "iid", "key": "balanced", "typed": "1", "fix": "true or false"},
    ),
    ("type", "topology", "random:ten", {"name": "random", "key": "k", "typed": "ten", "fix": "an integer"}),
    ("type", "model", "mlp:rate=half", {"name": "mlp", "key": "rate", "typed": "half", "fix": "a number"}),
    (
        "type",
        "engine",
        "graphed:many",
        {"name": "graphed", "key": "chunk", "typed": "many", "fix": "an integer"},
    ),
    ("range", "method", "fedavg momentum=2", {"key": "momentum", "typed": "2.0", "fix": "between 0 and 1"}),
    ("range", "source", "text:a.txt,mask=2", {"key": "mask", "typed": "2.0", "fix": "between 0 and 1"}),
    ("range", "partition", "dirichlet:0", {"key": "alpha", "typed": "0.0", "fix": "above 0"}),
    ("range", "topology", "random:0", {"key": "k", "typed": "0", "fix": "at least 1"}),
    ("range", "model", "mlp:rate=1.5", {"key": "rate", "typed": "1.5", "fix": "above 0 and at most 1"}),
    ("range", "model", "mlp:rate=nan", {"key": "rate", "typed": "nan", "fix": "above 0 and at most 1"}),
    ("range", "engine", "vectorized:0", {"key": "chunk", "typed": "0", "fix": "at least 1"}),
    ("choice", "method", "fedavg weighting=age", {"key": "weighting", "typed": "age", "fix": "size or uniform"}),
    ("choice", "source", "text:a.txt,hide=often", {"key": "hide", "typed": "often", "fix": "once or anew"}),
    ("missing", "source", "npz", {"name": "npz", "key": "path", "fix": "a string"}),
    ("missing", "partition", "dirichlet", {"name": "dirichlet", "key": "alpha", "fix": "a number"}),
    ("missing", "topology", "clique", {"name": "clique", "key": "size", "fix": "an integer"}),
    ("twice", "method", "fedavg lr=1 lr=2", {"name": "fedavg", "key": "lr", "fix": "1 and 2"}),
    ("twice", "source", "synthetic:300,size=200", {"name": "synthetic", "key": "size", "fix": "300 and 200"}),
    ("twice", "partition", "dirichlet:1,alpha=2", {"name": "dirichlet", "key": "alpha", "fix": "1 and 2"}),
    ("twice", "topology", "random:k=3,k=4", {"name": "random", "key": "k", "fix": "3 and 4"}),
    ("twice", "model", "mlp:width=3,width=4", {"name": "mlp", "key": "width", "fix": "3 and 4"}),
    ("twice", "engine", "vectorized:3,chunk=4", {"name": "vectorized", "key": "chunk", "fix": "3 and 4"}),
    ("too many", "source", "npz:a,true,b", {"name": "npz", "typed": "b", "fix": "path, augment"}),
    ("too many", "partition", "dirichlet:1,2", {"name": "dirichlet", "typed": "2", "fix": "alpha"}),
    ("too many", "topology", "ring:3", {"name": "ring", "typed": "3", "fix": "no options"}),
    ("too many", "model", "mlp:128", {"name": "mlp", "typed": "128", "fix": "width=VALUE, rate=VALUE"}),
    ("too many", "engine", "serial:3", {"name": "serial", "typed": "3", "fix": "no options"}),
]


def type_in(kind: str, text: str) -> None:
    """Do with a text what the commands do; a method is typed with its ``--set`` items behind it."""
    nothing: Any = None
    if kind == "method":
        name, *items = text.split()
        parse_settings(items, {name: ct.algorithms.builder(name)})
    elif kind == "source":
        ct.data.federate(text, 2)
    elif kind == "partition":
        split(text, np.zeros(4, np.int64), 2, seed=0)
    elif kind == "topology":
        ct.topology.build(text, 8)
    elif kind == "model":
        ct.models.build(text, classes=2, input_shape=(4,))
    else:
        choose(text, nothing)  # refused before it looks at a model


@pytest.mark.parametrize(("mistake", "kind", "text", "parts"), TABLE, ids=[" ".join(row[:2]) for row in TABLE])
def test_a_mistake_has_one_wording(mistake: str, kind: str, text: str, parts: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        type_in(kind, text)
    assert str(caught.value) == WORDS[mistake].format(kind=kind, **parts)


def test_every_kind_is_in_the_table() -> None:
    """Settings of methods are typed by name and have defaults; not every kind has choices or needs something."""
    kinds = {"method", "source", "partition", "topology", "model", "engine"}
    found = {mistake: {kind for m, kind, *_ in TABLE if m == mistake} for mistake in WORDS}
    assert all(found[mistake] == kinds for mistake in ("name", "option", "type", "range", "twice"))
    assert found["too many"] == kinds - {"method"}


def test_values_from_python_are_refused_in_the_same_words() -> None:
    with pytest.raises(UserError, match="k=0 is out of range: it must be a number at least 1"):
        ct.topology.random(8, 0)
    with pytest.raises(UserError, match="size='many' does not fit source synthetic: size takes an integer"):
        ct.data.federate("synthetic", 2, size="many")
    with pytest.raises(UserError, match="synthetic is given size twice: keep one of 300 and 200"):
        ct.data.federate("synthetic:size=300", 2, size=200)
    with pytest.raises(UserError, match="width=True does not fit model mlp: width takes an integer"):
        ct.models.build("mlp", classes=2, width=True)
    with pytest.raises(UserError, match=r"lr='abc' does not fit .*method: lr takes a number"):
        ct.algorithms.fedavg(lr="abc")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="lam='abc' does not fit method ditto: lam takes a number"):
        ct.algorithms.ditto(lam="abc")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3", int, 3),
        ("3", float, 3.0),
        ("3", str, "3"),
        ("3", int | str, 3),
        ("a,b", int | str, "a,b"),
        ("3", Any, 3),
        ("yes", bool, True),
        ("none", float | None, None),
        ("none", str, "none"),
        ("5,2", int | tuple[int, ...], (5, 2)),
        ("5", int | tuple[int, ...], 5),
        ("0.5", tuple[float, ...] | None, (0.5,)),
        ("-1", Literal[1, -1], -1),
        (np.int64(3), Annotated[int, Range(1)] | None, 3),
        (np.float32(0.5), float, 0.5),
        ([5, 2], int | tuple[int, ...], (5, 2)),
        ("3", Annotated[int, ["a note"]], 3),
    ],
)
def test_a_text_is_read_as_the_annotation_says(text: Any, hint: Any, value: Any) -> None:
    found = convert("thing x", "key", text, hint)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("value", [True, 1.5, "a", (1, "a"), float("nan"), 0])
def test_what_does_not_fit_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match="key"):
        convert("thing x", "key", value, Annotated[int, Range(1)] | tuple[int, ...] | None)


def test_ranges_in_words() -> None:
    words = ["at least 0", "above 0", "between 0 and 1", "above 0 and at most 1", "at least 0 and below 1"]
    ranges = Range(), Range(above=True), Range(0, 1), Range(0, 1, above=True), Range(0, 1, below=True)
    assert [str(r) for r in ranges] == words
    for r, edge in ((ranges[1], 0), (ranges[3], 0), (ranges[4], 1)):
        with pytest.raises(UserError, match=f"x={edge} is out of range"):
            r.check("x", edge)
    Range(0, 1).check("x", 0)
    Range(0, 1).check("x", [0.5, 1])


def test_code_of_ones_own_says_what_it_takes() -> None:
    def open_ended(width=8, *rest, depth: "nowhere" = 2, **more):  # type: ignore  # noqa
        raise AssertionError

    takes = parameters(open_ended)
    assert bind("model", parse("mine:16,depth=3,more=0.5"), takes) == {"width": 16, "depth": 3, "more": 0.5}
    assert in_words(complex) == "nothing that can be typed"
    with pytest.raises(UserError, match=r"needs width .*: write mine:net,width=VALUE"):
        bind("model", Spec("mine:net", (), {}), parameters(lambda width: None))


def test_the_checks_of_a_function_keep_its_face() -> None:
    @checked("shape")
    def two_sided(n: int, *, share: Annotated[float, Range(0, 1)] = 0.5) -> tuple[int, float]:
        """Return both."""
        return n, share

    assert two_sided(3, share=1) == (3, 1.0)
    assert list(parameters(two_sided)) == ["n", "share"]
    with pytest.raises(UserError, match=r"n=1\.5 does not fit shape two-sided: n takes an integer"):
        two_sided(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        two_sided()  # type: ignore[call-arg]
