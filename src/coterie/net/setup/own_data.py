"""A member's own samples, prepared as all members prepare theirs: nothing is fitted to the data of one of them."""

from dataclasses import replace

import torch

from ...core.custom import import_function
from ...core.errors import UserError
from ...core.spec import Spec, bind, parameters, parse, spelled
from ...data import SOURCES, Federation, Transform, federate, from_tensors
from ...data.custom import image_classes
from ...data.encoding import Columns
from ...data.sources import one_client
from .config import PeerConfig
from .shared_columns import read_columns

FOLDER = "image-folder"
FITTED = ("npz", FOLDER, "csv", "parquet", "huggingface")  # sources that normalize images by the images they have
PATHS = ("path", "test_file", "test")  # options of sources that name files
MIDDLE = 0.5  # mean and deviation of images for which the members have agreed on no others


def own_data(config: PeerConfig) -> Federation:
    """Return a federation of one client: this member's own samples, all of them."""
    if config.own_loader is not None:
        found = _of_function(config, config.own_loader)
    else:
        spec = source(config)
        found = one_client(spec, config.federation.seed, columns(config, spec))
        found = _numbered(config, spec, _normalized(config, found) if spec.name in FITTED else found)
    # A division among several clients would leave out test samples of classes that no training sample has.
    train, test = (torch.arange(len(samples)) for samples in (found.y, found.test_y))
    classes = _classes(config, found)
    return replace(found, train=(train,), test=(test,), validation=(), names=(config.name,), classes=classes, origin={})


def source(config: PeerConfig) -> Spec:
    """Return what the data are, with files where peer.toml means them; a folder alone is one of images."""
    text = config.peer.data
    if ":" not in text and "," not in text and config.located(text).is_dir():
        return Spec(FOLDER, (str(config.located(text)),), {})
    spec = parse(spelled(text, SOURCES))
    if spec.name not in SOURCES:
        federate(text)  # says what is wrong with the name
    if spec.name == "text":
        raise UserError(
            f"{config.path}, [peer]: data={text} would make a vocabulary of one member's words: save tokens that are "
            "numbered alike at all members, as integers in an npz file"
        )
    takes = parameters(SOURCES[spec.name])
    args = [str(config.located(one)) if "path" in takes and i == 0 else one for i, one in enumerate(spec.args)]
    options = {k: str(config.located(v)) if k in PATHS and k in takes else v for k, v in spec.options.items()}
    return Spec(spec.name, tuple(args), options)


def columns(config: PeerConfig, spec: Spec) -> Columns | None:
    """Return how all members make samples of their tables; None where the data are no table."""
    shared = config.federation.columns
    table = "target" in parameters(SOURCES[spec.name])
    if table and not shared:
        raise UserError(
            f"{config.path}: the columns of {spec.name} would be standardized and encoded by one member's rows alone: "
            'make columns.json of all members\' tables (coterie peer columns), and write columns = "columns.json" '
            "below [federation]"
        )
    if shared and not table:
        raise UserError(f"{config.path}: columns={shared} is for tables, and the data are {spec.name}: leave it out")
    return Columns.of(read_columns(config.located(shared))) if table else None


def _of_function(config: PeerConfig, name: str) -> Federation:
    """Return what a function of the member's own loads: a Federation of one client, or ((x, y), (test_x, test_y))."""
    load = import_function(config.code(name), "data")
    spec, takes, seed = parse(config.peer.data), parameters(load), config.federation.seed
    chosen = bind("data", Spec(name, spec.args[1:], spec.options), {k: p for k, p in takes.items() if k != "seed"})
    found = load(**chosen, **({"seed": seed} if "seed" in takes else {}))
    if isinstance(found, Federation):
        if found.clients != 1:
            raise UserError(f"{name} returns {found.clients} clients, and a peer is one: return its own samples alone")
        return found.of_clients(torch.zeros(1, dtype=torch.int64).numpy())
    if not isinstance(found, tuple) or len(found) != 2:
        wanted = "return a Federation of one client, or ((x, y), (test_x, test_y))"
        raise UserError(f"{name} returned {type(found).__name__}: {wanted}")
    return from_tensors([found[0]], [found[1]])


def _normalized(config: PeerConfig, found: Federation) -> Federation:
    """Return images that are normalized as all members' are."""
    made, shared = found.transform, config.federation
    if not isinstance(made, Transform):
        if shared.mean:
            raise UserError(f"{config.path}: mean and std are for images of bytes, and these are none: leave them out")
        return found
    channels = len(made.mean)
    mean, std = (values or (MIDDLE,) * channels for values in (shared.mean, shared.std))
    if len(mean) != channels:
        raise UserError(f"{config.path}: mean has {len(mean)} numbers, and the images {channels} channels: make it fit")
    return replace(found, transform=replace(made, mean=mean, std=std))


def _numbered(config: PeerConfig, spec: Spec, found: Federation) -> Federation:
    """Return images whose classes have the numbers that all members have agreed on."""
    wanted = config.federation.classes
    if spec.name != FOLDER:
        if isinstance(wanted, tuple):
            raise UserError(
                f"{config.path}: classes names them, and {spec.name} has numbers: write how many there are in all"
            )
        return found
    path = spec.options.get("path") or spec.args[0]
    have = image_classes(str(path))
    if not isinstance(wanted, tuple):
        raise UserError(
            f"{config.path}: one member may lack a class, and folders are numbered by their names: write "
            f"classes = [{', '.join(repr(name) for name in have)}] below [federation], with those of all members"
        )
    if strange := next((name for name in have if name not in wanted), None):
        raise UserError(
            f"{path} has the class {strange}, which is none of {', '.join(wanted)}: add it, or leave it out"
        )
    number = torch.tensor([wanted.index(name) for name in have])
    return replace(found, y=number[found.y], test_y=number[found.test_y], classes=len(wanted))


def _classes(config: PeerConfig, found: Federation) -> int | None:
    """Return how many classes there are at all members."""
    wanted = config.federation.classes
    told = len(wanted) if isinstance(wanted, tuple) else wanted
    if found.columns is not None:
        return found.classes
    if found.classes is None:
        if told is not None:
            raise UserError(f"{config.path}: classes={told}, but the targets are numbers: leave classes out")
        return None
    if told is None:
        raise UserError(
            f"{config.path}, [federation] lacks classes: write how many there are in all, as in classes = "
            f"{found.classes}, because one member may lack some"
        )
    if found.classes > told:
        raise UserError(
            f"{config.path}: the data have labels up to {found.classes - 1}, and classes={told}: say how many there are"
        )
    return told
