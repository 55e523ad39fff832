"""Files that the safetensors library reads as its own, and checkpoints that do not keep the training waiting."""

import hashlib
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as library_bytes
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.files import replace, write_text
from coterie.core.tensors import Tensors
from coterie.store import RunFolder, Writer, checkpoint, safetensors
from coterie.store import folder as store
from coterie.store.safetensors import save_tensors
from helpers_cli import contents, saved_rounds

# The format


def noise(dtype: torch.dtype, *shape: int) -> Tensor:
    """Random bits, so that every type has its odd values; booleans must be 0 or 1."""
    g = torch.Generator().manual_seed(len(shape))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    width = torch.zeros((), dtype=dtype).element_size()
    return torch.randint(0, 256, (*shape, width), generator=g, dtype=torch.uint8).view(dtype).squeeze(-1)


def laid_out(dtype: torch.dtype) -> Tensors:
    """Tensors in every way they can lie in memory."""
    x, image = noise(dtype, 6, 10), noise(dtype, 2, 3, 4, 5)
    return {
        "plain": x,
        "same memory": x,
        "number": noise(dtype),
        "empty": noise(dtype, 0, 3),
        "hollow": noise(dtype, 3, 0),
        "turned": x.t(),
        "every second": x[::2, 1::3],
        "later": x[3:],
        "channels last": image.to(memory_format=torch.channels_last),
        "permuted": image.permute(3, 0, 2, 1),
        "replicated": x[0].expand(7, 10),
        "one number replicated": noise(dtype).expand(4, 3),
        "long": noise(dtype, 1, 1, 50),
    }


def bits(x: Tensor) -> bytes:
    return bytes(x.contiguous().reshape(-1).view(torch.uint8).tolist()) if x.numel() else b""


def in_memory_of_its_own(tensors: Tensors) -> Tensors:
    """As the library wants them."""
    return {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


@pytest.mark.parametrize("piece", [16, 24, 100, 2**20])
@pytest.mark.parametrize("dtype", safetensors.NAMES, ids=str)
def test_files_are_the_library_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, piece: int
) -> None:
    monkeypatch.setattr(safetensors, "PIECE", piece)
    tensors = laid_out(dtype)
    sha256 = save_tensors(tmp_path / "a", tensors)
    content = (tmp_path / "a").read_bytes()
    assert sha256 == hashlib.sha256(content).hexdigest()
    assert content == library_bytes(in_memory_of_its_own(tensors))
    loaded = load_file(tmp_path / "a")
    assert loaded.keys() == tensors.keys()
    for k, v in tensors.items():
        assert (loaded[k].dtype, loaded[k].shape, bits(loaded[k])) == (v.dtype, v.shape, bits(v)), k


def test_many_types_and_what_they_are_about(tmp_path: Path) -> None:
    """Wide types come first, so that every tensor lies at a multiple of its width."""
    mixed = {f'{i}: "{dtype}" für 🐑\n': noise(dtype, 3) for i, dtype in enumerate(reversed(safetensors.NAMES))}
    about = {"what": 'a "test" für 🐑'}
    save_tensors(tmp_path / "a", mixed, about)
    assert (tmp_path / "a").read_bytes() == library_bytes(in_memory_of_its_own(mixed), metadata=about)
    with safe_open(tmp_path / "a", "pt") as f:
        assert f.metadata() == about
    save_tensors(tmp_path / "none", {})
    assert load_file(tmp_path / "none") == {}


