"""Data of one's own in files, sources that know their clients, and where data lie."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.core.errors import UserError
from coterie.data import Transform, federate
from coterie.data.data_dir import choose, config_file, data_dir
from coterie.data.readers.text import END, UNKNOWN
from coterie.study.presets import PRESETS
from entry_point import coterie
from published import images, write_idx

Image = pytest.importorskip("PIL.Image")


def refuse(*names: str, **request: Any) -> None:
    """A federation that is refused with one sentence that holds all the names."""
    with pytest.raises(UserError) as refused:
        federate(**{"clients": 2, "partition": "iid", **request})
    said = str(refused.value)
    assert "\n" not in said
    assert [name for name in names if name not in said] == [], said


def picture(path: Path, pixels: np.ndarray, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


# Tiny ImageNet


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Three kinds of four images, two of them gray, as the archive has them."""
    root = tmp_path / "tiny-imagenet-200"
    for k, kind in enumerate(("n03", "n01", "n02")):
        for i in range(4):
            shade = np.full((64, 64) if i == 3 else (64, 64, 3), 60 * k + 10 * i, np.uint8)
            picture(root / "train" / kind / "images" / f"{kind}_{i}.JPEG", shade, quality=95)
        picture(root / "val" / "images" / f"val_{k}.JPEG", np.full((64, 64, 3), 60 * k + 5, np.uint8))
    lines = [f"val_{k}.JPEG\t{kind}\t0\t0\t62\t62\n" for k, kind in enumerate(("n03", "n01", "n02"))]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return tmp_path


def test_tiny_imagenet(tiny: Path) -> None:
    fed = federate("tiny-imagenet", clients=2, partition="iid", data_dir=tiny)
    assert (tuple(fed.x.shape), tuple(fed.test_x.shape), fed.classes) == ((12, 3, 64, 64), (3, 3, 64, 64), 3)
    assert fed.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert fed.test_y.tolist() == [2, 0, 1]
    shades = [60 + 10 * i for i in range(4)] + [120 + 10 * i for i in range(4)] + [10 * i for i in range(4)]
    means = fed.x.float().mean((1, 2, 3))
    assert (means - torch.tensor(shades)).abs().max() < 3  # JPEG loses a little
    assert fed.transform == Transform((0.5,) * 3, (0.5,) * 3, pad=4, flip=True)


def test_tiny_imagenet_is_decoded_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = federate("tiny-imagenet", clients=2, partition="iid", data_dir=tiny)
    monkeypatch.setattr(Image, "open", None)
    again = federate("tiny-imagenet", clients=2, partition="iid", data_dir=tiny)
    assert again.fingerprint() == first.fingerprint()
    again.x[0] = 0  # a copy of one's own: what is kept stays as it is
    assert federate("tiny-imagenet", clients=2, partition="iid", data_dir=tiny).fingerprint() == first.fingerprint()


def test_an_interrupted_decoding_leaves_nothing_behind(tiny: Path) -> None:
    broken = tiny / "tiny-imagenet-200" / "train" / "n01" / "images" / "n01_1.JPEG"
    whole = broken.read_bytes()
    before = sorted((tiny / "tiny-imagenet-200").iterdir())
    for spoilt in (whole[:-100], b"no image"):
        broken.write_bytes(spoilt)
        refuse("n01_1.JPEG cannot be read", "replace or remove it", source="tiny-imagenet", data_dir=tiny)
        assert sorted((tiny / "tiny-imagenet-200").iterdir()) == before
    broken.write_bytes(whole)
    federate("tiny-imagenet", clients=2, partition="iid", data_dir=tiny)


def test_tiny_imagenet_with_parts_missing(tiny: Path) -> None:
    root = tiny / "tiny-imagenet-200"
    listed = root / "val" / "val_annotations.txt"
    listed.write_text(listed.read_text().replace("n02", "n99"))
    refuse("val_annotations.txt", "n99", source="tiny-imagenet", data_dir=tiny)
    listed.unlink()
    refuse("val_annotations.txt", "No such file", source="tiny-imagenet", data_dir=tiny)
    (root / "train" / "n04").mkdir()
    refuse("n04", "no JPEG images", source="tiny-imagenet", data_dir=tiny)


