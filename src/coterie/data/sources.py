"""The sources of data by name, those that need no file, and the call that makes a federation of one of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from ..core import rng
from ..core.annotations import NonNegative, PositiveInt, Range
from ..core.arguments import checked
from ..core.custom import import_function, own_name
from ..core.errors import UserError, unknown
from ..core.memory import check_fits
from ..core.schema import SavedColumns
from ..core.spec import Spec, bind, parameters, parse, spelled
from .custom import image_folder, npz
from .data_dir import data_dir as found_data_dir
from .encoding import Columns
from .federation import Federation, from_tensors
from .partition import IID, NATURAL, PARTITIONS, Parts, natural_split, split, test_parts
from .pool import Pool, quarter
from .readers.arrow import csv, parquet
from .readers.huggingface import huggingface
from .readers.images import cifar10, cifar100, fashion_mnist, mnist, mnist_halves, svhn, tiny_imagenet
from .readers.text import text, wikitext2
from .tables import table_source

BYTES = 28  # of a number while it is drawn: three times in double precision, once in single
MEAN, STD = 0.305, 0.376  # of a digit's pixels scaled to [0, 1]


def digits(seed: int = 0, noise: NonNegative = 0.0, renamed: Annotated[int, Range(0, 10)] = 0) -> Pool:
    """Load 1,797 handwritten digits, 8 x 8 pixels, standardized; the same quarter is for testing for every seed.

    noise: Gaussian noise on every pixel, in standard deviations of a pixel. renamed: how many of the ten digits every
    client calls by the name of another one, each client in its own way, as sites do that code the same thing
    differently. What a digit looks like is then worth sharing, and what it is called is not.

    >>> pool = digits()
    >>> tuple(pool.x.shape), tuple(pool.test_x.shape)
    ((1352, 1, 8, 8), (445, 1, 8, 8))

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    archive = files(__package__).joinpath("files/digits.npz")
    with archive.open("rb") as file, np.load(file, allow_pickle=False) as data:
        x, y = data["x"], data["y"].astype(np.int64)
    test = torch.from_numpy(quarter(y))
    images = (torch.from_numpy(x).float().unsqueeze(1) / 16 - MEAN) / STD
    if noise:
        images += noise * torch.from_numpy(rng.generator(seed, "noise").standard_normal(images.shape)).float()
    labels = torch.from_numpy(y)
    if renamed == 1:
        raise UserError("renamed=1: one digit alone cannot have the name of another: rename 2 to 10 of them, or none")
    per_client = partial(_rename, count=renamed, seed=seed) if renamed else None
    return Pool(images[~test], labels[~test], images[test], labels[test], 10, per_client)


def _rename(federation: Federation, count: int, seed: int) -> Federation:
    """Let every client call some digits by each other's names."""
    y, federation = federation.y.clone(), _own_tests(federation)
    test_y = federation.test_y
    for client, (mine, tested) in enumerate(zip(federation.train, federation.test, strict=True)):
        some = torch.from_numpy(rng.generator(seed, "digits-renamed", client).permutation(10)[:count])
        names = torch.arange(10)
        names[some] = some.roll(1)  # none keeps its own
        y[mine], test_y[tested] = names[y[mine]], names[test_y[tested]]
    return replace(federation, y=y, test_y=test_y)


def _own_tests(federation: Federation) -> Federation:
    """Give every client test rows of its own, where several test on the same."""
    rows = torch.cat(federation.test)
    test = torch.split(torch.arange(len(rows)), [len(part) for part in federation.test])
    return replace(federation, test_x=federation.test_x[rows], test_y=federation.test_y[rows], test=test)


def synthetic(
    seed: int,
    size: PositiveInt = 2000,
    classes: PositiveInt = 10,
    features: PositiveInt = 20,
    heterogeneity: NonNegative = 0.0,
    noise: NonNegative = 1.5,
) -> Pool:
    """Draw Gaussian classes around prototypes that may differ between clients; a quarter of ``size`` is for testing.

    A sample of class k at client i is common_k + heterogeneity * own_ik + noise * e, with common_k, own_ik and e
    standard normal. With heterogeneity 0 all clients have one distribution; test samples follow the client's own.

    >>> pool = synthetic(seed=0, size=400, classes=4)
    >>> tuple(pool.x.shape), pool.test_y.bincount().tolist()
    ((300, 20), [25, 25, 25, 25])
    """
    if size < 4 * classes:
        raise UserError(f"size={size} is too small for {classes} classes: ask for {4 * classes} or more")
    numbers = size * (features + 2) + classes * features
    check_fits(BYTES * numbers, f"synthetic data of {size:,} x {features:,} numbers", "ask for fewer of them")
    draw = rng.generator(seed, "synthetic")
    common = draw.standard_normal((classes, features))
    y = np.arange(size) % classes
    x = torch.from_numpy(common[y] + noise * draw.standard_normal((size, features))).float()
    test, labels = torch.from_numpy(quarter(y)), torch.from_numpy(y)
    per_client = partial(_add_own_part, amount=heterogeneity, shape=common.shape, seed=seed) if heterogeneity else None
    return Pool(x[~test], labels[~test], x[test], labels[test], classes, per_client)


