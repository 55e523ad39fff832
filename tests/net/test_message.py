"""Messages of peers: what is sent arrives as it was, and whatever else arrives is refused, in words, at no cost."""

import json
import mmap
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, as_bytes
from coterie.net.wire.message import (
    CHUNK,
    LONGEST_HEADER,
    Announced,
    Header,
    Outgoing,
    Refused,
    open_message,
    read_header,
)
from coterie.store.safetensors import NAMES

pytestmark = pytest.mark.hostile

HEADER = Header("clinics", "0a1b", "copy", 3, 0, "alpha")
TENSORS = {
    "weight": torch.arange(6.0).view(2, 3),
    "bias": torch.tensor([0.5, -1.0, 2.0]),
    "half": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False, True]),
    "none": torch.zeros(0, 4),
}
MUTATIONS = 10_000


def announced(tensors: Tensors) -> Announced:
    return {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


def content(tensors: Tensors = TENSORS, header: Header = HEADER) -> bytes:
    return b"".join(Outgoing(header, tensors).chunks())


def parts(message: bytes) -> tuple[dict[str, Any], bytes]:
    """The header as an object, and the values."""
    length = int.from_bytes(message[:8], "little")
    return json.loads(message[8 : 8 + length]), message[8 + length :]


def assemble(described: Any, values: bytes) -> bytes:
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "message"


def refusal(path: Path, message: bytes, wanted: Announced | None = None) -> Refused:
    path.write_bytes(message)
    with pytest.raises(Refused) as caught:
        open_message(path, wanted or announced(TENSORS))
    return caught.value


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.values())
def test_every_type_arrives_as_it_was(path: Path, dtype: torch.dtype) -> None:
    numbers = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    tensors = {"a": numbers, "scalar": numbers[0, 1], "columns": numbers.t(), "empty": numbers[:0]}
    path.write_bytes(content(tensors))
    arrived = open_message(path, announced(tensors))
    assert list(arrived) == list(tensors)
    for name, value in tensors.items():
        assert arrived[name].dtype == dtype
        assert arrived[name].shape == value.shape
        assert as_bytes(arrived[name]) == as_bytes(value)


def test_sizes_and_chunks(path: Path) -> None:
    tensors = {"large": torch.arange(600_000.0), "small": torch.ones(3)}
    message = Outgoing(HEADER, tensors)
    sent = [len(chunk) for chunk in message.chunks()]
    assert max(sent) == CHUNK
    assert sum(sent) == message.size
    assert content(tensors) == content(tensors)  # it can be sent again
    path.write_bytes(content(tensors))
    assert torch.equal(open_message(path, announced(tensors))["large"], tensors["large"])


def test_a_header_is_read_as_soon_as_it_is_there() -> None:
    message = content()
    whole = 8 + int.from_bytes(message[:8], "little")
    assert read_header(b"") is None
    assert read_header(message[: whole - 1]) is None
    assert read_header(message[:whole]) == HEADER
    assert read_header(message) == HEADER


def test_what_is_opened_may_be_changed_and_its_file_removed(path: Path) -> None:
    path.write_bytes(content())
    tensors = open_message(path, announced(TENSORS))
    tensors["bias"].zero_()
    assert path.read_bytes() == content()
    path.unlink()
    assert torch.equal(tensors["weight"], TENSORS["weight"])


def test_no_header_is_longer_than_a_chunk() -> None:
    with pytest.raises(UserError, match="9,000 tensors are too many"):
        Outgoing(HEADER, {f"{i:0120d}": torch.zeros(0) for i in range(9_000)})
    with pytest.raises(Refused, match="a length that no message has"):
        read_header((LONGEST_HEADER - 8 + 8).to_bytes(8, "little"))
    with pytest.raises(Refused, match="a length that no message has"):
        read_header(b"\xff" * 8)