def test_without_pillow(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refuse("needs PIL: run pip install 'coterie[images]'", source="tiny-imagenet", data_dir=tiny)


# Folders of images


def write_folders(root: Path, clients: tuple[str, ...] = ("",), each: int = 4) -> np.ndarray:
    """A folder a client, in it one a class; returns the images in the order of their names."""
    pixels = images(len(clients) * 2 * each, 6, 5, 3)
    rows = iter(pixels)
    for client in clients:
        for kind in ("cat", "dog"):
            for i in range(each):
                picture(root / client / kind / f"{i}.png", next(rows))
    return pixels.transpose(0, 3, 1, 2)


def test_a_folder_a_class(tmp_path: Path) -> None:
    pixels = write_folders(tmp_path / "pets")
    fed = federate(f"image-folder:{tmp_path / 'pets'}", clients=2, partition="iid")
    np.testing.assert_array_equal(fed.x, pixels[[0, 1, 2, 4, 5, 6]])
    np.testing.assert_array_equal(fed.test_x, pixels[[3, 7]])
    assert (fed.y.tolist(), fed.test_y.tolist(), fed.classes) == ([0] * 3 + [1] * 3, [0, 1], 2)
    scaled = pixels[[0, 1, 2, 4, 5, 6]] / 255
    assert fed.transform is not None
    np.testing.assert_allclose(fed.transform.mean, scaled.mean((0, 2, 3)), atol=1e-4)
    np.testing.assert_allclose(fed.transform.std, scaled.std((0, 2, 3)), atol=1e-4)


def test_train_and_test_folders(tmp_path: Path) -> None:
    pixels, tests = write_folders(tmp_path / "train"), write_folders(tmp_path / "val", each=2)
    fed = federate(f"image-folder:{tmp_path},augment=yes", clients=2, partition="iid")
    np.testing.assert_array_equal(fed.x, pixels)
    np.testing.assert_array_equal(fed.test_x, tests)
    assert fed.transform is not None
    assert (fed.transform.pad, fed.transform.flip) == (4, True)


def test_gray_images_have_one_channel_unless_one_is_colored(tmp_path: Path) -> None:
    for i in range(8):
        picture(tmp_path / "ab"[i % 2] / f"{i}.png", images(4, 4, seed=i))
    assert federate(f"image-folder:{tmp_path}", clients=2, partition="iid").input_shape == (1, 4, 4)
    picture(tmp_path / "a" / "9.png", images(4, 4, 3))
    assert federate(f"image-folder:{tmp_path}", clients=2, partition="iid").input_shape == (3, 4, 4)


@pytest.mark.parametrize(("kind", "suffix"), [(np.uint16, "png"), (np.int32, "tif"), (np.float32, "tif")])
def test_images_of_more_than_bytes_are_refused_unless_their_values_are_bytes(
    kind: type[np.generic], suffix: str, tmp_path: Path
) -> None:
    """Pillow makes 255 of all larger values, and 0 of all floating ones below 1."""
    small = images(8, 4, 4).astype(kind)
    for i, pixels in enumerate(small):
        picture(tmp_path / "ab"[i % 2] / f"{i}.{suffix}", pixels)
    fed = federate(f"image-folder:{tmp_path}", clients=2, partition="iid")
    expected = small[[0, 2, 4, 1, 3, 5]].astype(np.uint8)
    np.testing.assert_array_equal(fed.x, np.broadcast_to(expected[:, None], (6, 3, 4, 4)))
    larger = np.linspace(0, 1, 16, dtype=kind) if kind is np.float32 else np.linspace(0, 4095, 16).astype(kind)
    picture(tmp_path / "a" / f"9.{suffix}", larger.reshape(4, 4))
    refuse(f"9.{suffix} has values that are no bytes", "save 8-bit images", source=f"image-folder:{tmp_path}")


def test_a_folder_a_client(tmp_path: Path) -> None:
    pixels = write_folders(tmp_path, ("ann", "ben", "eva"))
    fed = federate(f"image-folder:{tmp_path},clients-by=folder", partition="natural")
    assert fed.clients == 3
    for client, (mine, tested) in enumerate(zip(fed.train, fed.test, strict=True)):
        start = 8 * client
        np.testing.assert_array_equal(fed.x[mine], pixels[[start + i for i in (0, 1, 2, 4, 5, 6)]])
        np.testing.assert_array_equal(fed.test_x[tested], pixels[[start + 3, start + 7]])
    assert federate(**fed.origin).fingerprint() == fed.fingerprint()
    first = federate(f"image-folder:{tmp_path},clients-by=folder", clients=2, partition="natural")
    assert [part.tolist() for part in first.train] == [part.tolist() for part in fed.train[:2]]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    source = f"image-folder:{tmp_path / 'a'}"
    refuse("no folder", str(tmp_path / "a"), source=source)
    (tmp_path / "a").mkdir()
    refuse("has no folders", source=source)
    (tmp_path / "a" / "cat").mkdir()
    refuse("has no images", source=source)
    write_folders(tmp_path / "a")
    refuse("does not know whose", "dirichlet", source=source, partition="natural")
    refuse("clients_by=row", source=source, clients_by="row")
    picture(tmp_path / "a" / "dog" / "9.png", images(6, 6, 3))
    refuse("differ in size", "5 x 6", "6 x 6", "9.png", source=source)


def test_an_empty_client_is_named(tmp_path: Path) -> None:
    write_folders(tmp_path, ("ann", "ben"))
    (tmp_path / "carl" / "cat").mkdir(parents=True)
    refuse("client", "carl has no images", source=f"image-folder:{tmp_path},clients-by=folder", partition="natural")


# Arrays in a file


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


@pytest.mark.parametrize("names", [("x", "y", "test_x", "test_y"), ("x_train", "y_train", "x_test", "y_test")])
@pytest.mark.parametrize("last", [True, False])
def test_npz_of_images(tmp_path: Path, names: tuple[str, ...], last: bool) -> None:
    x, y = images(12, 3, 8, 8), np.arange(12) % 3
    stored = x.transpose(0, 2, 3, 1) if last else x
    arrays = dict(zip(names, (stored[:8], y[:8], stored[8:], y[8:].astype(np.uint8)), strict=True))
    fed = federate(saved(tmp_path / "a.npz", **arrays), clients=2, partition="iid")
    np.testing.assert_array_equal(fed.x, x[:8])
    np.testing.assert_array_equal(fed.test_x, x[8:])
    assert (fed.classes, fed.y.dtype) == (3, torch.int64)
    assert fed.transform is not None
    assert not fed.transform.random


def test_npz_of_numbers_without_test_arrays(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).standard_normal((16, 5)), np.arange(16) % 2
    fed = federate(saved(tmp_path / "a.npz", x=x, y=y), clients=2, partition="iid")
    assert (len(fed.x), len(fed.test_x), fed.x.dtype, fed.transform) == (12, 4, torch.float32, None)
    np.testing.assert_allclose(fed.test_x, x[quarter_rows(y)].astype(np.float32))


def quarter_rows(y: np.ndarray) -> list[int]:
    return sorted(int(row) for k in set(y.tolist()) for row in np.flatnonzero(y == k)[3::4])


@pytest.mark.parametrize("owners", [["z", "a", "m"], [30, 1, 7]])
def test_npz_with_clients(tmp_path: Path, owners: list[Any]) -> None:
    client, tested = np.array(owners * 4), np.array(owners * 2)
    source = saved(
        tmp_path / "a.npz",
        x=np.arange(12.0)[:, None],
        y=np.arange(12) % 2,
        test_x=np.arange(6.0)[:, None],
        test_y=np.arange(6) % 2,
        client=client,
        test_client=tested,
    )
    fed = federate(source, partition="natural")
    assert fed.clients == 3
    for name, mine, own_test in zip(sorted(owners), fed.train, fed.test, strict=True):
        assert mine.tolist() == np.flatnonzero(client == name).tolist()
        assert own_test.tolist() == np.flatnonzero(tested == name).tolist()
    refuse("knows 3 clients, not 4", source=source, clients=4, partition="natural")


def test_npz_files_that_cannot_be_used(tmp_path: Path) -> None:
    x, y, path = np.zeros((4, 2)), np.zeros(4, int), tmp_path / "a.npz"
    wrong: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "no y": ({"x": x}, ("has no y",)),
        "no test_y": ({"x": x, "y": y, "test_x": x}, ("has no test_y",)),
        "counts": ({"x": x, "y": y[:3]}, ("4 samples in x and 3 targets in y", "as many of both")),
        "kinds": ({"x": x, "y": np.array(["a"] * 4)}, ("<U1", "target of numbers")),
        "nothing": ({"x": x, "y": x[:, :0]}, ("targets of shape (0,)", "at least one number")),
        "below": ({"x": x, "y": y - 1}, ("label -1", "count classes from 0")),
        "objects": ({"x": np.array([{}] * 4, object), "y": y}, ("no .npz file of plain arrays",)),
        "texts": ({"x": np.array(["a"] * 4), "y": y}, ("type <U1", "save numbers")),
        "clients": ({"x": x, "y": y, "client": y[:2]}, ("2 clients for 4 samples",)),
        "strangers": (
            {"x": x, "y": y, "test_x": x, "test_y": y, "client": y, "test_client": y + 5},
            ("client 5", "none to train on"),
        ),
        "half": ({"x": x, "y": y, "test_x": x, "test_y": y, "test_client": y}, ("test samples only",)),
        "shapes": ({"x": x, "y": y, "test_x": x[:, :1], "test_y": y}, ("shape (1,)", "shape (2,)")),
        "nan": ({"x": x + np.nan, "y": y}, ("NaN",)),
    }
    for arrays, names in wrong.values():
        refuse(*names, source=saved(path, **arrays))
    refuse("leave augment out", source=saved(path, x=np.zeros((8, 2)), y=np.zeros(8, int)), augment=True)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refuse("no .npz file", source=f"npz:{path}")
    np.save(tmp_path / "one.npy", x)
    refuse("a single array", source=f"npz:{tmp_path / 'one.npy'}")
    refuse("cannot be read (No such file or directory)", source=f"npz:{tmp_path / 'none.npz'}")


