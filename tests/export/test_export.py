"""A client's exported model is the one whose accuracy the run tells, wherever it is loaded."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.core.errors import UserError
from coterie.data import Federation, Transform
from coterie.export import formats
from coterie.export.deployed import Deployed
from coterie.store.safetensors import save_tensors
from coterie.submodels import LowRank, recover
from helpers_cli import Cli
from modules import Answering, Output
from opened import scripted
from several_inputs import ByName, InOrder
from several_inputs import federation as several
from several_inputs import module as of_several

PREPARATION = Transform(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3), pad=1, flip=True)
CLIENT = 3


@cache
def images() -> Federation:
    """Four clients with bright and dark, noisy, stored pictures of three classes."""
    g = torch.Generator().manual_seed(0)

    def drawn(count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 3, (count,), generator=g)
        x = torch.randn(count, 3, 8, 8, generator=g) * 60 + 90 + 40 * y.view(-1, 1, 1, 1)
        return x.clamp(0, 255).to(torch.uint8), y

    return ct.data.from_tensors([drawn(24) for _ in range(4)], [drawn(30) for _ in range(4)], 3, PREPARATION)


def trained(algorithm: Algorithm, model: str = "small-cnn", out: Path | None = None) -> ct.Run:
    fed = images()
    return ct.fit(ct.models.build(model, fed), fed, algorithm, rounds=2, engine="serial", progress=False, out=out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, never to be changed."""
    out = tmp_path_factory.mktemp("run") / "a"
    trained(ct.algorithms.dfedalt(topology="ring", lr=0.05, personal_lr=0.05, epochs=2, batch_size=8), out=out)
    return out


def own_tests(client: int = CLIENT) -> tuple[Tensor, Tensor]:
    """As the data set gives them."""
    fed = images()
    return fed.test_x[fed.test[client]], fed.test_y[fed.test[client]]


def recorded(run: ct.Run, client: int = CLIENT, protocol: str = "after_mix") -> float:
    accuracy: float = run.client_summary["accuracy"][protocol][client]
    return accuracy


def accuracy(answer: Callable[[Tensor], Tensor], client: int = CLIENT) -> float:
    x, y = own_tests(client)
    with torch.no_grad():
        return float((answer(x).argmax(1) == y).double().mean())


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as opened:
        about: dict[str, str] = opened.metadata()
        return about


def session(file: Path) -> Callable[[Tensor], Tensor]:
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX needs coterie[export]")
    opened = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(opened.run(None, {"input": x.numpy()})[0])


def need_onnx() -> None:
    for package in formats.NEEDED:
        pytest.importorskip(package, reason="ONNX needs coterie[export]")


# The accuracy of the run


def test_a_clients_module_has_the_recorded_accuracy(folder: Path) -> None:
    run = ct.load(folder)
    for i, client in enumerate(run.clients):
        module = client.module()
        assert accuracy(lambda x, module=module: module(PREPARATION.plain(x)), i) == recorded(run, i)
    assert np.mean(run.client_summary["accuracy"]["after_mix"]) == pytest.approx(
        run.summary["personal_accuracy"]["after_mix"]["final"]
    )
    assert 0.4 < recorded(run) < 1  # there is something to reproduce


def test_fine_tuned_clients_too() -> None:
    run = trained(ct.algorithms.fedbabu(participation=1.0, lr=0.05, epochs=1, batch_size=8, finetune_lr=0.05))
    for i, client in enumerate(run.clients):
        module = client.module()
        own = accuracy(lambda x, module=module: module(PREPARATION.plain(x)), i)
        assert own == recorded(run, i, "after_finetune")


