"""Command lines drawn from the commands' own signatures: each option with a value that suits it, or a hostile one."""

import inspect
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

import typer
from hypothesis import strategies as st
from typer.models import ArgumentInfo

from coterie.cli.app import app
from coterie.cli.common.fields import flag


class Typed(NamedTuple):
    """A parameter of a command, as its signature declares it."""

    name: str
    kind: type
    several: bool
    required: bool
    positional: bool
    switches: tuple[str, ...]  # how it is typed


class Command(NamedTuple):
    """A command: the words that name it, and its parameters."""

    words: tuple[str, ...]
    parameters: tuple[Typed, ...]


def commands(group: typer.Typer = app, before: tuple[str, ...] = ()) -> Iterator[Command]:
    """All commands, those of groups included."""
    for info in group.registered_commands:
        function = info.callback
        assert function is not None
        name = info.name or function.__name__.replace("_", "-")
        yield Command((*before, name), tuple(map(_parameter, inspect.signature(function).parameters.values())))
    for part in group.registered_groups:
        assert part.typer_instance is not None
        assert isinstance(part.name, str)
        yield from commands(part.typer_instance, (*before, part.name))


def _parameter(p: inspect.Parameter) -> Typed:
    kind, about = get_args(p.annotation)
    while get_origin(kind) is list or NoneType in get_args(kind):
        kind = next(k for k in get_args(kind) if k is not NoneType)
    several = "list" in str(p.annotation)
    declared = getattr(about, "param_decls", None) or ()
    required = p.default is inspect.Parameter.empty
    return Typed(p.name, kind, several, required, isinstance(about, ArgumentInfo), tuple(declared) or (flag(p.name),))


