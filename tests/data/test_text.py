"""Text files as data: rows, chunks, the vocabulary, hidden tokens; and the transformer that trains on them."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie import cli
from coterie.core.errors import UserError
from coterie.data import Federation, federate
from coterie.data.batches import Amount, Batches, Samples
from coterie.data.readers.text import END, UNKNOWN, cut, encoded, hidden, numbered
from coterie.data.transform import Masking

LOW = {"rank_ratio": 0.5, "keep_layers": "*.attention.*", "init": "spectral"}


def spelt(ids: dict[str, int], tokens: Tensor) -> list[str]:
    """Words for numbers."""
    names = list(ids)
    return [names[k] for k in tokens.flatten().tolist()]


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """600 tokens: 100 lines of five words and an end each; the words differ from part to part."""
    path = tmp_path / "a story.txt"
    lines = [" ".join(f"w{(i * i + 3 * j) % 7 + i // 25}" for j in range(5)) for i in range(100)]
    path.write_text("\n".join(lines) + "\n")
    return path


def federation(path: Path, **options: Any) -> Federation:
    chosen = {"clients": 4, "partition": "pathological:1", "rows": 4, "length": 10, **options}
    return federate("text", path=str(path), **chosen)


# The stream


def test_a_row_a_client(story: Path) -> None:
    """Every client holds the first chunks of one row and is tested on the last quarter of the same row."""
    fed = federation(story)
    stream = [token for line in story.read_text().splitlines() for token in (*line.split(), END)]
    rows = [stream[150 * i : 150 * (i + 1)] for i in range(4)]  # 15 chunks: 12 and 3
    ids = numbered([token for row in rows for token in row[:120]])
    found = [spelt(ids, fed.y[part]) for part in fed.train]
    assert sorted(found) == sorted(row[:120] for row in rows)
    for mine, part in zip(found, fed.test, strict=True):
        row = next(row for row in rows if row[:120] == mine)
        known = [token if token in ids else UNKNOWN for token in row[120:]]
        assert spelt(ids, fed.test_y[part]) == known
    assert fed.classes == len(ids)
    assert (fed.input_shape, fed.x.dtype, fed.y.dtype) == ((10,), torch.int64, torch.int64)


def test_what_is_left_over_at_the_end_of_a_row_is_not_used() -> None:
    chunks = cut([str(i) for i in range(23)], rows=2, length=3)
    assert chunks.astype(int).tolist() == [
        [[0, 1, 2], [3, 4, 5], [6, 7, 8]],
        [[11, 12, 13], [14, 15, 16], [17, 18, 19]],
    ]


def test_a_file_of_its_own_for_testing(story: Path, tmp_path: Path) -> None:
    other = tmp_path / "test.txt"
    other.write_text("w1 never w2 seen w3\n" * 20)  # 120 tokens in 4 rows of 3 chunks
    fed = federation(story, test=str(other))
    assert fed.sizes.tolist() == [15] * 4
    assert [len(part) for part in fed.test] == [3] * 4
    assert int((fed.test_y == 0).sum()) == 40
    assert int((fed.y == 0).sum()) == 0


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.3", "pathological:2"])
def test_rows_are_what_partitions_call_classes(story: Path, partition: str) -> None:
    fed = federation(story, partition=partition, clients=3)
    np.testing.assert_array_equal(np.sort(torch.cat(fed.train)), np.arange(48))
    assert min(len(part) for part in fed.test) > 0


# The vocabulary


def test_the_most_frequent_tokens_have_numbers_in_order_of_appearance() -> None:
    tokens = ["c", "b", "b", "a", END, "d", "d", "a", UNKNOWN, "c", END]
    assert list(numbered(tokens)) == [UNKNOWN, END, "c", "b", "a", "d"]
    assert list(numbered(tokens, most=4)) == [UNKNOWN, END, "c", "b"]


def test_what_is_not_in_the_vocabulary_is_unknown(story: Path) -> None:
    ids = {UNKNOWN: 0, END: 1, "a": 2}
    assert encoded(np.array([["a", "x"], [END, UNKNOWN]], object), ids).tolist() == [[2, 0], [1, 0]]
    whole, small = federation(story), federation(story, vocabulary=5)
    assert (whole.classes, small.classes) == (12, 5)
    assert torch.equal(small.y, torch.where(whole.y < 5, whole.y, 0))
    assert int((whole.y == 0).sum()) == 0


# What is hidden


def test_hidden_tokens(story: Path) -> None:
    """They have number V, are the same for the same seed, and everything else stays."""
    fed = federation(story)
    for x, y in ((fed.x, fed.y), (fed.test_x, fed.test_y)):
        lost = x == fed.classes
        assert 0 < int(lost.sum()) < lost.numel() // 3
        assert torch.equal(x[~lost], y[~lost])
    assert not torch.equal(federation(story, seed=1).x, fed.x)
    twice = federation(story, test=str(story))
    assert torch.equal(twice.y, twice.test_y)
    assert not torch.equal(twice.x, twice.test_x)
    assert torch.equal(federation(story, mask=0.0).x, fed.y)
    assert (federation(story, mask=1.0).x == fed.classes).all()


def test_as_many_are_hidden_as_asked_for() -> None:
    tokens = torch.zeros(1000, 64, dtype=torch.int64)
    lost = hidden(tokens, 1, 0.15, key=5).double()
    assert float(lost.mean()) == pytest.approx(0.15, abs=5 * (0.15 * 0.85 / lost.numel()) ** 0.5)
    assert torch.equal(hidden(tokens[:10], 1, 0.15, key=5), lost[:10].long())  # whatever other samples there are


def test_hidden_anew_in_every_pass(story: Path) -> None:
    """Each pass hides others, as often as asked; evaluation sees what it sees when all are hidden once."""
    once, anew = federation(story, mask=0.3), federation(story, mask=0.3, hide="anew")
    V = anew.classes
    assert torch.equal(anew.sample(48), once.x)
    train, tests = (Samples(f.x, f.y, f.train, f.transform) for f in (anew, once))
    assert torch.equal(next(iter(train.parts(48))).x, once.x)
    assert torch.equal(anew.transform.plain(anew.test_x), once.test_x)
    assert tests.transform is None
    batches = Batches(train, np.arange(4), Amount(epochs=2), 4, key=7)
    seen = {}
    for client in range(4):
        stream = batches.one(client)
        for k in range(stream.steps):
            batch = stream.batch(k)
            assert torch.equal(torch.where(batch.x == V, batch.y, batch.x), batch.y)
            for row, x in zip(stream.index[k].tolist(), batch.x, strict=False):
                seen.setdefault(row, []).append((x == V).tolist())
    assert all(len(passes) == 2 for passes in seen.values())
    assert sum(a != b for a, b in seen.values()) > 40  # of 48
    rate = np.mean([p for passes in seen.values() for p in passes])
    assert rate == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / (2 * 480)) ** 0.5)
    again = [Batches(train, np.arange(4), Amount(epochs=2), 4, key=7).one(c).batch(5).x for c in range(4)]
    assert all(torch.equal(x, batches.one(c).batch(5).x) for c, x in enumerate(again))


def test_draws_are_those_of_splitmix64() -> None:
    """In integers of Python, which have no sign and no end; on several numbers at once, too."""

    def by_hand(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    draws, T = torch.tensor([0, 5, 2**63 - 1]), 7
    wanted = [
        [by_hand((d + (t + 1) * 0x9E3779B97F4A7C15) % 2**64) / 2**64 < 0.4 for t in range(T)] for d in draws.tolist()
    ]
    masking, tokens = Masking(tokens=9, probability=0.4), torch.full((3, T), 2)
    assert (masking.augmented(tokens, draws) == 9).tolist() == wanted
    assert (torch.func.vmap(masking.augmented)(tokens[:, None], draws[:, None])[:, 0] == 9).tolist() == wanted
    assert 0 < sum(map(sum, wanted)) < 3 * T


# A description that can be kept


def test_the_same_federation_from_its_origin(story: Path) -> None:
    fed = federation(story, vocabulary=6, seed=3, hide="anew")
    origin = json.loads(json.dumps(fed.origin))
    assert origin["path"] == str(story)
    assert federate(**origin).fingerprint() == fed.fingerprint()
    typed = f"text:{story},rows=4,length=10,vocabulary=6,hide=anew"
    assert federate(typed, clients=4, partition="pathological:1", seed=3).fingerprint() == fed.fingerprint()
    story.write_text(story.read_text().replace("w1", "w2"))
    assert federate(**origin).fingerprint() != fed.fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 61}, "has 600 tokens, and 61 rows of 2 x 10 need 1220: lower rows or length"),
        ({"length": 100}, "has 600 tokens, and 4 rows of 2 x 100 need 800"),
        ({"path": "nowhere.txt"}, "the text nowhere.txt cannot be read (No such file or directory): name a file"),
        ({"path": "."}, "the text . cannot be read (Is a directory)"),
        ({"test": "nowhere.txt"}, "the text nowhere.txt cannot be read"),
        ({"vocabulary": 2}, "vocabulary=2 leaves no word"),
        ({"mask": 1.5}, "mask=1.5 is out of range: it must be a number between 0 and 1"),
        ({"rows": 0}, "rows=0 is out of range: it must be a number at least 1"),
        ({"hide": "anw"}, "hide='anw' is not a choice: did you mean anew?"),
        ({"hide": "anew", "mask": 0.0}, "leave hide=anew out"),
    ],
)
def test_what_a_text_refuses(story: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        federate("text", **{"path": str(story), "rows": 4, "length": 10, "clients": 4, **options})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_text_needs_its_path_and_utf8(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs path"):
        federate("text")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    with pytest.raises(UserError, match="is not text in UTF-8"):
        federate("text", path=str(tmp_path / "latin.txt"))


# Training


def transformer(fed: Federation) -> Any:
    options = {"dim": 8, "heads": 2, "hidden": 12, "layers": 1, "dropout": 0.0}
    return ct.models.build("transformer-mlm", fed, **options).double()


@pytest.mark.parametrize("method", ["fedavg", "fedlmt"])
def test_the_transformer_learns_alike_on_both_engines(story: Path, method: str) -> None:
    fed = federation(story, hide="anew")
    training = {"participation": 3, "lr": 0.1, "batch_size": 5, "epochs": 2, "clip": None}
    alg = ct.algorithms.build(method, **training, **(LOW if method == "fedlmt" else {}))
    slow, fast = (
        ct.fit(transformer(fed), fed, alg, rounds=4, engine=engine, progress=False, record=["perplexity"])
        for engine in ("serial", "vectorized:2")
    )
    for a, b in zip(slow.history, fast.history, strict=True):
        assert {k: v for k, v in b.items() if not k.endswith("seconds")} == pytest.approx(
            {k: v for k, v in a.items() if not k.endswith("seconds")}, rel=1e-9
        )
    first, last = slow.history[0], slow.history[-1]
    assert last["train_loss"] < first["train_loss"]
    assert last["perplexity"] < 0.9 * first["perplexity"]
    assert 1 / 12 < last["personal_accuracy_after_mix"] < 1
    sent = sum(v.numel() for v in slow.clients[0].shared.values())
    assert last["parameters_sent"] == 6 * sent


def test_the_command(story: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run on a text, and the same run once more from its folder."""
    monkeypatch.chdir(story.parent)
    source = "text:a story.txt,rows=4,length=10,hide=anew"
    for words in (
        ["run", "fedlmt", "--data", source, "--clients", "4", "--rounds", "1", "--record", "perplexity", "--out", "a"],
        ["run", "a/config.json", "--out", "b"],
    ):
        monkeypatch.setattr(sys, "argv", ["coterie", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code, capsys.readouterr().err
    rows = [json.loads(Path(f"{name}/metrics.jsonl").read_text()) for name in "ab"]
    untimed = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]
    assert untimed[0] == untimed[1]
    assert 1 < rows[0]["perplexity"] < rows[0]["perplexity_chunks"]


@pytest.mark.parametrize(
    ("method", "own"),
    [("heterofl", {"mask_ce": True}), ("fedrolex", {}), ("feddropout", {}), ("feddropout", {"aligned": False})],
)
def test_narrow_transformers_train_alike_on_both_engines(story: Path, method: str, own: dict[str, Any]) -> None:
    """Clients with half of every head, and of everything else, beside full ones."""
    fed = federation(story)
    training = {"participation": 4, "lr": 0.1, "batch_size": 5, "epochs": 1, "clip": None, "capacities": "1-0.5"}
    alg = ct.algorithms.build(method, **training, **own)
    slow, fast = (
        ct.fit(transformer(fed), fed, alg, rounds=2, engine=engine, progress=False)
        for engine in ("serial", "vectorized:2")
    )
    for a, b in zip(slow.history, fast.history, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-9)
    whole, half = (
        sum(
            p.numel()
            for p in ct.models.build(f"transformer-mlm:dim=8,heads=2,hidden=12,layers=1,rate={rate}", fed).parameters()
        )
        for rate in (1, 0.5)
    )
    assert slow.history[-1]["parameters_sent"] == 2 * 2 * (whole + half)
    assert slow.history[-1]["train_loss"] < slow.history[0]["train_loss"]