# WikiText-2


def write_wiki(folder: Path) -> list[str]:
    folder.mkdir(parents=True)
    lines = [" ".join(f"w{(i * i + 3 * j) % 11}" for j in range(7)) for i in range(60)]
    (folder / "wiki.train.tokens").write_text("\n".join(lines) + "\n")
    for part in ("valid", "test"):
        (folder / f"wiki.{part}.tokens").write_text(f"w1 {part} w2 w3 w4 w5 w6\n" * 20)
    return [token for line in lines for token in (*line.split(), END)]


def test_wikitext2(tmp_path: Path) -> None:
    stream = write_wiki(tmp_path / "wikitext-2")
    fed = federate("wikitext2:rows=4,length=10", clients=4, partition="pathological:1", data_dir=tmp_path)
    known = (tmp_path / "wikitext-2" / "vocabulary.txt").read_text().splitlines()
    assert known[:2] == [UNKNOWN, END]
    assert sorted(known) == sorted({UNKNOWN, *stream})
    assert fed.classes == len(known)
    rows = [stream[120 * i : 120 * (i + 1)] for i in range(4)]
    assert sorted([known[t] for t in fed.y[part].flatten()] for part in fed.train) == sorted(rows)
    assert (fed.test_y == 0).sum() == 20  # one word of each line
    few = federate("wikitext2:rows=4,length=10,vocabulary=5", clients=4, partition="iid", data_dir=tmp_path)
    assert few.classes == 5
    assert (tmp_path / "wikitext-2" / "vocabulary.txt").read_text().splitlines() == known
    refuse("test=train", "choose test or valid", source="wikitext2:test=train", data_dir=tmp_path)