LINEAR = "torch.nn:Linear,in_features=20,out_features=4"
# What suits a parameter, by its name. Runs are tiny: the draws are about what happens before the first round.
SUITABLE: dict[str, list[str]] = {
    "method": ["dfedavg", "fedavg", "dfedsam", "scaffold-p", "heterofl", "fedlmt", "osgp", "dispfl", "run"],
    "methods": ["dfedavg", "fedavg", "local", "fedper", "fedavg@lr=0.2", "exp.toml"],
    "data": ["digits", "synthetic:size=200,classes=4", "npz:own.npz", "text:words.txt,length=4,rows=3"],
    "source": ["digits", "synthetic:size=200,classes=4", "npz:own.npz"],
    "model": [
        "logreg",
        "mlp:width=8",
        "small-cnn",
        "resnet8-gn:width=8",
        "torch.nn:Linear,in_features=20,out_features=4",
    ],
    "partition": ["iid", "dirichlet:0.5", "pathological:2", "shards:1", "natural"],
    "settings": ["settings.toml", "missing.toml"],
    "validation": ["0.2", "0.9"],
    "select": ["last", "best-validation", "best-test"],
    "grid": ["lr=0.01,0.1", "epochs=1,2", "topology=ring,full"],
    "tune": ["lr=0.01,0.1"],
    "sweep": ["T=2,4", "K=1,2", "m=4,8", "lambda=ring,full"],
    "sampler": ["grid", "random", "tpe"],
    "loss": ["mse", "bce", "dice", "cross-entropy", "huber"],
    "metric": ["auroc", "macro-f1", "mse", "perplexity", "iou"],
    "topology": ["ring", "random:2", "full", "none"],
    "set": ["epochs=1", "lr=0.1", "batch_size=8", "momentum=0", "steps=2", "personal=head", "dfedavg.lr=0.2"],
    "record": ["gradients", "sharpness", "perplexity", "deltas", "mass", "train-accuracy"],
    "engine": ["auto", "serial", "vectorized", "vectorized:2"],
    "device": ["auto", "cpu"],
    "precision": ["fp32", "bf16", "tf32"],
    "init": ["common", "per-client"],
    "optimizer": ["sgd", "adam", "adamw"],
    "capacities": ["b4-b2", "1-0.5", "b2@1-b4"],
    "ray_address": ["127.0.0.1:1"],
    "for_": ["90s", "25m", "1h30m"],
    "format": ["table", "markdown", "latex", "json", "csv", "safetensors", "torchscript"],
    "form": ["recovered", "factorized"],
    "columns": ["sent", "worst-client,sent"],
    "config": ["peer.toml", "exp.toml", "missing.toml"],
    "tables": ["csv:own.csv,target=y", "npz:own.npz", "missing.json"],
    "what": ["dfedalt", "presets", "columns"],
    "client": ["0", "all"],
    "name": ["ring", "random:3", "dfedalt-t1", "dfedsam-f2", "fedlmt-t2"],
    "names": ["mnist"],
    "case": ["1", "dirichlet"],
    "reading": ["paper", "code"],
    "paper": ["dfedalt", "fedlmt"],
    "problem": ["noise=0.5", "dim=3,spread=1"],
    "shape": ["1,8,8", "3,32,32", "20"],
    "workloads": ["W1"],
    "trust": ["mine:net"],
    "runs": ["run", "."],
    "run": ["run", "run/config.json"],
    "out": ["new", "a.png", "new.safetensors", "new.tar.gz"],
    "png": ["a.png", "new/a.png"],
    "folder": ["new", "."],
    "data_dir": ["new", "."],
}
SERVICES = ("mlflow", "wandb", "tensorboard")  # which take seconds to import, and have tests of their own
SHORT = {"clients": "3", "rounds": "1", "data": "digits", "model": "mlp:width=8"}  # unless something else is drawn
NUMBERS = {int: ["1", "2", "3"], float: ["0.5", "1", "80"]}
HUGE = "9" * 30
_WORDS = f"""
-1 0 -0 1e999 1e300 nan inf -inf 0x10 1_000 ² {HUGE} -{HUGE} 1/0 1,2 0,0,0 none None true null x case . .. ~
~nobody run/config.json/x file.txt /proc/x missing/deep [/bold] [red] :smile: $(id) `id` %s {{}} * @ - -- = , :
a= =b a:b=c=d :foo ..:foo .x:foo foo: builtins:dict torch:zeros torch.nn:Flatten os:getcwd mine:missing cuda:99
meta mps auto:1 vectorized:0 torch.nn:Linear,in_features=-64,out_features=10
torch.nn:Linear,in_features=64,out_features=9999999999999 random:0 ring:3 random:{HUGE} mlp:width=0
mlp:width=999999999 cnn:padding=99 dirichlet:nan dirichlet:0 pathological:99 shards:-1 synthetic:size=999999999
synthetic:classes=0 npz:missing npz:file.txt text:run text:missing image-folder:. image-folder:missing lr=nan
lr=inf lr=1e38 epochs={HUGE} steps={HUGE} batch_size=0 personal= lr =0.1 participation=-1 quantize=99
topology=ring:3 b9 nan-nan inf b1x99 b1@0.5 b1@-1 dim=-1 noise=nan dim={HUGE} é 日本語 ' " \\
"""
HOSTILE = [
    *_WORDS.split(),
    *("", " ", "\x1b[31m", "a\nb", "a\tb", "a\udcff"),
    *("9" * 5000, "x" * 300, "x" * 5000, "a/" * 2000, "3," * 400),
]


def _value(p: Typed) -> st.SearchStrategy[str]:
    suits = st.sampled_from(NUMBERS.get(p.kind) or SUITABLE[p.name])
    printable = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
    return st.integers(0, 9).flatmap(lambda k: suits if k < 7 else st.sampled_from(HOSTILE) if k < 9 else printable)


@st.composite
def command_lines(draw: Callable[..., Any]) -> list[str]:
    """Words behind ``coterie``; runs that could begin are short, and of few clients."""
    every = list(commands())
    training = [c for c in every if any(p.name == "rounds" for p in c.parameters)]  # which have the most options
    command = draw(st.sampled_from([*every, *training * 3]))
    needed = [p for p in command.parameters if p.required]
    free = [p for p in command.parameters if not p.required and p.name not in SERVICES]
    chosen = draw(st.lists(st.sampled_from(free), unique_by=lambda p: p.name, max_size=4)) if free else []
    words = list(command.words)
    for p in (p for p in command.parameters if p.name in SHORT and p not in chosen):
        words += [*p.switches[:1], SHORT[p.name]]
    for p in (*needed, *chosen):
        for _ in range(draw(st.integers(1, 2)) if p.several else 1):
            if p.kind is bool:
                words.append(draw(st.sampled_from([part for s in p.switches for part in s.split("/")])))
            else:
                value = draw(_value(p))
                words += [value] if p.positional else [p.switches[0], value]
    return words