def _add_own_part(federation: Federation, amount: float, shape: tuple[int, ...], seed: int) -> Federation:
    """Move every sample by its client's own part of the prototype; every client gets test rows of its own."""
    x, federation = federation.x.clone(), _own_tests(federation)
    test_x, test_y = federation.test_x, federation.test_y
    for client, (mine, tested) in enumerate(zip(federation.train, federation.test, strict=True)):
        own = torch.from_numpy(rng.generator(seed, "synthetic-own", client).standard_normal(shape)).float()
        x[mine] += amount * own[federation.y[mine]]
        test_x[tested] += amount * own[test_y[tested]]
    return replace(federation, x=x, test_x=test_x)


CLIENTS = 20  # unless it is given, or the data know their clients
UNEQUAL = "dirichlet:0.1"  # the partition of data with classes

# A loader takes the seed and the data folder if it needs them, and the options that its signature declares.
SOURCES: dict[str, Callable[..., Pool]] = {
    "digits": digits,
    "synthetic": synthetic,
    "mnist": mnist,
    "mnist-halves": mnist_halves,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "tiny-imagenet": tiny_imagenet,
    "image-folder": image_folder,
    "npz": npz,
    "csv": table_source(csv),
    "parquet": table_source(parquet),
    "huggingface": table_source(huggingface),
    "text": text,
    "wikitext2": wikitext2,
}


@checked("function")
def federate(
    source: str,
    clients: PositiveInt | None = None,
    partition: str | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    **options: Any,
) -> Federation:
    """Divide a source among clients; each client's test samples follow its own class proportions.

    Options of the source are part of its text or are given by name. The partition "natural" is the one that the data
    come with; ``clients`` is then how many of its clients take part, by default all of them, and otherwise 20. Without
    a partition it is "natural" where the data name their clients, else "dirichlet:0.1" for samples of a class each and
    "iid" for others.
    data_dir: the folder of the published data sets; by default COTERIE_DATA, else the folder chosen by
    ``coterie data dir``, else ./data. ``federate(**fed.origin)`` is the same federation, bit for bit.

    >>> federate("digits", clients=5, partition="pathological:2")
    Federation(clients=5, samples=1352, test_samples=445, input_shape=(1, 8, 8), classes=10)
    >>> federate("synthetic:classes=4", clients=3, partition="iid", size=400).sizes.tolist()
    [100, 100, 100]
    """
    spec = parse(spelled(source, SOURCES)).with_options(options)
    if spec.name not in SOURCES and (name := own_name(source)) is not None:
        return own_federation(name, Spec(name, spec.args[1:], spec.options), clients, partition, seed)
    if spec.name not in SOURCES:
        raise _unknown(source, spec)
    pool, chosen = _loaded(spec, seed, data_dir)
    partition = partition or default_partition(pool)
    return divided(pool, spec.name, clients, partition, seed, chosen)


def own_federation(name: str, spec: Spec, clients: int | None, partition: str | None, seed: int) -> Federation:
    """Return the data that a function of one's own loads: a Federation, or pairs of arrays that are divided here."""
    load = import_function(name, "data")
    takes = parameters(load)
    chosen = bind("source", spec, {k: p for k, p in takes.items() if k != "seed"})
    found = load(**chosen, **({"seed": seed} if "seed" in takes else {}))
    if isinstance(found, Federation):
        if clients not in (None, found.clients) or partition not in (None, NATURAL):
            raise UserError(f"{name} returns a federation of {found.clients} clients: leave clients and partition out")
        made = {"source": name, "clients": found.clients, "partition": NATURAL, "seed": seed, **chosen}
        return replace(found, origin=made)
    if not isinstance(found, tuple) or len(found) != 2:
        raise UserError(
            f"{name} returned {type(found).__name__}: return a Federation, or ((x, y), (test_x, test_y)) to be divided"
        )
    whole = from_tensors([found[0]], [found[1]])
    pool = Pool(whole.x, whole.y, whole.test_x, whole.test_y, whole.classes, None, whole.transform)
    return divided(pool, name, clients, partition or default_partition(pool), seed, {"seed": seed, **chosen})


