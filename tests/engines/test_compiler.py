"""Programs are compiled by processes of their own, once per machine."""

import py_compile
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.engines import capture, compiler
from coterie.engines.capture import flat
from coterie.engines.compiler import Compiler
from coterie.engines.pieces import cut

WEIGHTS = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)


def body(x: Tensor, w: Tensor) -> list[Tensor]:
    """Two products with a view between them, which no piece hands to another."""
    return [(torch.tanh(x @ w).T @ w + x.T).T, w]


def traced() -> torch.fx.GraphModule:
    with torch.no_grad():
        return flat(body, [WEIGHTS.clone(), WEIGHTS.clone()])


def test_a_graph_is_cut_before_products() -> None:
    pieces = cut(traced(), 2)
    assert [len(piece.makes) for piece in pieces] == [1, 0]
    assert len(cut(traced())) == 1


def test_a_graph_is_cut_after_its_last_product() -> None:
    """Two products and eight operations behind them are nearest to halves with both products in the first piece."""

    def tailed(x: Tensor, w: Tensor) -> list[Tensor]:
        y = x @ w @ w
        for _ in range(4):
            y = y.tanh().exp()
        return [y, w]

    with torch.no_grad():
        pieces = cut(flat(tailed, [WEIGHTS.clone(), WEIGHTS.clone()]), 5)
    assert [str(piece.module.graph).count("aten.mm") for piece in pieces] == [2, 0]


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="there is no C++ compiler")
def test_processes_compile_for_those_who_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two pieces, the larger one has a process of its own."""
    from torch._dynamo.utils import counters

    sizes = sorted(len(piece.module.graph.nodes) for piece in cut(traced(), 2))
    monkeypatch.setenv(compiler.KEPT, str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # a part of programs for a CPU
    monkeypatch.setattr(compiler, "LARGE", sizes[1])
    monkeypatch.setattr(compiler, "cut", lambda graph: cut(graph, 2))
    monkeypatch.setattr(compiler, "processors", lambda: 2)
    counters.clear()
    with Compiler() as first:
        first.expect([WEIGHTS, WEIGHTS])
        early = list(first._idle)
        first.begin(traced())
        assert len(early) == 1
        assert first._workers == early
        (program,) = first.programs()
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert counters["inductor"]["fxgraph_cache_miss"] == 1
    x, w = WEIGHTS.clone(), WEIGHTS.clone()
    program([x, w])
    torch.testing.assert_close(x, body(WEIGHTS, WEIGHTS)[0])
    assert torch.equal(w, WEIGHTS)
    with Compiler() as second:
        second.expect([WEIGHTS, WEIGHTS])
        assert not second._idle
        second.begin(traced())
        assert not second._workers
        assert not second._waiting


def convolved(x: Tensor, w: Tensor) -> list[Tensor]:
    """A step along the gradient by the filters."""

    def value(w: Tensor) -> tuple[Tensor, Tensor]:
        loss = torch.conv2d(x, w).square().sum()
        return loss, torch.autograd.grad(loss, [w])[0]

    return [x, w - torch.func.vjp(value, w, has_aux=True)[2]]


def test_convolutions_are_tried_while_graphs_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards and backwards, with all algorithms; what fails there fails the building."""
    monkeypatch.setenv(compiler.KEPT, str(tmp_path))
    monkeypatch.setattr(Compiler, "programs", lambda self: [lambda tensors: () for _ in self._begun])
    real, seen, given = capture.convolve, list[Any](), [torch.ones(2, 3, 5, 5), torch.ones(4, 3, 2, 2)]

    def watched(calls: Sequence[capture.Call]) -> None:
        real(calls)
        seen.append(([str(f) for f, _ in calls], torch.backends.cudnn.benchmark, current_thread() is main_thread()))

    monkeypatch.setattr(capture, "convolve", watched)
    begun = list[int]()
    assert len(capture.captured([capture.Wanted(convolved, given)] * 2, begun.append)) == 2
    assert begun == [1, 2]
    assert seen == [(["aten.convolution.default", "aten.convolution_backward.default"], True, False)] * 2
    assert not torch.backends.cudnn.benchmark

    def fail(calls: Sequence[capture.Call]) -> None:
        raise RuntimeError("no algorithm")

    monkeypatch.setattr(capture, "convolve", fail)
    with pytest.raises(RuntimeError, match="no algorithm"):
        capture.captured([capture.Wanted(convolved, given)], begun.append)


def test_a_plain_call_chooses_no_algorithms_for_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN keeps the first choice of a thread for a shape, unless one is deterministic and the other is not."""
    monkeypatch.setenv(compiler.KEPT, str(tmp_path))
    monkeypatch.setattr(Compiler, "programs", lambda self: [lambda tensors: () for _ in self._begun])
    seen = list[tuple[bool, bool]]()

    def body(x: Tensor) -> list[Tensor]:
        seen.append((torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark))
        return [x + 1]

    (play_over,) = capture.captured([capture.Wanted(body, [torch.ones(2)])], lambda number: None)
    monkeypatch.setattr(capture, "recorded", lambda play: body(torch.ones(2)))
    play_over([torch.ones(2)])
    assert seen[0] == (True, False)
    assert seen[-1] == (False, True)
    assert not torch.backends.cudnn.deterministic


def test_a_process_without_work_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiler.KEPT, str(tmp_path))
    monkeypatch.setattr(compiler, "processors", lambda: 4)
    with Compiler() as unused:
        unused.expect([WEIGHTS])
        assert not unused._idle  # a graph of one tensor is too small for a process
        unused.expect([WEIGHTS] * compiler.LARGE)
        early = list(unused._idle)
    assert len(early) == 2
    assert all(worker.process.returncode is not None for worker in early)


def test_another_process_knows_the_compilers_own_operations(tmp_path: Path) -> None:
    import torch._inductor.inductor_prims

    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.ops.prims.inductor_seed.default, (torch.device("cpu"),)))
    file = tmp_path / "graph"
    file.write_bytes(compiler.pickled(torch.fx.GraphModule({}, graph)))
    code = "import sys, pathlib; from coterie.engines.compiler import unpickled; "
    subprocess.run([sys.executable, "-c", code + "unpickled(pathlib.Path(sys.argv[1]).read_bytes())", file], check=True)


@pytest.mark.parametrize("installed", [True, False])
def test_bytecode_is_kept_where_an_installation_has_none(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cores make it, and imports keep theirs, unless it lies beside the sources, as it does mostly."""
    monkeypatch.setenv(compiler.COMPILED, str(tmp_path / "compiled"))
    monkeypatch.setattr(compiler, "IMPORTED_WITH_IT", ())
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    source = tmp_path / "torch" / "_inductor" / "lowering.py"
    source.parent.mkdir(parents=True)
    for module in (source, source.with_name("codecache.py")):
        module.write_text("WORDS = 1\n")
    if installed:
        py_compile.compile(str(source))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = sys.pycache_prefix
    never = source.parents[1] / "testing" / "never.py"
    never.parent.mkdir()
    never.write_text("WORDS = 1\n")
    with compiler.bytecode_kept():
        spec = spec_from_file_location("lowering", source)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module_from_spec(spec))
    assert (sys.pycache_prefix, sys.dont_write_bytecode) == (before, True)
    made = {path.name.split(".")[0] for path in (tmp_path / "compiled").rglob("torch/**/*.pyc")}
    assert made == (set() if installed else {"lowering", "codecache"})