def test_parameters_need_no_detaching(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    save_tensors(tmp_path / "a", dict(layer.named_parameters()))
    assert torch.equal(load_file(tmp_path / "a")["weight"], layer.weight)


def test_nothing_is_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what lies in order, no byte is copied; of the rest, a piece at a time."""
    monkeypatch.setattr(safetensors, "PIECE", 64)
    plain, turned = torch.zeros(30, 20), torch.zeros(30, 20).t()
    for tensor, copied in ((plain, False), (plain[0].expand(9, 20), False), (turned, True)):
        memory = tensor.untyped_storage()
        frozen = range(memory.data_ptr(), memory.data_ptr() + memory.nbytes())
        _, *parts = safetensors.serialize({"x": tensor})
        assert max(len(part) for part in parts) <= 64
        places = [np.frombuffer(part, np.uint8).ctypes.data for part in parts]
        assert [place in frozen for place in places] == [not copied] * len(places)


def test_a_checkpoint_lies_in_memory_as_what_was_saved(tmp_path: Path) -> None:
    """In blocks of torch's own, where kernels sum in the order they always have; in a file numbers begin anywhere."""
    checkpoint.save(tmp_path, 1, {name: torch.full((3,), 1.0) for name in "abcdef"})
    apart = [v.data_ptr() % 64 for v in load_file(tmp_path / "round-000001.safetensors").values()]
    assert any(apart)  # else this shows nothing
    found = checkpoint.newest(tmp_path, print)
    assert found is not None
    assert [v.data_ptr() % 64 for v in found.tensors.values()] == [0] * 6


def test_a_type_that_files_do_not_know(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"wave cannot be saved as torch\.complex128"):
        save_tensors(tmp_path / "a", {"wave": torch.zeros(1, dtype=torch.complex128)})
    assert contents(tmp_path) == {}


# Beside the training


class Watched(RunFolder):
    """A folder that notes its checkpoints; ``before`` each it does what a test wants."""

    def __init__(self, path: Path, before: Callable[[int], object] = lambda round: None) -> None:
        super().__init__(path)
        self.before, self.tried, self.saved = before, list[int](), list[int]()
        self.begin({})

    def save(self, round: int, tensors: Tensors) -> None:
        self.tried.append(round)
        self.before(round)
        super().save(round, tensors)
        self.saved.append(round)


def state(round: int) -> Tensors:
    return {"x": torch.full((5,), float(round))}


def play(
    folder: RunFolder,
    rounds: int,
    between: Callable[[Writer], object] = Writer.wait,
    end: BaseException | None = None,
    say: Callable[[str], object] = str,
) -> None:
    """Rounds that compute nothing; ``between`` two of them it is waited for the checkpoint, or whatever is wanted."""
    with Writer(folder, say) as w:
        for round in range(1, rounds + 1):
            w.keep({"round": round}, state(round))
            if round < rounds:
                between(w)
        if end is not None:
            raise end


def at_once(w: Writer) -> None:
    """The next round follows at once."""


def whole(folder: RunFolder, rounds: list[int]) -> bool:
    """Exactly these checkpoints count, their numbers are theirs, and nothing else lies around."""
    names = {f"round-{r:06d}.{suffix}" for r in rounds for suffix in ("json", "safetensors")}
    assert saved_rounds(folder.path) == rounds
    assert set(contents(folder.path / "checkpoint")) == names
    latest = folder.latest(print)
    return latest is not None and torch.equal(latest.tensors["x"], state(rounds[-1])["x"])


@pytest.fixture
def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round is passed over where the one before is written."""
    monkeypatch.setattr(store, "SHARE", math.inf)


def test_rounds_go_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """Those that end meanwhile are passed over, but for the last."""
    all_played = threading.Event()
    folder = Watched(tmp_path / "a", lambda round: all_played.wait(60))

    def between(w: Writer) -> None:
        assert folder.saved == []
        rows = (folder.path / "metrics.jsonl").read_text().splitlines()
        if len(rows) == 4:
            all_played.set()

    play(folder, 5, between)
    assert folder.saved == [1, 5]
    assert whole(folder, [1, 5])


class Timed(Watched):
    """A folder whose checkpoints take time and nothing else, as rounds do in ``spend``."""

    def __init__(self, path: Path, a_write: float) -> None:
        super().__init__(path, lambda round: self.spend(a_write))
        self.now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def save(self, round: int, tensors: Tensors) -> None:
        self.before(round)
        self.saved.append(round)


@pytest.mark.parametrize(("a_round", "a_write"), [(1.0, 0.0), (1.0, 0.04), (1.0, 0.5), (1.0, 3.0), (50.0, 2.0)])
def test_writing_takes_its_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_round: float, a_write: float
) -> None:
    """Of the time since: no more, and no less than the end of a round allows."""
    folder = Timed(tmp_path / "a", a_write)
    monkeypatch.setattr(store, "monotonic", lambda: folder.now)

    def between(w: Writer) -> None:
        w.wait()
        folder.spend(a_round)

    play(folder, 200, between)
    *gaps, _ = np.diff(folder.saved)
    assert (folder.saved[0], folder.saved[-1], len(set(gaps))) == (1, 200, 1)
    allowed = store.SHARE * gaps[0] * a_round
    assert a_write <= allowed + 1e-9
    assert gaps[0] == 1 or a_write > allowed - store.SHARE * a_round - 1e-9


ENDS = [None, KeyboardInterrupt("the end"), UserError("the end"), RuntimeError("the end")]


@pytest.mark.parametrize("end", ENDS, ids=repr)
@pytest.mark.parametrize("rounds", [1, 2, 3, 30])
def test_the_last_round_is_saved_however_it_ends(tmp_path: Path, end: BaseException | None, rounds: int) -> None:
    folder = Watched(tmp_path / "a")
    with nullcontext() if end is None else pytest.raises(type(end), match="the end"):
        play(folder, rounds, at_once, end)
    assert whole(folder, folder.saved[-2:])
    assert folder.saved[-1] == rounds


def test_a_written_state_is_let_go(tmp_path: Path) -> None:
    tensors = state(1)
    known = weakref.ref(tensors["x"])
    with Writer(Watched(tmp_path / "a"), str) as w:
        w.keep({"round": 1}, tensors)
        del tensors
        w.wait()
        for _ in range(1000):  # the thread lets go right after it has said that it is done
            if known() is None:
                break
            time.sleep(0.01)
        assert known() is None


def full_after(rounds: int) -> Callable[[int], None]:
    """A disk that takes so many checkpoints and no more."""

    def before(round: int) -> None:
        if round > rounds:
            raise UserError("the disk is full")

    return before


@pytest.mark.usefixtures("every_round")
def test_a_failure_stops_the_next_round(tmp_path: Path) -> None:
    """And is not tried a second time."""
    folder = Watched(tmp_path / "a", full_after(2))

    def between(w: Writer) -> None:
        with suppress(UserError):
            w.wait()

    with pytest.raises(UserError, match="the disk is full"):
        play(folder, 10, between)
    assert folder.tried == [1, 2, 3]
    assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == 4
    assert whole(folder, [1, 2])


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_a_last_round_that_cannot_be_saved(tmp_path: Path, end: BaseException | None) -> None:
    """Whatever has ended the rounds: that they are not saved is what must be said."""
    folder = Watched(tmp_path / "a", full_after(1))
    with pytest.raises(UserError, match="the disk is full"):
        play(folder, 2, end=end)
    assert whole(folder, [1])


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Sends what Ctrl-C sends, also where whoever started the tests has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def send() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)

    yield send
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("end", ENDS[:2], ids=["finished", "interrupted"])
def test_ctrl_c_while_the_last_round_is_saved(
    tmp_path: Path, ctrl_c: Callable[[], None], end: BaseException | None
) -> None:
    """Once or many times: the file is whole, and the interruption is not forgotten."""
    said: list[str] = []
    folder = Watched(tmp_path / "a", lambda round: [ctrl_c() for _ in range(3 * (round == 2))])
    with pytest.raises(KeyboardInterrupt):
        play(folder, 2, end=end, say=said.append)
    assert whole(folder, [1, 2])
    assert said == (["saving the last finished round"] if end else [])


def test_ctrl_c_while_a_checkpoint_is_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after the pool has started a thread, before it knows of it: there must never be a second one."""
    folder, start = Watched(tmp_path / "a"), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with Writer(folder, str) as w:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        w.keep({"round": 1}, state(1))
    assert whole(folder, [1])


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    """Also where the round that was being written is never written again."""
    folder = Watched(tmp_path / "a")
    (folder.path / "checkpoint").mkdir()
    for name in (".round-000007.safetensors.tmp", ".round-000007.json.tmp", "round-000008.safetensors"):
        (folder.path / "checkpoint" / name).write_bytes(b"half")
    play(folder, 1)
    assert whole(folder, [1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_state_on_a_gpu(tmp_path: Path) -> None:
    """Its copy waits for what has made it, and for nothing that comes later."""
    folder = Watched(tmp_path / "a")
    x = torch.ones(2000, 2000, device="cuda")
    with Writer(folder, str) as w:
        for round in range(1, 6):
            for _ in range(50):
                x = (x @ x) / 2000
            made: dict[str, Any] = {"x": x + round, "turned": x.t(), "spread": x[0].expand(4000, 2000)}
            w.keep({"round": round}, made)
        expected = {k: v.cpu() for k, v in made.items()}
    latest = folder.latest(print)
    assert latest is not None
    assert latest.round == 5
    assert all(torch.equal(latest.tensors[k], v) for k, v in expected.items())


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, shared: bool) -> None:
    """Processes that write one file together have temporary names of their own; a continued run has its old one."""
    path, names = tmp_path / "a" / "file", []

    def write(temporary: Path) -> None:
        names.append(temporary.name)
        temporary.write_text("new" if len(names) == 1 else "half")
        if len(names) == 2:
            raise OSError(28, "No space left on device")

    replace(path, write, shared=shared)
    with pytest.raises(UserError, match=r"cannot write .*file \(No space left on device\).*another --data-dir"):
        replace(path, write, option="--data-dir", shared=shared)
    assert (path.read_text(), [p.name for p in path.parent.iterdir()]) == ("new", ["file"])
    assert names == [f".file.{os.getpid()}.tmp" if shared else ".file.tmp"] * 2


def test_the_newest_checkpoint_has_the_highest_number(tmp_path: Path) -> None:
    """From round 1,000,000 on names are longer, and texts would be sorted otherwise."""
    folder = Watched(tmp_path / "a")
    for round in (999_999, 1_000_000, 1_000_001):
        folder.append({"round": round})
        folder.save(round, state(round))
    names = {path.name for path in (folder.path / "checkpoint").glob("*.json")}
    assert names == {"round-1000000.json", "round-1000001.json"}
    latest = folder.latest(print)
    assert latest is not None
    assert latest.round == 1_000_001


def test_a_link_in_somebody_else_s_folder_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".file.tmp").symlink_to(mine)
    write_text(tmp_path / "a" / "file", "new")
    assert (mine.read_text(), (tmp_path / "a" / "file").read_text()) == ("precious", "new")
    assert not (tmp_path / "a" / "file").is_symlink()
