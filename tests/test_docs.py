"""The code in the documents runs, and the tables in them are complete."""

import re
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.engines import Serial, Vectorised
from toys import experiment, models, net, ragged

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, "a document", "exec"), names)
    return names


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(blocks("README.md")[0])
    assert "final" in capsys.readouterr().out
    assert len(names["run"].clients) == 20


def test_the_readme_lists_every_method() -> None:
    table = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert table == list(ct.algorithms.BUILDERS)


def test_a_method_in_three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder of CONTRIBUTING runs on both engines and obeys the law it states."""
    (code,) = blocks("CONTRIBUTING.md")
    lazygossip = run(code)["lazygossip"]
    monkeypatch.setitem(ct.algorithms.BUILDERS, "lazygossip", lazygossip)
    alg = ct.algorithms.build("lazygossip", topology="ring", epochs=1, batch_size=4)
    slow, fast = (models(experiment(net("mlp"), ragged("mlp"), alg, e), 2) for e in (Serial(), Vectorised(3)))
    alone = ct.algorithms.build("lazygossip", topology="none", epochs=1, batch_size=4)
    own = ct.algorithms.local(epochs=1, batch_size=4)
    left, right = (models(experiment(net("mlp"), ragged("mlp"), a), 2) for a in (alone, own))
    for name in slow:
        assert float((slow[name] - fast[name]).abs().max()) < 1e-10
        assert float((left[name] - right[name]).abs().max()) == 0