def test_safetensors_are_the_state_dict_of_the_model(folder: Path, tmp_path: Path) -> None:
    file = ct.export.save(folder, CLIENT, tmp_path / "mine.safetensors")
    module = ct.models.build("small-cnn", images())
    module.load_state_dict(load_file(file))
    run, about = ct.load(folder), metadata(file)
    assert accuracy(lambda x: module.eval()(PREPARATION.plain(x))) == recorded(run)
    assert (about["model"], about["method"]) == ("small-cnn", "dfedalt")
    expected = {"classes": 3, "input_shape": [3, 8, 8], "round": 2, "client": 3, "accuracy": recorded(run)}
    expected |= {"mean": list(PREPARATION.mean), "std": list(PREPARATION.std), "test_samples": 30}
    assert {k: json.loads(about[k]) for k in expected} == expected
    assert about["protocol"] == "after_mix"


def test_torchscript_needs_nothing_of_coterie(folder: Path, tmp_path: Path) -> None:
    file = ct.export.save(folder, CLIENT, tmp_path / "mine.pt")
    x, y = own_tests()
    np.savez(tmp_path / "tests.npz", x=x.numpy(), y=y.numpy())
    code = """
import json, sys, numpy, torch
known = {"coterie.json": ""}
model, tests = torch.jit.load(sys.argv[1], _extra_files=known), numpy.load(sys.argv[2])
right = model(torch.from_numpy(tests["x"])).argmax(1) == torch.from_numpy(tests["y"])
assert "coterie" not in sys.modules
print(float(right.double().mean()), json.loads(known["coterie.json"])["accuracy"])
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(file), str(tmp_path / "tests.npz")]
    printed = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert [float(v) for v in printed.split()] == [recorded(ct.load(folder))] * 2


def test_torchscript_refuses_what_it_would_normalize_wrongly(folder: Path, tmp_path: Path) -> None:
    model = scripted(ct.export.save(folder, CLIENT, tmp_path / "mine.pt"))
    with pytest.raises(torch.jit.Error, match="uint8"):
        model(own_tests()[0] / 255)


def test_onnx_takes_stored_images_in_batches_of_any_size(folder: Path, tmp_path: Path) -> None:
    need_onnx()
    file = ct.export.save(folder, CLIENT, tmp_path / "mine.onnx")
    run, answer = ct.load(folder), session(file)
    assert accuracy(answer) == recorded(run)
    x, own = own_tests()[0], run.clients[CLIENT].module()
    for count in (1, 7):
        torch.testing.assert_close(answer(x[:count]), own(PREPARATION.plain(x[:count])).detach(), rtol=1e-4, atol=1e-4)
    import onnx

    props = {p.key: p.value for p in onnx.load(file).metadata_props}
    assert float(props["accuracy"]) == recorded(run)
    assert props["input"].startswith("uint8 [batch, 3, 8, 8]")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.onnx"]


@pytest.mark.parametrize("format", ["torchscript", "onnx"])
def test_samples_that_are_numbers_or_tokens_go_in_as_they_are(format: str, tmp_path: Path) -> None:
    if format == "onnx":
        need_onnx()
    tokens = torch.randint(0, 5, (6, 4), generator=torch.Generator().manual_seed(0))
    texts = ct.data.from_tensors([(tokens, tokens)], [(tokens, tokens)], 5)
    words = ct.models.build("transformer-mlm:dim=8,heads=2,hidden=16,layers=1", texts)
    numbers = ct.data.federate("synthetic:size=60,classes=3", clients=2, partition="iid")
    x, y = torch.rand(6, 6), torch.arange(6) % 3
    sixes = ct.data.from_tensors([(x, y)], [(x, y)])
    built = (texts, words), (numbers, ct.models.build("mlp:width=8", numbers)), (sixes, Answering(Output))
    for i, (fed, module) in enumerate(built):
        run = ct.fit(module, fed, ct.algorithms.local(epochs=1), rounds=1, engine="serial", progress=False)
        file = ct.export.save(run, 0, tmp_path / f"{i}{formats.FORMATS[format].suffix}", format)
        answer = scripted(file) if format == "torchscript" else session(file)
        with torch.no_grad():
            own = run.clients[0].module()(fed.test_x)
            own = own.logits if isinstance(own, Output) else own
            torch.testing.assert_close(answer(fed.test_x), own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", [ByName, InOrder])
def test_several_inputs_are_answered_and_exported(form: type[nn.Module], tmp_path: Path) -> None:
    """A file takes them in the order of the data, which the model's arguments have not."""
    need_onnx()
    fed, alone = several(form), ct.algorithms.local(epochs=1)
    run = ct.fit(of_several(form), fed, alone, rounds=1, engine="serial", progress=False)
    client, names = run.clients[0], ["input_ids", "attention_mask"] if form is ByName else ["input_0", "input_1"]
    tokens, mask = fed.test_x.values() if form is ByName else fed.test_x
    with torch.no_grad():
        scores = client.module().scores(tokens, mask)
    assert torch.equal(client.predict(fed.test_x), scores.argmax(1))
    one = {k: v[3] for k, v in fed.test_x.items()} if form is ByName else (tokens[3], mask[3])
    assert client.predict(one) == scores[3].argmax()
    with pytest.raises(UserError, match=r"learned from the inputs .*: give a (dictionary|tuple) of these"):
        client.predict(tokens)
    onnxruntime = pytest.importorskip("onnxruntime")
    file = ct.export.save(run, 0, tmp_path / "a.onnx")
    opened = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    given = dict(zip(names, (tokens.numpy(), mask.numpy()), strict=True))
    torch.testing.assert_close(torch.from_numpy(opened.run(["scores"], given)[0]), scores, rtol=1e-4, atol=1e-4)
    assert opened.get_modelmeta().custom_metadata_map["input"].startswith(f"{names[0]} int64 [batch, 6], {names[1]} ")
    traced: Any = scripted(ct.export.save(run, 0, tmp_path / "a.pt"))
    torch.testing.assert_close(traced(tokens, mask), scores, rtol=1e-4, atol=1e-4)


