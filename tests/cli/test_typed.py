"""Whatever is typed beyond reason: one sentence that names the fix, status 2, nothing written."""

import os
import stat
from pathlib import Path

import pytest

from coterie.core.errors import UserError
from coterie.core.files import write_text
from in_process import answer

RUN = ("run", "dfedavg", "--clients", "4", "--rounds", "1", "--out", "o", "--quiet")
LINEAR = "torch.nn:Linear,in_features=64"
LONG, DEEP = "x" * 5000, "a/" * 500

REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "an empty folder": (("watch", ""), ("an empty text:", "leave it out")),
    "an empty method": (("run", " "), ("an empty text:",)),
    "an empty option": ((*RUN, "--partition", ""), ("an empty text behind --partition",)),
    "an empty option, joined": ((*RUN, "--model="), ("an empty text behind --model",)),
    "an empty picture": (("topology", "ring", "--png", ""), ("an empty text behind --png",)),
    "a picture without a name": (("topology", "ring", "--png", "/"), ("/figure.png instead of /",)),
    "a long folder": (("report", LONG), ("a name of 5,000 bytes", "255", "another file or folder")),
    "a long folder of images": ((*RUN, "--data", f"image-folder:{LONG}"), ("a name of 5,000 bytes", "another")),
    "nobody's text": ((*RUN, "--data", "text:~nobodyatall/x"), ("~nobodyatall/x", "write the whole path")),
    "nobody's folder": (("data", "list", "--data-dir", "~nobodyatall"), ("~nobodyatall", "write the whole path")),
    "a long method": (("run", LONG), ("unknown method 'xxxxxxxxxxxxxxxxxxxx...'",)),
    "a long name to write to": ((*RUN[:-3], "--out", "x" * 300), ("a name of 300 bytes",)),
    "a deep folder to write to": ((*RUN[:-3], "--out", DEEP), ("500 levels", "200")),
    "a path of any length": ((*RUN[:-3], "--out", DEEP * 5), ("4,999 bytes", "3,000")),
    "a run that is not there": (("run", "runs/nothing", "--resume"), ("there is no run runs/nothing",)),
    "a device as a configuration": (("run", "/dev/zero"), ("there is no run /dev/zero",)),
    "no digit": (("recipe", "run", "dfedalt-t1", "--case", "²"), ("unknown case", "'²'")),
    "no digit in a shape": (("capacity", "--shape", "²,8,8"), ("--shape ²,8,8 is no shape",)),
    "a word that a terminal acts on": (("run", "fed\x1b[31m\navg"), ("'fed\\x1b[31m\\navg'",)),
    "another encoding": (("report", "a\udcff"), ("'a\\udcff' is no text in UTF-8",)),
    "data of 745 GiB": ((*RUN, "--data", "synthetic:size=999999999"), ("616 GB of memory", "24 GB are free", "fewer")),
    "a width without bounds": ((*RUN, "--model", "mlp:width=99999999999"), ("width=99999999999", "1,000,000,000")),
    "a model of 4 TB": (
        (*RUN, "--model", "mlp:width=999999"),
        ("mlp:width=999999", "at least 4 TB", "smaller"),
    ),
    "a layer of 26 YB": ((*RUN, "--model", f"{LINEAR},out_features={'9' * 23}"), ("at least 25.6 YB",)),
    "a layer that cannot be": ((*RUN, "--model", f"{LINEAR},out_features=-1"), ("torch.nn:Linear fails", "options")),
    "a model without a signature": ((*RUN, "--model", "builtins:dict"), ("builtins:dict", "torch.nn.Module")),
    "a function that is no model": ((*RUN, "--model", "torch:zeros"), ("torch:zeros does not say", "torch.nn.Module")),
    "a command that is no model": ((*RUN, "--model", "subprocess:getoutput,cmd=true"), ("subprocess:getoutput fails",)),
    "a model without a module": ((*RUN, "--model", ":foo"), ("unknown model",)),
    "a model in a folder above": ((*RUN, "--model", "..:foo"), ("unknown model '..'",)),
    "a graph of a billion": (("topology", "ring", "--clients", "999999999"), ("999,999,999 clients", "2,000 or fewer")),
    "a sample of 30 PB": (("capacity", "--shape", "3,99999999,99999999"), ("--shape 3,99999999,99999999", "3,32,32")),
    "a sample of another shape": (
        ("capacity", "--model", f"{LINEAR},out_features=4"),
        ("no samples of shape [3, 32, 32]",),
    ),
    "a problem without bounds": (("theory", "dfedsam", "--problem", "dim=9999999"), ("dim=9999999", "10000")),
    "a pull beyond all numbers": (
        ("run", "fedamp", *RUN[2:], "--set", "alpha=1e-300"),
        ("0.5 / 1e-300", "raise alpha"),
    ),
    "no end of inner steps": (("run", "pfedme", *RUN[2:], "--set", "inner_steps=99999"), ("inner_steps=99999", "1000")),
    "a page without a name": (("report", "x", "--out", "."), ("report.html instead of .",)),
    "a model of other data": (
        ("compare", "fedrod", "local", *RUN[2:], "--model", f"{LINEAR},out_features=10", "--data", "digits"),
        ("the model fails", "(1, 8, 8)", "build it for these data"),
    ),
    "no end of tries": ((*RUN, "--partition", "dirichlet-by-class:1,max_tries=99999"), ("max_tries=99999", "10000")),
    "a padding without bounds": ((*RUN, "--model", "cnn:padding=99"), ("padding=99", "takes 0 or 2 or none")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_sentence_and_nothing_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.core.memory.free_memory", lambda: 24 * 10**9)  # there are machines with much more
    words, told = REFUSED[name]
    said = answer(*words, cwd=tmp_path).sentence
    assert [part for part in told if part not in said] == [], said
    assert list(tmp_path.iterdir()) == []


def test_counts_have_a_largest_number(tmp_path: Path) -> None:
    for words in (("run", "dfedavg", "--rounds", "9" * 23), ("watch", ".", "--every", "nan")):
        done = answer(*words, cwd=tmp_path)
        assert (done.status, "Invalid value" in done.err) == (2, True), done
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["[/bold]", "[red]x[/red]", ":smile:"])
def test_what_is_typed_is_printed_as_it_is(text: str, tmp_path: Path) -> None:
    done = answer("data", "list", "--data-dir", text, cwd=tmp_path)
    assert f"Data sets in {text}" in done.out


REASONS = {
    "a file": (PermissionError(13, "Permission denied", "secret"), "secret cannot be used (Permission denied)"),
    "numpy's memory": (MemoryError("Unable to allocate 9 GiB"), "the memory is full (Unable to allocate 9 GiB)"),
    "torch's memory": (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9"), "the memory is full"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_the_system_refuses_is_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, told = REASONS[name]

    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("coterie.cli.show.names.show_list", fails)
    assert told in answer("list", cwd=tmp_path).sentence


def test_a_defect_of_ours_is_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(format: str) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("coterie.cli.show.names.show_list", fails)
    with pytest.raises(RuntimeError, match="a defect"):
        answer("list", cwd=tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_nothing_takes_the_place_of_a_device(tmp_path: Path) -> None:
    """As root, a renamed file would replace /dev/null itself."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/")):
        with pytest.raises(UserError, match="is no ordinary file: choose another --out"):
            write_text(path, "text")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_an_interrupt_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(format: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coterie.cli.show.names.show_list", interrupted)
    assert answer("list", cwd=tmp_path) == (130, "", "\ninterrupted\n")