# Where data lie


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    assert data_dir().path == Path("data")
    chosen = choose(tmp_path / "chosen")
    assert (data_dir().path, config_file().parent.parent) == (chosen, tmp_path / "config")
    monkeypatch.setenv("COTERIE_DATA", "/srv/variable")
    assert data_dir().path == Path("/srv/variable")
    assert data_dir("/srv/option").path == Path("/srv/option")
    assert [path.name for path in config_file().parent.iterdir()] == ["config.json"]


def test_a_configuration_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    config_file().parent.mkdir()
    for content in ("{", "[]", '{"data_dir": 3}', b"\xff"):
        config_file().write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError, match=r"config\.json"):
            data_dir()
    config_file().write_text(json.dumps({"kept": 1}))
    choose(tmp_path / "new")
    assert json.loads(config_file().read_text()) == {"kept": 1, "data_dir": str(tmp_path / "new")}
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is no folder"):
        choose(tmp_path / "file")


# Together with the rest


def test_every_source_has_a_preset() -> None:
    assert PRESETS.keys() == ct.data.SOURCES.keys()


def test_a_run_on_natural_clients_and_its_repetition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = images(60, 8, 8), np.arange(60) % 3
    source = saved(tmp_path / "a.npz", x=x, y=y, client=np.arange(60) % 5)
    typed = [
        "run",
        "dfedalt",
        "--data",
        source,
        "--partition",
        "natural",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "a"),
    ]
    status, _, err = coterie(capsys, monkeypatch, *typed)
    assert status == 0, err
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["data"]["clients"] == 5
    again = ["run", str(tmp_path / "a" / "config.json"), "--out", str(tmp_path / "b")]
    assert coterie(capsys, monkeypatch, *again)[0] == 0
    assert json.loads((tmp_path / "b" / "config.json").read_text())["fingerprints"] == config["fingerprints"]