# Other forms of a model


LOW = {"lr": 0.05, "epochs": 1, "batch_size": 8, "participation": 1.0, "keep_layers": 1}
LOW_RANK: dict[str, Callable[[], Algorithm]] = {
    "fedlmt": lambda: ct.algorithms.fedlmt(**LOW, rank_ratio=0.25),
    "pfedlmt": lambda: ct.algorithms.pfedlmt(**LOW, capacities="0.5-0.25"),
    "fedhm": lambda: ct.algorithms.fedhm(**LOW, capacities="0.5-0.25"),
}


def ranks(module: nn.Module) -> list[int]:
    return [layer.U.shape[1] for layer in module.modules() if isinstance(layer, LowRank)]


@pytest.mark.parametrize("method", LOW_RANK)
def test_low_rank_models_in_both_forms(method: str, tmp_path: Path) -> None:
    run = trained(LOW_RANK[method]())
    own, x = run.clients[CLIENT].module(), PREPARATION.plain(own_tests()[0])
    dense = ct.models.build("small-cnn", images())
    file = ct.export.save(run, CLIENT, tmp_path / "dense.safetensors")
    dense.load_state_dict(load_file(file))
    torch.testing.assert_close(dense(x), own(x))
    assert json.loads(metadata(file)["accuracy"]) == accuracy(lambda x: dense(PREPARATION.plain(x))) == recorded(run)
    file = ct.export.save(run, CLIENT, tmp_path / "low.safetensors", form="factorized")
    low = ct.export.load(file)
    assert ranks(low) == [8, 16]  # a quarter of 32 channels and of 64 hidden units
    torch.testing.assert_close(low(x), own(x))
    assert torch.linalg.matrix_rank(recover(low).get_parameter("7.weight")) <= 16
    assert json.loads(metadata(file)["accuracy"]) == accuracy(lambda x: low(PREPARATION.plain(x))) == recorded(run)
    answer = scripted(ct.export.save(run, CLIENT, tmp_path / "low.pt", form="factorized"))
    torch.testing.assert_close(answer(own_tests()[0]), low(x))


