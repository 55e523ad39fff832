"""Programs are compiled in pieces, by processes of their own, once per machine."""

import shutil
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
    pieces = cut(traced(), 1)
    assert len(pieces) == 2
    assert [len(piece.makes) for piece in pieces] == [1, 0]
    assert "t.default" in pieces[1].module.code or "permute" in pieces[1].module.code
    assert len(cut(traced())) == 1


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="there is no C++ compiler")
def test_processes_compile_for_those_who_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setenv(compiler.KEPT, str(tmp_path))
    monkeypatch.setattr(compiler, "LARGE", 0)
    monkeypatch.setattr(compiler, "cut", lambda graph: cut(graph, 1))
    counters.clear()
    with Compiler() as first:
        first.begin(traced())
        assert len(first._workers) + len(first._waiting) == 2
        (program,) = first.programs()
    assert counters["inductor"]["fxgraph_cache_hit"] == 2
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    x, w = WEIGHTS.clone(), WEIGHTS.clone()
    program(x, w)
    torch.testing.assert_close(x, body(WEIGHTS, WEIGHTS)[0])
    assert torch.equal(w, WEIGHTS)
    with Compiler() as second:
        second.begin(traced())
        assert not second._workers
        assert not second._waiting
