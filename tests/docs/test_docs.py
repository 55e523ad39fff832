"""The code in the documents runs, and the tables in them are complete."""

import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie as ct
import methods
from coterie.engines import Serial, Vectorized
from coterie.method import decentralized, federated, push_sum
from toys import experiment, models, net, ragged

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(code: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    names = {} if names is None else names
    exec(compile(code, "a document", "exec"), names)
    return names


def test_the_readme_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(blocks("README.md")[0])
    assert "final" in capsys.readouterr().out
    assert len(names["run"].clients) == 20
    assert Path("report.html").exists()


def test_the_readme_says_at_once_what_it_is_and_is_not() -> None:
    """Its first paragraph; who reads no further must know what is missing. The picture is small, and linked."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, second, third = re.split(r"(?<=[.:]) (?=Coterie|It has)", " ".join(text.split("\n\n")[1].split()))
    assert "a simulator and a research library" in second
    assert "without a server ([deployment](docs/deploy.md))" in second
    assert all(words in third for words in ("neither", "secure aggregation", "differential privacy"))
    assert "](docs/report.png)" in text
    assert (ROOT / "docs" / "report.png").stat().st_size < 60_000
    assert all(name in text for name in ("Flower", "PFLlib", "FL-bench", "pfl-research"))
    assert f"{len(ct.algorithms.BUILDERS)} methods" in text


def test_the_readme_has_every_kind_of_method() -> None:
    """The examples of each kind are of that kind, as rounds of all methods show; `coterie list` has the rest."""
    kinds = methods.kinds()
    assert sorted(m for names in kinds.values() for m in names) == sorted(ct.algorithms.BUILDERS)
    rows = {row.split(" | ")[0]: row for row in re.findall(r"^\| (.*) \|$", (ROOT / "README.md").read_text(), re.M)}
    for kind, names in kinds.items():
        assert names, kind
        examples = re.findall(r"`([a-z0-9-]+)`:", rows[kind])
        assert examples
        assert set(examples) <= set(names), kind


def test_a_method_in_three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder of CONTRIBUTING runs on both engines and obeys the law it states."""
    (code,) = blocks("CONTRIBUTING.md")
    lazygossip = run(code)["lazygossip"]
    monkeypatch.setitem(ct.algorithms.BUILDERS, "lazygossip", lazygossip)
    alg = ct.algorithms.build("lazygossip", topology="ring", epochs=1, batch_size=4)
    slow, fast = (models(experiment(net("mlp"), ragged("mlp"), alg, e), 2) for e in (Serial(), Vectorized(3)))
    alone = ct.algorithms.build("lazygossip", topology="none", epochs=1, batch_size=4)
    own = ct.algorithms.local(epochs=1, batch_size=4)
    left, right = (models(experiment(net("mlp"), ragged("mlp"), a), 2) for a in (alone, own))
    for name in slow:
        assert float((slow[name] - fast[name]).abs().max()) < 1e-10
        assert float((left[name] - right[name]).abs().max()) == 0


def test_a_method_of_your_own() -> None:
    """The composition of the walk-through is one on all engines, sends few bytes, and collapses into dfedpgp."""
    code = re.search(r'```python title="mine.py"\n(.*?)```', (ROOT / "docs/your-own-method.md").read_text(), re.DOTALL)
    assert code is not None
    body = code[1].partition("def dfedpgp_sam")[2]
    assert len(body.strip().splitlines()) < 20
    dfedpgp_sam = run(code[1])["dfedpgp_sam"]
    common = {"topology": "random-push:2", "lr": 0.05, "epochs": 1, "batch_size": 4}
    slow, fast = (
        models(experiment(net("mlp"), ragged("mlp"), dfedpgp_sam(**common), e), 2) for e in (Serial(), Vectorized(3))
    )
    known = models(experiment(net("mlp"), ragged("mlp"), ct.algorithms.dfedpgp(**common, personal_lr=0.05)), 2)
    plain = models(experiment(net("mlp"), ragged("mlp"), dfedpgp_sam(**common, rho=0.0)), 2)
    for name in slow:
        assert float((slow[name] - fast[name]).abs().max()) < 1e-10
        assert float((plain[name] - known[name]).abs().max()) == 0
    assert any(float((slow[name] - known[name]).abs().max()) > 1e-3 for name in slow)
    e = experiment(net("mlp"), ragged("mlp"), dfedpgp_sam(**common, quantize=8))
    sent = e.program.traffic(e.start().state, e.round(0))
    assert sent.totals.bytes < sent.totals.parameters * 2  # of 8 bytes each


def test_an_optimizer_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's Lion is the published one, step by step, on both engines, by name and as a value."""
    page = (ROOT / "docs/your-own-optimizer.md").read_text(encoding="utf-8")
    code = re.search(r'```python title="mine.py"\n(.*?)```', page, re.DOTALL)
    assert code is not None
    (tmp_path / "mine.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    common = {"topology": "ring", "lr": 0.01, "batch_size": 4, "epochs": 1, "clip": None}
    alg = ct.algorithms.dfedavg(optimizer="mine:lion", betas=(0.8, 0.9), weight_decay=0.1, **common)
    slow, fast = (models(experiment(net("mlp"), ragged("mlp"), alg, e), 2) for e in (Serial(), Vectorized(3)))
    lion = sys.modules["mine"].Lion((0.8, 0.9), 0.1)
    value = models(experiment(net("mlp"), ragged("mlp"), ct.algorithms.dfedavg(optimizer=lion, **common)), 2)
    for name in slow:
        assert float((slow[name] - fast[name]).abs().max()) < 1e-10
        assert torch.equal(slow[name], value[name])
    x, m, state = torch.tensor([1.0, -2.0, 3.0]), torch.zeros(3), lion.init({"x": torch.zeros(3)})
    for g in (torch.tensor([1.0, -1.0, 0.5]), torch.tensor([-5.0, 1.0, 0.5])):
        ours, state = lion.step({"x": x}, {"x": g}, state, 0.1)
        x, m = x - 0.1 * ((0.8 * m + 0.2 * g).sign() + 0.1 * x), 0.9 * m + 0.1 * g
        torch.testing.assert_close(ours["x"], x)
        torch.testing.assert_close(state["momentum"]["x"], m)
    names: dict[str, Any] = {}
    for block in blocks("docs/your-own-optimizer.md"):
        run(block, names)
    assert names["run"].history


def test_the_table_of_the_families_has_their_arguments() -> None:
    """Every argument of every family in its order, with its default, and none that a family does not have."""
    page = (ROOT / "docs/your-own-method.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \| .+ \|$", page, flags=re.MULTILINE)
    for column, family in enumerate((federated, decentralized, push_sum), start=1):
        printed = [(row[0], row[column].strip("`")) for row in rows if row[column] != "-"]
        arguments = inspect.signature(family).parameters.values()
        assert printed == [(v.name, "required" if v.default is v.empty else shown(v.default)) for v in arguments]


def shown(default: object) -> str:
    return json.dumps(default) if isinstance(default, str | Mapping) else repr(default)
