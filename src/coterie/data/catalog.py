"""The published data sets: their files, where these come from, and where they are looked for."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..core.errors import UserError, unknown
from ..core.spec import spelled
from .readers.packed import opened


class Remote(NamedTuple):
    """A file on the site of its data set."""

    url: str
    md5: str | None  # None where we are not sure of one: then only the archive's own checksums are checked
    unpacked: str | None = None  # the folder in the archive that replaces it; None: the file is kept as it is

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


class CatalogEntry(NamedTuple):
    """A data set."""

    what: str
    folder: str  # where fetch puts it, below the data folder
    also: tuple[str, ...]  # other folders in which it is looked for
    needs: tuple[tuple[str, ...], ...]  # one file of each group must exist
    remotes: tuple[Remote, ...]


_IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def _idx(what: str, folder: str, torchvision: str, home: str, md5s: Iterable[str]) -> CatalogEntry:
    remotes = tuple(Remote(f"{home}/{name}.gz", md5) for name, md5 in zip(_IDX, md5s, strict=True))
    return CatalogEntry(what, folder, (f"{torchvision}/raw",), tuple((name, f"{name}.gz") for name in _IDX), remotes)


def _cifar(what: str, name: str, folder: str, archive: str, md5: str) -> CatalogEntry:
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    return CatalogEntry(what, ".", (name,), ((folder, archive),), (Remote(url, md5),))


CATALOG = {
    "mnist": _idx(
        "handwritten digits, 28 x 28, 60,000 + 10,000",
        "mnist",
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _idx(
        "clothes, 28 x 28, 60,000 + 10,000",
        "fashion-mnist",
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "cifar10": _cifar(
        "photographs of 10 kinds, 32 x 32, 50,000 + 10,000",
        "cifar10",
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
    ),
    "cifar100": _cifar(
        "photographs of 100 kinds, 32 x 32, 50,000 + 10,000",
        "cifar100",
        "cifar-100-python",
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
    ),
    "svhn": CatalogEntry(
        "house numbers, 32 x 32, 73,257 + 26,032",
        "svhn",
        (".", "SVHN"),
        (("train_32x32.mat",), ("test_32x32.mat",)),
        (
            Remote("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            Remote("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    "tiny-imagenet": CatalogEntry(
        "photographs of 200 kinds, 64 x 64, 100,000 + 10,000",
        ".",
        ("tiny-imagenet",),
        (("tiny-imagenet-200",),),
        (
            Remote(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
                "tiny-imagenet-200",
            ),
        ),
    ),
    "wikitext2": CatalogEntry(
        "articles of Wikipedia, 2 million words",
        ".",
        ("wikitext2",),
        (("wikitext-2",),),
        # The well-known checksum is that of a site that is gone; the archive's own ones are checked instead.
        (Remote("https://wikitext.smerity.com/wikitext-2-v1.zip", None, "wikitext-2"),),
    ),
}


def entry(name: str) -> CatalogEntry:
    """Return the data set of that name."""
    name = spelled(name, CATALOG)
    if name not in CATALOG:
        raise unknown("data set", name, CATALOG)
    return CATALOG[name]


def present(name: str, data: Path) -> list[Path] | None:
    """Return the files of a data set, one per group that it needs, all in one folder; None if some are missing."""
    wanted = entry(name)
    for folder in (data / wanted.folder, *(data / other for other in wanted.also)):
        found = [next((p for p in map(folder.joinpath, group) if p.exists()), None) for group in wanted.needs]
        if all(found):
            return [path for path in found if path is not None]
    return None


def located(name: str, data: Path) -> list[Path]:
    """Return the files of a data set; if they are missing, refuse with a sentence that says which to put where."""
    found = present(name, data)
    if found is not None:
        return found
    wanted = entry(name)
    files = " and ".join(" or ".join(group) for group in wanted.needs)
    raise UserError(
        f"{name} is not in {data}: put {files} into {data / wanted.folder}, type `coterie data fetch {name}`, "
        "or name another folder with --data-dir"
    )


def check_published(name: str, path: Path) -> None:
    """Refuse a file of a data set that differs from the published one, which another library reads."""
    expected = next(remote.md5 for remote in entry(name).remotes if remote.name == path.name)
    try:
        found = md5_of(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): fetch it again") from error
    if found != expected:
        raise UserError(f"{path} has the md5 {found}, not {expected} of the published file: fetch it again")


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, by which data sets are published."""
    with opened(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