def changed_tensor(name: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda described: described[name].update(fields)


def changed_metadata(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda described: described["__metadata__"].update(fields)


@pytest.mark.parametrize(
    ("change", "reason", "why"),
    [
        (lambda d: d.pop("bias"), "shapes", "it has no tensor bias"),
        (lambda d: d.update(more=d["bias"]), "shapes", "a tensor more that was not announced"),
        (changed_tensor("bias", shape=[4]), "shapes", "bias is not F32 of shape \\[3\\]"),
        (changed_tensor("bias", shape=[10**30]), "shapes", "bias is not F32"),
        (changed_tensor("bias", dtype="F16"), "shapes", "bias is not F32"),
        (changed_tensor("bias", shape=[3.0]), "format", "does not describe bias"),
        (changed_tensor("bias", shape={}), "format", "does not describe bias"),
        (changed_tensor("bias", more=1), "format", "does not describe bias"),
        (lambda d: d.update(bias=None), "shapes", "it has no tensor bias"),
        (lambda d: d.update(bias=[1]), "format", "does not describe bias"),
        (changed_tensor("bias", data_offsets=[0, 12]), "format", "bias is not where it should be"),
        (changed_tensor("bias", data_offsets=[8, True]), "format", "bias is not where it should be"),
        (lambda d: d.pop("__metadata__"), "format", "its metadata are not federation"),
        (lambda d: d["__metadata__"].pop("kind"), "format", "its metadata are not federation"),
        (changed_metadata(more="1"), "format", "its metadata are not federation"),
        (changed_metadata(round="-1"), "format", "is no number"),
        (changed_metadata(round="1" * 11), "format", "is no number"),
        (changed_metadata(step="٣"), "format", "is no number"),
        (changed_metadata(sender=1), "format", "its sender is no short text"),
        (changed_metadata(sender="a" * 129), "format", "its sender is no short text"),
        (changed_metadata(sender="a\x1b[31m"), "format", "its sender is no short text"),
        (changed_metadata(digest=""), "format", "its digest is no short text"),
    ],
)
def test_other_headers_are_refused(path: Path, change: Callable[[dict[str, Any]], None], reason: str, why: str) -> None:
    described, values = parts(content())
    change(described)
    refused = refusal(path, assemble(described, values))
    assert refused.reason == reason
    assert re.search(why, str(refused))


def test_what_a_stranger_writes_cannot_move_a_cursor(path: Path) -> None:
    described, values = parts(content())
    described["\x1b[2J\n" + "x" * 10_000] = described["bias"]
    why = str(refusal(path, assemble(described, values)))
    assert why.isprintable()
    assert len(why) < 150


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":1,"a":1}', b"9" * 9_999])
def test_no_other_text_is_a_header(path: Path, text: bytes) -> None:
    message = assemble(text, b"")
    assert refusal(path, message).reason == "format"
    with pytest.raises(Refused):
        read_header(message)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (dtype, value)
        for dtype in NAMES
        if dtype.is_floating_point or dtype.is_complex
        for value in (float("nan"), float("inf"), -float("inf"))
    ],
)
def test_values_are_finite(path: Path, dtype: torch.dtype, value: float) -> None:
    poison = torch.ones(5, dtype=dtype)
    poison[3] = value
    if dtype is torch.float8_e4m3fn and not poison[3].float().isnan():
        pytest.skip("this type has no infinity")
    tensors = {"fine": torch.ones(7, dtype=dtype), "poison": poison, "zz": torch.ones(2, dtype=dtype)}
    refused = refusal(path, content(tensors), announced(tensors))
    assert refused.reason == "values"
    assert "its tensor poison has a value that is not finite" in str(refused)


def test_the_largest_values_are_finite(path: Path) -> None:
    floats = [dtype for dtype in NAMES if dtype.is_floating_point]
    tensors = {
        str(d): torch.tensor([torch.finfo(d).max, torch.finfo(d).min], dtype=torch.float64).to(d) for d in floats
    }
    path.write_bytes(content(tensors))
    open_message(path, announced(tensors))