@pytest.mark.parametrize("method", ct.algorithms.BUILDERS)
def test_every_methods_clients_are_what_was_measured(method: str, tmp_path: Path) -> None:
    """In memory, and built again from a file alone."""
    rounds = 6 if method == "progfed" else 1  # as many as it takes to grow
    plan = typed_plan([method], RunOptions(clients=4, rounds=rounds, set=["steps=1"]))
    fed = plan.federation(0)
    module, algorithm = plan.module(fed, 0), plan.algorithms[method]
    run = ct.fit(module, fed, algorithm, rounds=rounds, engine="serial", progress=False)
    protocol = "after_finetune" if method in ("fedbabu", "fedavg-ft") else "after_mix"
    for client in (0, CLIENT):
        module = run.clients[client].module()
        again = ct.export.load(ct.export.save(run, client, tmp_path / f"{client}.safetensors"))
        x, y = fed.test_x[fed.test[client]], fed.test_y[fed.test[client]]
        with torch.no_grad():
            own, loaded = module(x), again(x)
        assert float((own.argmax(1) == y).double().mean()) == recorded(run, client, protocol)
        torch.testing.assert_close(loaded, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["cnn", "resnet8-bn", "resnet8-gn", "vgg11-gn"])
def test_models_as_onnx(model: str, tmp_path: Path) -> None:
    need_onnx()
    module = ct.models.build(model, classes=3, input_shape=(3, 32, 32)).eval()
    formats.write_onnx(Deployed(module, PREPARATION, (3, 32, 32), {}), tmp_path / "x.onnx")
    x = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(session(tmp_path / "x.onnx")(x), module(PREPARATION.plain(x)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["fedrod", "depthfl"])
def test_modules_that_a_method_has_changed(method: str, tmp_path: Path) -> None:
    own_settings = {"depthfl": {"capacities": "b3-b2"}}.get(method, {})
    run = trained(ct.algorithms.build(method, lr=0.05, epochs=1, batch_size=8, **own_settings), "resnet8-gn")
    own, x = run.clients[CLIENT].module(), own_tests()[0][:5]
    file = ct.export.save(run, CLIENT, tmp_path / "mine.safetensors")
    torch.testing.assert_close(ct.export.load(file)(PREPARATION.plain(x)), own(PREPARATION.plain(x)), rtol=0, atol=0)
    answer = scripted(ct.export.save(run, CLIENT, tmp_path / "mine.pt"))
    torch.testing.assert_close(answer(x), own(PREPARATION.plain(x)))


def test_a_module_of_your_own(tmp_path: Path) -> None:
    fed = images()

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))

    run = ct.fit(build, fed, ct.algorithms.local(epochs=1), rounds=1, progress=False, out=tmp_path / "a")
    saved = load_file(ct.export.save(run, CLIENT, tmp_path / "mine.safetensors"))
    assert torch.equal(saved["1.weight"], run.clients[CLIENT].personal["1.weight"])
    x, _ = own_tests()
    for known in (run, ct.load(tmp_path / "a", model=build)):
        scores = scripted(ct.export.save(known, CLIENT, tmp_path / "mine.pt", force=True))(x)
        assert scores.argmax(1).equal(known.clients[CLIENT].predict(x))
    config = run.config.copy()
    del config["sample_shape"]
    with pytest.raises(ct.UserError, match=r"of old does not say which shape .*: use safetensors"):
        ct.export.save(replace(run, config=config), CLIENT, tmp_path / "old.pt")
    with pytest.raises(ct.UserError, match=r"coterie.load\(path, model=...\)"):
        ct.export.save(tmp_path / "a", CLIENT, tmp_path / "again.safetensors")


# On the command line