def _unknown(source: str, spec: Spec) -> UserError:
    """Return the error for a source that there is not; a file is named behind the kind that it is of."""
    suffix = Path(source.partition(",")[0]).suffix.removeprefix(".").lower()
    if suffix in SOURCES:
        return UserError(f"a file is named behind its kind: write {suffix}:{source}")
    return unknown("source", spec.name, SOURCES)


def another_site(
    origin: Mapping[str, Any], data: str, columns: SavedColumns | None, seed: int, data_dir: str | Path | None = None
) -> Federation:
    """Return the samples of one more site, as one client, made as those of a run were.

    ``data``: a source with its options, or a file of the kind that ``origin``, what the run's data were made of, names;
    ``columns``: how the columns of its table became samples.
    """
    spec, known = parse(data), None if columns is None else Columns.of(columns)
    if spec.name not in SOURCES:
        takes = parameters(SOURCES[origin["source"]]) if origin.get("source") in SOURCES else {}
        if "path" not in takes:
            raise UserError(f"the run's data are no file, as {data} is: name a source and its options, as npz:FILE")
        own = {k: v for k, v in origin.items() if k in takes and k not in ("seed", "test_file", "test_split")}
        spec = Spec(origin["source"], (), {**own, "path": data})
    return one_client(spec, seed, known, data_dir)


def one_client(spec: Spec, seed: int, known: Columns | None = None, data_dir: str | Path | None = None) -> Federation:
    """Return the samples of a source as those of one client; ``known``: the columns that its table must be like."""
    pool, _ = _loaded(spec, seed, data_dir, known)
    return divided(pool, spec.name, 1, IID, seed, {})


def default_partition(pool: Pool) -> str:
    """Return the partition of samples for which nobody asks for one."""
    if pool.natural is not None:
        return NATURAL
    return IID if pool.labels is None else UNEQUAL


def divided(
    pool: Pool, source: str, clients: int | None, partition: str, seed: int, origin: dict[str, Any]
) -> Federation:
    """Return the samples of a source, divided among clients; ``origin``: what they were loaded with."""
    partition = spelled(partition, (*PARTITIONS, NATURAL))
    parts, test = _parts(pool, source, clients, partition, seed)
    natural = pool.natural if parse(partition).name == NATURAL else None
    federation = Federation(
        pool.x,
        pool.y,
        pool.test_x,
        pool.test_y,
        tuple(map(torch.from_numpy, parts)),
        tuple(map(torch.from_numpy, test)),
        pool.classes,
        origin and {"source": source, "clients": len(parts), "partition": partition, "seed": seed, **origin},
        pool.transform,
        names=() if natural is None else natural.names[: len(parts)],
        columns=pool.columns,
    )
    return pool.per_client(federation) if pool.per_client else federation


def _loaded(
    spec: Spec, seed: int, data_dir: str | Path | None, known: Columns | None = None
) -> tuple[Pool, dict[str, Any]]:
    """Return the samples, and all options that they were loaded with: a new default must not change an old run.

    ``known``: the columns of the table that this one must be like.
    """
    load = SOURCES[spec.name]
    takes = parameters(load)
    own = {k: p for k, p in takes.items() if k not in ("seed", "folder")}
    chosen = {k: p.default for k, p in own.items()} | bind("source", spec, own)
    given = {"seed": seed} if "seed" in takes else {}
    place = {"folder": found_data_dir(data_dir).path} if "folder" in takes else {}
    like = {} if known is None else {"known": known}
    if like and "target" not in takes:
        raise UserError(f"the run has learned from a table, and {spec.name} is none: name a CSV or Parquet file")
    pool = load(**given, **place, **like, **chosen)
    return pool, {k: list(v) if isinstance(v, tuple) else v for k, v in chosen.items()}  # as JSON has it


def _parts(pool: Pool, source: str, clients: int | None, partition: str, seed: int) -> tuple[Parts, Parts]:
    """Return the training and the test rows of every client."""
    # Samples without classes are of one kind, as far as their division goes.
    labels, test_labels = pool.labels or (np.zeros(len(y), np.int64) for y in (pool.y, pool.test_y))
    if parse(partition).name == NATURAL:
        return natural_split(pool.natural, source, clients)
    _check_partition(pool, source, partition)
    parts = split(partition, labels, CLIENTS if clients is None else clients, seed)
    return parts, test_parts(partition, labels, parts, test_labels, seed)


def _check_partition(pool: Pool, source: str, partition: str) -> None:
    """Refuse a partition by classes where there are none, and any where a column was named that says whose rows are."""
    if pool.labels is None and parse(partition).name != IID:
        raise UserError(
            f"partition {partition} divides classes, and the targets of {source} are none: take iid, or natural where "
            "the data name their clients"
        )
    if pool.columns is not None and pool.natural is not None:
        raise UserError(
            f"client names whose rows they are, and partition {partition} would divide them anew: leave one of them out"
        )