def test_values_beyond_the_first_chunk_are_looked_at(path: Path) -> None:
    tensors = {"a": torch.zeros(CHUNK // 4 + 5), "b": torch.zeros(CHUNK // 4)}
    tensors["b"][-1] = float("nan")
    assert "tensor b has" in str(refusal(path, content(tensors), announced(tensors)))


def test_a_truth_value_is_0_or_1(path: Path) -> None:
    message = content()
    assert refusal(path, message[:-1] + b"\x02").reason == "values"  # the mask comes last


@pytest.mark.parametrize("change", [lambda m: m[:-1], lambda m: m + b"\0", lambda m: m + b"\0" * 2**16])
def test_a_message_has_its_size(path: Path, change: Callable[[bytes], bytes]) -> None:
    assert refusal(path, change(content())).reason == "size"


def flip(rng: random.Random, message: bytes) -> bytes:
    changed = bytearray(message)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(rng: random.Random, message: bytes) -> bytes:
    return message[: rng.randrange(len(message))]


def splice(rng: random.Random, message: bytes) -> bytes:
    at, to = sorted(rng.choices(range(len(message)), k=2))
    return message[:at] + rng.randbytes(rng.randrange(20)) + message[to:]


def other_length(rng: random.Random, message: bytes) -> bytes:
    length = int.from_bytes(message[:8], "little")
    other = rng.choice([0, 1, 7, 8, length - 8, length + 8, length + 1, 2**20, 2**31, 2**63, 2**64 - 1])
    return other.to_bytes(8, "little") + message[8:]


def swapped(rng: random.Random, message: bytes) -> bytes:
    described, values = parts(message)
    one, other = rng.sample(list(described), 2)
    described[one], described[other] = described[other], described[one]
    return assemble(described, values)


STRANGE: list[Any] = [
    -1, 0, 1, 2**31, 2**63, 10**40, 1.5, 1e308, float("nan"), float("inf"), True, None, "", "F32", "F64", "BOOL", "1",
    "\x00\x1b", "\ud800", "x" * 5_000, [], {}, [[]], [-1], [3, -1], [2**40, 2**40], [0, 2**63], [None], ["3"], [1e400],
]  # fmt: skip


def strange_value(rng: random.Random, message: bytes) -> bytes:
    described, values = parts(message)
    inside = described[rng.choice(list(described))]
    if rng.random() < 0.2:
        described[rng.choice([*described, "__proto__", "", "\n"])] = rng.choice(STRANGE)
    else:
        inside[rng.choice([*inside, "more"])] = rng.choice(STRANGE)
    return assemble(described, values)


def poisoned(rng: random.Random, message: bytes) -> bytes:
    values = parts(message)[1]
    poison = torch.tensor([rng.choice([float("nan"), float("inf")])]).view(torch.uint8).numpy().tobytes()
    at = rng.randrange(len(values) - 4)
    return message[: len(message) - len(values)] + values[:at] + poison + values[at + 4 :]


def doubled(rng: random.Random, message: bytes) -> bytes:
    described, values = parts(message)
    text = json.dumps(described)
    key = rng.choice(list(described))
    return assemble((text[:-1] + f", {json.dumps(key)}: {json.dumps(described[key])}}}").encode(), values)


def deep(rng: random.Random, message: bytes) -> bytes:
    depth = rng.choice([10, 1_000, 20_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    nested = opening * depth + "1" + closing * (depth if rng.random() < 0.5 else 0)
    return assemble(f'{{"__metadata__": {nested}}}'.encode(), parts(message)[1])


def noise(rng: random.Random, message: bytes) -> bytes:
    return rng.choice([rng.randbytes(rng.randrange(200)), message[:8] + rng.randbytes(len(message) - 8)])


MUTATORS = [flip, cut, splice, other_length, swapped, strange_value, poisoned, doubled, deep, noise]


def resident() -> int:
    """The memory of this process, in bytes, where the system says it."""
    said = Path("/proc/self/statm")
    return int(said.read_text().split()[1]) * mmap.PAGESIZE if said.exists() else 0


def survive(path: Path, message: bytes) -> str:
    """What becomes of a message: a reason, or nothing where it is as announced. Nothing else can happen."""
    why = None
    try:
        header = read_header(message)
        path.write_bytes(message)
        tensors = open_message(path, announced(TENSORS))
    except Refused as refused:
        why = refused
    if why is not None:
        assert str(why).isprintable()
        assert len(str(why)) < 300
        return why.reason
    assert isinstance(header, Header)
    assert announced(tensors) == announced(TENSORS)
    assert all(value.isfinite().all() for value in tensors.values())
    return ""


def test_mutated_messages_are_refused_and_nothing_else(tmp_path: Path) -> None:
    """Ten thousand of them: whatever was done to it, a message is refused or it is as it was announced."""
    original, seen = content(), set[str]()
    sizes, batch = [], 200  # examples of one each would take hypothesis longer than they take us

    @settings(max_examples=MUTATIONS // batch, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.integers(0, 2**64))
    def mutate(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(batch):
            message = rng.choice(MUTATORS)(rng, original)
            seen.add(survive(tmp_path / "mutated", message))
        sizes.append(resident())

    mutate()
    assert {"format", "shapes", "values", "size"} <= seen
    assert len(sizes) >= MUTATIONS // batch
    assert sizes[-1] - sizes[len(sizes) // 4] < 2 * 2**20