def test_everybody_gets_a_file(cli: Cli, folder: Path, tmp_path: Path) -> None:
    done = cli.succeed(
        "export", str(folder), "--client", "all", "--format", "torchscript", "--out", "all", cwd=tmp_path
    )
    files = sorted((tmp_path / "all").iterdir())
    assert [f.name for f in files] == [f"client-000{i}.pt" for i in range(4)]
    assert "4 models are in all" in done.out
    run = ct.load(folder)
    assert [accuracy(scripted(f), i) for i, f in enumerate(files)] == [recorded(run, i) for i in range(4)]
    cli.refuse(
        "export",
        str(folder),
        *["--client", "all", "--format", "torchscript", "--out", "all"],
        cwd=tmp_path,
        names=("--force",),
    )


WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "no-folder": ("nowhere --client 0 --out x.pt", ("nowhere", "run folder")),
    "unfinished": ("half --client 0 --out x.pt", ("half", "not finished", "--resume")),
    "client": ("a --client 4 --out x.pt", ("no client 4", "0 to 3", "all")),
    "client-negative": ("a --client -1 --out x.pt", ("no client -1", "0 to 3")),
    "client-name": ("a --client bob --out x.pt", ("bob", "number", "all")),
    "format": ("a --client 0 --format onxx --out x", ("format", "'onxx'", "did you mean onnx")),
    "format-of-a-name": ("a --client 0 --out x.bin", ("x.bin", "--format", "onnx", "safetensors", "torchscript")),
    "form": ("a --client 0 --form recoverd --out x.pt", ("form", "'recoverd'", "did you mean recovered")),
    "no-factors": ("a --client 0 --form factorized --out x.pt", ("dfedalt", "low rank", "leave --form out")),
    "exists": ("a --client 0 --out there.pt", ("there.pt", "already exists", "--force")),
    "a-folder": ("a --client 0 --format onnx --out a", ("a is a folder", "--client all")),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_request_that_cannot_be_carried_out(case: str, cli: Cli, folder: Path, tmp_path: Path) -> None:
    arguments, names = WRONG[case]
    if case == "a-folder":
        need_onnx()
    for name in ("a", "half"):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "half" / "summary.json").unlink()
    (tmp_path / "there.pt").write_text("mine")
    cli.refuse("export", *arguments.split(), cwd=tmp_path, names=names)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "half", "there.pt"]
    assert (tmp_path / "there.pt").read_text() == "mine"


def test_force_replaces(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_text("mine")
    cli.succeed("export", str(folder), *["--client", "0", "--out", "x.safetensors", "--force"], cwd=tmp_path)
    assert metadata(tmp_path / "x.safetensors")["client"] == "0"


def test_nothing_is_said_but_where_the_file_is(cli: Cli, folder: Path, tmp_path: Path) -> None:
    need_onnx()
    done = cli.succeed("export", str(folder), "--client", "0", "--out", "x.onnx", cwd=tmp_path)
    assert (done.out.splitlines(), done.err) == ([f"client 0 of {folder} is in x.onnx"], "")


def test_what_is_not_installed_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(ct.UserError, match=r"onnx, onnxscript, onnxruntime .*pip install 'coterie\[export\]'"):
        ct.export.save(folder, 0, tmp_path / "x.onnx")


def test_a_file_that_would_answer_otherwise_is_not_left(tmp_path: Path) -> None:
    class Moody(nn.Module):
        """Its answer depends on how many samples there are, which tracing cannot see."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            return y if len(x) == formats.EXAMPLES else -y

    with pytest.raises(ct.UserError, match="--format safetensors"):
        formats.write_torchscript(Deployed(Moody().eval(), None, (4,), {}), tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "value"), [("classes", "[" * 99999), ("classes", '"x"'), ("model_options", "{}{"), ("input_shape", "null")]
)
def test_metadata_that_somebody_else_has_written(folder: Path, tmp_path: Path, key: str, value: str) -> None:
    file = ct.export.save(folder, 0, tmp_path / "mine.safetensors")
    with safe_open(file, framework="pt") as opened:
        about, tensors = opened.metadata(), {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118
    save_tensors(file, tensors, {**about, key: value})
    with pytest.raises(UserError, match=r"mine\.safetensors.* what it says of its model"):
        ct.export.load(file)