def test_the_data_dir_as_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_DATA", "/nowhere/at/all")
    typed = ["run", "dfedalt", "--data", "cifar10", "--data-dir", str(tmp_path / "sets")]
    status, _, err = coterie(capsys, monkeypatch, *typed)
    assert status == 2
    assert f"cifar10 is not in {tmp_path / 'sets'}" in err.splitlines()[-1]


def test_the_data_dir_reaches_everybody_who_reads_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two methods, the page about them, a saved configuration and a recipe; the variable stays what it was."""
    y = np.arange(40, dtype=np.uint8) % 10
    write_idx(tmp_path / "sets" / "mnist", [images(40, 28, 28), y, images(20, 28, 28), y[:20]], compressed=True)
    monkeypatch.setenv("COTERIE_DATA", "/nowhere/at/all")
    monkeypatch.chdir(tmp_path)
    there, small = ["--data-dir", "sets"], ["--data", "mnist", "--model", "logreg", "--clients", "2", "--rounds", "1"]
    compared = ["compare", "fedsam", "dfedavg", *small, "--partition", "iid", "--set", "epochs=1", "--out", "c"]
    published = ["recipe", "run", "dfedalt-t1", "--case", "1", "--methods", "local", "--seeds", "1", "--out", "r"]
    for typed in (compared, ["run", "c/dfedavg-seed0", "--out", "again"], [*published, *small, "--set", "epochs=1"]):
        status, _, err = coterie(capsys, monkeypatch, *typed, *there)
        assert status == 0, err
    page = Path("c/report.html").read_text(encoding="utf-8")
    assert "The loss around the clients" in page
    assert "It is left out" not in page
    assert os.environ["COTERIE_DATA"] == "/nowhere/at/all"


def test_a_model_that_does_not_fit_names_both_shapes(tmp_path: Path) -> None:
    fed = federate(saved(tmp_path / "a.npz", x=images(12, 32, 32, 3), y=np.arange(12) % 3), clients=2, partition="iid")
    algorithm = ct.algorithms.fedavg(participation=1.0, epochs=1)
    with pytest.raises(UserError, match=r"of shape \(1, 28, 28\), the data have \(3, 32, 32\)"):
        ct.fit(ct.models.build("cnn", classes=3), fed, algorithm, rounds=1, progress=False)
    with pytest.raises(UserError, match=r"3072 and 784x3.*the data have \(3, 32, 32\)"):
        ct.fit(nn.Sequential(nn.Flatten(), nn.Linear(784, 3)), fed, algorithm, rounds=1, progress=False)


def test_clients_without_test_samples_train(tmp_path: Path) -> None:
    """A rare class may have no test samples, and a file may bring none for anybody."""
    x, y = np.random.default_rng(0).random((9, 3)), np.array([0] * 8 + [1])
    none: dict[str, Any] = {"test_x": x[:0], "test_y": y[:0]}
    others: dict[str, Any] = {"test_x": x[:2], "test_y": y[:2] + 5}  # of classes that nobody trains on
    for arrays, partition in (({}, "pathological:1"), (none, "iid"), (others, "iid")):
        fed = federate(saved(tmp_path / "a.npz", x=x, y=y, **arrays), 2, partition)
        assert min(map(len, fed.test)) == 0
        model, out = ct.models.build("logreg", fed), tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        run = ct.fit(model, fed, ct.algorithms.local(epochs=1), rounds=1, progress=False, out=out)
        assert (run.history[0]["personal_accuracy_after_mix"] is None) == (max(map(len, fed.test)) == 0)
