"""What was trained, in files that others can use: a client's model as safetensors, ONNX or TorchScript.

ONNX and TorchScript files hold the whole model, normalization included: they take samples as the data set gives them.
Images that Coterie holds as bytes go in as bytes (uint8, 0 to 255); data that are held as numbers go in as they are.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.arguments import checked
from ..core.clients import in_file_name
from ..core.errors import UserError, unknown
from ..training.run import Run
from .deployed import Form, LoadedRun
from .formats import FORMATS, Format, FormatName
from .personalize import Personalized, personalize
from .predictor import predictor
from .restore import load

__all__ = ["Form", "FormatName", "Personalized", "load", "personalize", "predictor", "save", "save_all", "save_site"]


@checked("function")
def save(
    run: Run | str | Path,
    client: int | str,
    path: str | Path,
    format: FormatName | None = None,
    form: Form = "recovered",
    force: bool = False,
    trust: Sequence[str] = (),
) -> Path:
    """Write one client's model into a file.

    Args:
        run: A finished run or its folder.
        client: Its name, where the data name the clients, or its number, counted from 0.
        path: The file.
        format: Its kind, by default what its name ends with (.safetensors, .onnx, .pt).
        form: Of a model of low rank, "recovered" (ordinary layers) or "factorized".
        force: Replace a file that exists.
        trust: The code that a folder names and that may run here, such as ["mine:net"] of ``--model mine:net``.

    >>> import coterie as ct, tempfile
    >>> fed = ct.data.federate("synthetic", clients=2, partition="iid", seed=0)
    >>> run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.local(epochs=1), rounds=1, progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = ct.export.save(run, 1, f"{folder}/mine.safetensors")
    ...     bool((ct.export.load(file)(fed.x) == run.clients[1].module()(fed.x)).all())
    True
    """
    path = Path(path)
    chosen = _format(format, path)
    loaded = LoadedRun.of(run, trust)
    _check_absent(path, force)
    chosen.write(loaded.deployed(loaded.number(client, or_else=", or all"), form), path)
    return path


@checked("function")
def save_all(
    run: Run | str | Path,
    folder: str | Path,
    format: FormatName | None = None,
    form: Form = "recovered",
    force: bool = False,
    trust: Sequence[str] = (),
) -> Iterator[Path]:
    """Write every client's model into a folder, as client-0003.onnx or client-0003-mayo.onnx; yield file by file."""
    chosen = _format(format or "safetensors", Path(folder))
    loaded = LoadedRun.of(run, trust)
    files = [Path(folder) / f"{in_file_name(loaded.names, i)}{chosen.suffix}" for i in range(loaded.clients)]
    for file in files:  # before the first one is written
        _check_absent(file, force)
    for i, file in enumerate(files):
        chosen.write(loaded.deployed(i, form), file)
        yield file


@checked("function")
def save_site(
    run: Run | str | Path,
    site: Personalized,
    path: str | Path,
    format: FormatName | None = None,
    form: Form = "recovered",
    force: bool = False,
) -> Path:
    """Write the model of a site that ``personalize`` returned into a file, as ``save`` writes a client's."""
    path = Path(path)
    chosen = _format(format, path)
    loaded = LoadedRun.of(run)
    _check_absent(path, force)
    measured = {} if site.metric is None else {site.metric["column"]: site.trained, "test_samples": site.test_samples}
    chosen.write(loaded.of_site(site.client, form, {"protocol": "personalized", **measured}), path)
    return path


def check_file(path: Path, format: FormatName | None, force: bool) -> None:
    """Refuse a file that could not be written, before anything is computed for it."""
    _format(format, path)
    _check_absent(path, force)


def _format(name: FormatName | None, path: Path) -> Format:
    """Return the format of that name, or that a file's name ends with; refuse it where a package is missing."""
    if name is not None and name not in FORMATS:
        raise unknown("format", name, FORMATS)
    meant = [f for known, f in FORMATS.items() if (known == name if name else f.suffix == path.suffix)]
    if not meant:
        raise UserError(f"{path.name} does not tell the format: add --format, one of {', '.join(FORMATS)}")
    meant[0].check()
    return meant[0]


def _check_absent(path: Path, force: bool) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file with --out, or take --client all")
    if path.exists() and not force:
        raise UserError(f"{path} already exists: choose another --out, or replace it with --force")
    if not path.parent.is_dir() and path.parent.exists():
        raise UserError(f"{path.parent} is a file: name a folder with --out")
