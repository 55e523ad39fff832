"""Programs are compiled by processes of their own, once per machine."""

import py_compile
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie.engines import compiler
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


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="there is no C++ compiler")
def test_processes_compile_for_those_who_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two pieces, the larger one has a process of its own."""
    from torch._dynamo.utils import counters

    sizes = sorted(len(piece.module.graph.nodes) for piece in cut(traced(), 2))
    monkeypatch.setenv(compiler.KEPT, str(tmp_path))
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
    """It is made before an import needs it, unless it lies beside the sources, as it does mostly."""
    monkeypatch.setenv(compiler.COMPILED, str(tmp_path / "compiled"))
    monkeypatch.setattr(compiler, "IMPORTED_WITH_IT", ())
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    source = tmp_path / "torch" / "_inductor" / "lowering.py"
    source.parent.mkdir(parents=True)
    source.write_text("WORDS = 1\n")
    if installed:
        py_compile.compile(str(source))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = sys.pycache_prefix
    never = source.parents[1] / "testing" / "never.py"
    never.parent.mkdir()
    never.write_text("WORDS = 1\n")
    with compiler.bytecode_kept():
        made = [path.name.split(".")[0] for path in (tmp_path / "compiled").rglob("torch/**/*.pyc")]
        assert made == ([] if installed else ["lowering"])
        spec = spec_from_file_location("lowering", source)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module_from_spec(spec))
    assert (sys.pycache_prefix, sys.dont_write_bytecode) == (before, True)
    assert bool(list((tmp_path / "compiled").glob("**/lowering.*.pyc"))) != installed
