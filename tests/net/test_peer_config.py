"""peer.toml: what it may say, whose data it names, and what members must have alike."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="peers need coterie[peers]")

from coterie import algorithms, models
from coterie.cli.peer import run as peer_run
from coterie.core.errors import UserError
from coterie.data import federate
from coterie.net.certificates.authority import Authority
from coterie.net.setup.agreement import agreed, algorithm, differences, digest, module
from coterie.net.setup.config import TEMPLATE, PeerConfig, load
from coterie.net.setup.own_data import own_data
from coterie.net.setup.shared_columns import merged, read_columns
from coterie.net.wire.address import Address
from in_process import answer
from published import images

PEER = """
[federation]
id = "heart-2026"
method = "dfedalt"
rounds = 3
model = "mlp:width=8"
classes = 3
[federation.settings]
lr = 0.02
topology = "ring"
[federation.members]
alpha = "10.0.0.1:7443"
beta = "10.0.0.2:7444"
[peer]
name = "alpha"
folder = "alpha"
data = "npz:own.npz"
"""


def changed(old: str = "", new: str = "", text: str = PEER) -> str:
    assert old in text
    return text.replace(old, new, 1)


def written(folder: Path, text: str = PEER, name: str = "peer.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read(folder: Path, old: str = "", new: str = "", trusted: tuple[str, ...] = ()) -> PeerConfig:
    return load(written(folder, changed(old, new)), trusted)


def save_npz(folder: Path, name: str = "own.npz", **arrays: Any) -> None:
    rng = np.random.default_rng(0)
    usual = {"x": rng.normal(size=(12, 4)).astype(np.float32), "y": np.arange(12) % 3}
    np.savez(folder / name, **{**usual, **arrays})


def test_what_a_file_says(tmp_path: Path) -> None:
    text = changed("[peer]\n", '[peer]\nmetrics = 9464\ndeadline = "30s"\nwait = "1m"\n')
    config = load(written(tmp_path, text))
    assert (config.name, config.client, config.folder) == ("alpha", 0, tmp_path / "alpha")
    assert config.listen == Address("0.0.0.0", 7443)
    assert config.metrics == Address("127.0.0.1", 9464)
    assert (config.deadline, config.wait) == (30.0, 60.0)
    assert list(config.members.values()) == [Address("10.0.0.1", 7443), Address("10.0.0.2", 7444)]
    assert read(tmp_path, "10.0.0.1:7443", "[2001:db8::1]:7443").listen == Address("::", 7443)
    other = read(tmp_path, 'name = "alpha"', 'name = "beta"\nlisten = "[::1]:99"')
    assert (other.client, other.listen, str(other.listen)) == (1, Address("::1", 99), "[::1]:99")
    assert (other.deadline, other.metrics) == (None, None)


def test_the_file_that_init_writes(tmp_path: Path) -> None:
    assert answer("peer", "init", cwd=tmp_path).status == 0
    config = load(tmp_path / "peer.toml")
    assert (config.name, config.client, len(config.members)) == ("alpha", 0, 3)
    assert algorithm(config).settings["topology"] == "ring"
    assert "is there already" in answer("peer", "init", cwd=tmp_path).sentence
    # What stands behind a comment sign works as well.
    optional = re.compile(r"^# (\w+ = (?:\"[^\"]*\"|\[[^\]]*\]|[\d.]+))", re.MULTILINE)
    assert len(optional.findall(TEMPLATE)) == 13
    everything = load(written(tmp_path, optional.sub(r"\1", TEMPLATE), "all.toml"))
    assert everything.metrics == Address("127.0.0.1", 9464)
    assert everything.deadline is None


MISTAKES = {
    "an unknown key": ("rounds", "ronds", r"\[federation\] has the key 'ronds'.*did you mean rounds\?"),
    "an unknown key of the peer": ("folder", "foldr", r"\[peer\] has the key 'foldr'.*did you mean folder\?"),
    "an unknown table": ("[peer]", "[per]", r"has the table 'per'.*did you mean peer\?"),
    "no id": ('id = "heart-2026"', "", r'\[federation\] lacks id: write id = "heart-2026"'),
    "no name": ('name = "alpha"', "", r'\[peer\] lacks name: write name = "alpha"'),
    "a wrong type": ("rounds = 3", 'rounds = "many"', "rounds='many' does not fit .*: rounds takes an integer"),
    "a wrong range": ("rounds = 3", "rounds = 0", "rounds=0 is out of range"),
    "a bad id": ("heart-2026", "a/b", "id='a/b' is no name"),
    "an empty text": ('"mlp:width=8"', '""', "model is an empty text"),
    "members that are no table": ("[federation.members]", "[[federation.members]]", "members=.* is no table"),
    "settings that are none": ("[federation.settings]\nlr = 0.02", "settings = 1", "settings=1 is no table"),
    "one member": ('beta = "10.0.0.2:7444"', "", "names 1 members"),
    "a name of a member": ("beta =", '"../b" =', "is no name of a member"),
    "names that differ by case": ("beta =", "ALPHA =", "in another case, which TLS ignores"),
    "no port": ("10.0.0.1:7443", "10.0.0.1", "alpha='10.0.0.1' is no address: write HOST:PORT"),
    "a wrong port": ("10.0.0.1:7443", "10.0.0.1:70000", "is no address"),
    "an address twice": ("10.0.0.2:7444", "10.0.0.1:7443", "alpha and beta both are at 10.0.0.1:7443"),
    "a stranger": ('name = "alpha"', 'name = "alhpa"', r"none of \[federation.members\]: did you mean alpha\?"),
    "a wrong time": ("[peer]\n", '[peer]\nwait = "soon"\n', r"\[peer\]: wait='soon' is not a time"),
    "a wrong deadline": ("[peer]\n", '[peer]\ndeadline = "0s"\n', "deadline='0s' is not a time"),
    "no port for Prometheus": ("[peer]\n", "[peer]\nmetrics = 0\n", "metrics='127.0.0.1:0' is no address"),
    "a wrong listen": ("[peer]\n", '[peer]\nlisten = "::1:7443"\n', "listen='::1:7443' is no address"),
    "mean without std": ("classes = 3", "classes = 3\nmean = [0.5]", "mean and std have 1 and 0 numbers"),
    "a class twice": ("classes = 3", 'classes = ["a", "a"]', "names one class twice"),
    "no TOML": ("[peer]", "[peer", r"is not TOML .*write \[federation\]"),
    "no key of a certificate": (
        '"npz:own.npz"',
        '"x"\n[peer.certificates]\nkey = "k"',
        r"certificates\] lacks authority",
    ),
    "code of somebody's": ('"dfedalt"', '"mine:fedfoo"', "would run mine:fedfoo, .*add --trust mine:fedfoo"),
    "data of somebody's": ('"npz:own.npz"', '"./load.py:mine,n=3"', r"--trust ./load.py:mine"),
    "a graph of somebody's": ('"ring"', '"mine:graph"', "would run mine:graph"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(mistake: str, tmp_path: Path) -> None:
    old, new, told = MISTAKES[mistake]
    with pytest.raises(UserError, match=told) as caught:
        read(tmp_path, old, new)
    assert "peer.toml" in str(caught.value) or "member" in str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_a_missing_file_and_needless_trust(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="coterie peer init"):
        load(tmp_path / "missing.toml")
    with pytest.raises(UserError, match="--trust mine:net is not what"):
        read(tmp_path, trusted=("mine:net",))


UNFIT = {
    "a server": (
        '"dfedalt"',
        '"fedavg"',
        "fedavg does not run between peers: choose .*such as dfedavg",
    ),
    "a server unless": ('method = "dfedalt"', 'method = "ditto"', "ditto does not run between peers"),
    "all in one place": ('method = "dfedalt"', 'method = "pooled"', "needs the samples of all members in one place"),
    "alone": ('method = "dfedalt"', 'method = "local"', "local does not run between peers"),
    "a missing graph": ('topology = "ring"', "", "fedlmt needs a server unless it has a topology"),
    "quantize": ("lr = 0.02", "quantize = 8", "quantize rounds messages in a simulation"),
    "participation": ("lr = 0.02", "participation = 0.5", "participation draws who is active in a simulated round"),
    "an unknown setting": ("lr = 0.02", "lrr = 0.1", "has no option 'lrr' .did you mean lr"),
    "a wrong value": ("lr = 0.02", "lr = -1", "lr=-1.* is out of range"),
    "too few members": ('"ring"', '"random:10"', "random"),
    "an unknown method": ('"dfedalt"', '"dfedatl"', "did you mean dfedalt"),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_what_real_peers_cannot_run(unfit: str, tmp_path: Path) -> None:
    old, new, told = UNFIT[unfit]
    text = changed(old, new)
    if unfit == "a missing graph":
        text = changed('"dfedalt"', '"fedlmt"', text)
    with pytest.raises(UserError, match=told):
        algorithm(load(written(tmp_path, text)))


@pytest.mark.parametrize("method", ["dfedavgm-p", "dispfl", "osgp", "fedamp", "pfedlmt", "dfedsam-mgs"])
def test_methods_between_peers_are_taken(method: str, tmp_path: Path) -> None:
    made = algorithm(read(tmp_path, '"dfedalt"', f'"{method}"'))
    assert made.settings == algorithms.build(method, lr=0.02, topology="ring").settings


class TestData:
    """All kinds of data that a member may have."""

    def test_npz_has_all_its_samples(self, tmp_path: Path) -> None:
        """Test samples of a class that no training sample has are the member's, too."""
        test_x = np.ones((5, 4), np.float32)
        save_npz(tmp_path, y=np.arange(12) % 2, test_x=test_x, test_y=np.array([0, 1, 1, 1, 2]))
        own = own_data(read(tmp_path))
        assert (own.clients, own.names, own.classes, own.sizes.tolist()) == (1, ("alpha",), 3, [12])
        assert own.test_y[own.test[0]].tolist() == [0, 1, 1, 1, 2]

    def test_images_are_normalized_as_all_members_do(self, tmp_path: Path) -> None:
        save_npz(tmp_path, x=images(12, 8, 8))
        own = own_data(read(tmp_path))
        assert (own.transform.mean, own.transform.std) == ((0.5,), (0.5,))  # type: ignore[union-attr]
        told = own_data(read(tmp_path, "classes = 3", "classes = 3\nmean = [0.1]\nstd = [0.2]"))
        assert (told.transform.mean, told.transform.std) == ((0.1,), (0.2,))  # type: ignore[union-attr]
        with pytest.raises(UserError, match="mean has 2 numbers, and the images 1 channels"):
            own_data(read(tmp_path, "classes = 3", "classes = 3\nmean = [0.1, 0.1]\nstd = [0.2, 0.2]"))

    @pytest.mark.parametrize("typed", ["photos", "image-folder:photos"])
    def test_folders_of_images_are_numbered_alike(self, typed: str, tmp_path: Path) -> None:
        pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")
        for part, label, shade in (("train", "cat", 9), ("train", "emu", 90), ("test", "emu", 90)):
            (tmp_path / "photos" / part / label).mkdir(parents=True)
            for i in range(2):
                pillow.new("L", (4, 4), shade + i).save(tmp_path / "photos" / part / label / f"{i}.png")
        text = changed('"npz:own.npz"', f'"{typed}"')
        own = own_data(load(written(tmp_path, changed("classes = 3", 'classes = ["ant", "cat", "dog", "emu"]', text))))
        assert (own.y.tolist(), own.test_y.tolist(), own.classes) == ([1, 1, 3, 3], [3, 3], 4)
        with pytest.raises(UserError, match=r"classes = \['cat', 'emu'\]"):
            own_data(load(written(tmp_path, text)))
        with pytest.raises(UserError, match="has the class emu, which is none of cat"):
            own_data(load(written(tmp_path, changed("classes = 3", 'classes = ["cat"]', text))))

    def test_tables_are_encoded_alike(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow", reason="tables need pyarrow")
        for name, first, wards, rows in (("a", 20, "xy", 8), ("b", 60, "yz", 16)):
            lines = [f"{first + i},{wards[i % 2]},0.003,{first / 7},{i % 2}\n" for i in range(rows)]
            (tmp_path / f"{name}.csv").write_text("age,ward,dose,size,ill\n" + "".join(lines))
        with pytest.raises(UserError, match="coterie peer columns"):
            own_data(read(tmp_path, "npz:own.npz", "csv:a.csv,target=ill"))
        for name in "ab":
            done = answer("peer", "columns", f"csv:{name}.csv,target=ill", "--out", f"{name}.json", cwd=tmp_path)
            assert done.status == 0, done.err
        assert "6 inputs of 4 columns, from 18" in answer("peer", "columns", "a.json", "b.json", cwd=tmp_path).out
        columns = read_columns(tmp_path / "columns.json")
        assert columns["features"] == {"age": None, "ward": ["x", "y", "z"], "dose": None, "size": None}
        assert (columns["mean"][4], columns["std"][4]) == (0.003, 0)
        (tmp_path / "short.json").write_text(json.dumps({**columns, "mean": columns["mean"][1:]}))
        with pytest.raises(UserError, match="too few means"):
            read_columns(tmp_path / "short.json")
        text = changed("classes = 3", 'columns = "columns.json"')
        texts = [changed("npz:own.npz", f"csv:{name}.csv,target=ill", text) for name in "ab"]
        configs = [load(written(tmp_path, text, f"{i}.toml")) for i, text in enumerate(texts)]
        found = [own_data(config) for config in configs]
        assert [fed.input_shape for fed in found] == [(6,), (6,)]
        age, *_, dose, size = np.concatenate([fed.x.numpy() for fed in found]).T
        for values in (age, size):  # as if it were one table, although size is the same in all rows of each
            assert abs(values.mean()) < 1e-5
            assert abs(values.std() - 1) < 1e-5
        assert not dose.any()
        assert len({digest(agreed(*each)) for each in zip(configs, found, strict=True)}) == 1

    def test_functions_of_ones_own(self, tmp_path: Path) -> None:
        (tmp_path / "loader.py").write_text(
            "import torch, coterie as ct\n"
            "def pairs(n: int = 4, seed: int = 7):\n"
            "    return (torch.full((n, 2), float(seed)), torch.arange(n) % 2), (torch.zeros(2, 2), torch.arange(2))\n"
            "def federation(clients: int = 1):\n"
            "    part = [(torch.zeros(4, 2), torch.arange(4) % 2)] * clients\n"
            "    return ct.data.from_tensors(part, part)\n"
            "def nothing():\n"
            "    return 3\n"
        )
        own = self.loaded(tmp_path, "pairs", ",n=6")
        assert (len(own.x), float(own.x[0, 0]), own.classes, len(own.test[0])) == (6, 0.0, 3, 2)
        assert self.loaded(tmp_path, "federation").names == ("alpha",)
        with pytest.raises(UserError, match="returns 2 clients, and a peer is one"):
            self.loaded(tmp_path, "federation", ",clients=2")
        with pytest.raises(UserError, match="returned int: return a Federation of one client"):
            self.loaded(tmp_path, "nothing")

    @staticmethod
    def loaded(folder: Path, function: str, options: str = "") -> Any:
        name = f"./loader.py:{function}"
        return own_data(read(folder, "npz:own.npz", f"{name}{options}", (name,)))

    @pytest.mark.parametrize(
        ("old", "new", "told"),
        [
            ("classes = 3", "", r"lacks classes: .*classes = 3, because one member may lack some"),
            ("classes = 3", "classes = 2", "labels up to 2, and classes=2"),
            ("classes = 3", 'classes = ["a", "b", "c"]', "classes names them, and npz has numbers"),
            ("classes = 3", 'classes = 3\ncolumns = "c.json"', "columns=c.json is for tables"),
            ("classes = 3", "classes = 3\nmean = [1.0]\nstd = [1.0]", "mean and std are for images of bytes"),
            ("npz:own.npz", "own.npz", "write npz:own.npz"),
            ("npz:own.npz", "npz:missing.npz", "missing.npz"),
            ("npz:own.npz", "text:words.txt", "vocabulary of one member's words"),
            ("npz:own.npz", "csv:own.npz,target=y", "coterie peer columns"),
        ],
    )
    def test_mistakes(self, old: str, new: str, told: str, tmp_path: Path) -> None:
        save_npz(tmp_path)
        with pytest.raises(UserError, match=told):
            own_data(read(tmp_path, old, new))

    def test_numbers_need_no_classes(self, tmp_path: Path) -> None:
        save_npz(tmp_path, y=np.linspace(0, 1, 12, dtype=np.float32))
        text = changed("classes = 3", 'loss = "mse"')
        found = agreed(load(written(tmp_path, text)))
        assert (found["classes"], found["loss"], found["model"]["classes"]) == (None, "mse", 1)
        with pytest.raises(UserError, match="the targets are numbers: leave classes out"):
            own_data(read(tmp_path))


class TestAgreement:
    """Members that agree have one digest; others are told where they differ."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("agreed")
        save_npz(folder)
        save_npz(folder, "two.npz", x=np.ones((20, 4), np.float32), y=np.arange(20) % 2)  # lacks a class
        save_npz(folder, "wide.npz", x=np.ones((12, 5), np.float32))
        (folder / "nets.py").write_text(
            "from torch import nn\ndef net(shape, classes):\n    return nn.Linear(4, classes)\n"
        )
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def ours(cls, folder: Path) -> dict[str, Any]:
        return agreed(load(written(folder)))

    def test_two_members_have_one_digest(self, folder: Path, ours: dict[str, Any]) -> None:
        text = changed(
            'name = "alpha"\nfolder = "alpha"\ndata = "npz:own.npz"',
            'name = "beta"\nfolder = "b"\ndata = "npz:two.npz"',
        )
        text = changed("10.0.0.2:7444", "10.9.9.9:1", text)  # one may reach another elsewhere
        theirs = agreed(load(written(folder, text, "beta.toml")))
        assert differences(ours, theirs) == []
        assert digest(ours) == digest(theirs)
        assert json.loads(json.dumps(ours)) == ours

    @pytest.mark.parametrize(
        ("old", "new", "where"),
        [
            ("lr = 0.02", "lr = 0.1", "settings.lr: 0.1 there, 0.02 here"),
            ("rounds = 3", "rounds = 4", "rounds: 4 there, 3 here"),
            ("rounds = 3", "rounds = 3\nseed = 1", "seed: 1 there, 0 here"),
            ("heart-2026", "heart", "federation: 'heart' there"),
            ("width=8", "width=9", "model.width: 9 there, 8 here"),
            ("dfedalt", "dfedavg", "method: 'dfedavg' there"),
            ("classes = 3", "classes = 4", "classes: 4 there, 3 here"),
            ("classes = 3", 'classes = 3\nmetric = "macro-f1"', r"metric: ['macro-f1'] there, [] here"),
            ("classes = 3", 'classes = 3\nloss = "mse"', "loss: 'mse' there"),
            ("[peer]", 'gamma = "10.0.0.3:1"\n[peer]', "members: ['alpha', 'beta', 'gamma'] there"),
            ("npz:own.npz", "npz:wide.npz", "inputs.shape: [5] there, [4] here"),
        ],
    )
    def test_whoever_differs_is_told_where(self, folder: Path, ours: Any, old: str, new: str, where: str) -> None:
        theirs = agreed(load(written(folder, changed(old, new), "other.toml")))
        assert digest(theirs) != digest(ours)
        assert any(line.startswith(where) for line in differences(ours, theirs)), differences(ours, theirs)

    def test_the_order_of_members_counts(self, folder: Path, ours: dict[str, Any]) -> None:
        lines = 'alpha = "10.0.0.1:7443"\nbeta = "10.0.0.2:7444"'
        theirs = agreed(load(written(folder, changed(lines, "\n".join(reversed(lines.split("\n")))), "other.toml")))
        assert digest(theirs) != digest(ours)

    def test_code_of_ones_own_is_compared_by_its_file(self, folder: Path) -> None:
        name = "./nets.py:net"
        config = load(written(folder, changed("mlp:width=8", name), "own.toml"), (name,))
        found = agreed(config)
        assert found["model"]["module"] == name
        assert len(found["code"][name]) == 64
        assert module(config, own_data(config)).weight.shape == (3, 4)

    def test_another_backbone_is_named(self, folder: Path) -> None:
        """Both members have the same code, which reads its frozen weights from a file of theirs."""
        (folder / "frozen.py").write_text(
            "import numpy, pathlib, torch\nfrom torch import nn\n"
            "def net(shape, classes):\n"
            "    backbone = nn.Linear(4, 8).requires_grad_(False)\n"
            "    weights = numpy.load(pathlib.Path(__file__).with_name('backbone.npy'))\n"
            "    backbone.weight.copy_(torch.from_numpy(weights))\n"
            "    return nn.Sequential(backbone, nn.Linear(8, classes))\n"
        )
        name, found = "./frozen.py:net", []
        for value in (0.0, 1.0):
            np.save(folder / "backbone.npy", np.full((8, 4), value, np.float32))
            found.append(agreed(load(written(folder, changed("mlp:width=8", name), "own.toml"), (name,))))
        lines = differences(*found)
        assert [line.partition(":")[0] for line in lines] == ["model.first_values", "model.constants.0"]

    def test_anything_may_come_from_others(self, ours: dict[str, Any]) -> None:
        for theirs in (None, 3, [], "x" * 10**6, {"settings": "\x1b[31m" * 1000}, {"\n" * 1000: {"a": []}}):
            lines = differences(ours, theirs)
            assert lines
            assert all(len(line) < 300 and line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("typed", "told"),
    [("auto", "it is None"), ("90s", "it is 90.0"), ("soon", "--deadline='soon' is not a time: write it as 90s")],
)
def test_a_typed_deadline_comes_before_the_files(
    typed: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: PeerConfig) -> None:
        raise UserError(f"it is {config.deadline}")

    monkeypatch.setattr(peer_run, "participant", refuse)
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)  # this process goes on
    written(tmp_path, changed("[peer]\n", '[peer]\ndeadline = "30s"\n'))
    assert told in answer("peer", "--config", "peer.toml", "--deadline", typed, cwd=tmp_path).sentence


def test_columns_of_unlike_tables_are_refused() -> None:
    one: Any = {"features": {"age": None}, "mean": [1.0], "std": [2.0], "target": ["y"], "classes": ["0", "1"]}
    one |= {"target_mean": [], "target_std": [], "rows": 10}
    for change, told in (
        ({"features": {"size": None}}, "only some of the tables have the column"),
        ({"features": {"age": ["old"]}}, "age holds numbers in some tables and texts"),
        ({"target": ["z"]}, "different targets"),
    ):
        with pytest.raises(UserError, match=told):
            merged([one, one | change])
    both = merged([one, {**one, "mean": [5.0], "classes": ["1", "2"], "rows": 30}])
    assert (both["mean"], both["std"], both["rows"]) == ([4.0], [pytest.approx(7**0.5)], 40)
    assert both["fill"] == [4.0]  # what stands for a missing value
    assert both["classes"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("words", "told"),
    [("npz:own.npz", "is no table"), ("missing.json", "there is no file"), ("peer.toml", "is no table")],
)
def test_mistakes_of_columns(words: str, told: str, tmp_path: Path) -> None:
    save_npz(tmp_path)
    assert told in answer("peer", "columns", words, cwd=tmp_path).sentence


def test_credentials_lie_beside_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no certificates"):
        read(tmp_path).credentials()
    Authority.create(tmp_path / "certs").issue("alpha")
    table = "[peer.certificates]\n" + "".join(
        f'{key} = "certs/{file}"\n'
        for key, file in {"authority": "authority.pem", "certificate": "alpha.pem", "key": "alpha.key"}.items()
    )
    assert load(written(tmp_path, PEER + table)).credentials().name == "alpha"


def test_the_same_model_as_in_a_simulation(tmp_path: Path) -> None:
    """A member begins with what ``coterie run`` with the same seed begins with."""
    save_npz(tmp_path)
    config = read(tmp_path)
    fed = federate(f"npz:{tmp_path / 'own.npz'}", clients=2, partition="iid")
    one, other = (m.state_dict() for m in (module(config, own_data(config)), models.build("mlp:width=8", fed, seed=0)))
    assert all((value == other[key]).all() for key, value in one.items())
