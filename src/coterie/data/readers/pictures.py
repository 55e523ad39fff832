"""Image files as one array of bytes, decoded many at a time."""

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from ...core.errors import UserError
from ...core.extras import import_extra
from ...core.memory import check_fits
from .packed import NotOrdinaryError, check_ordinary

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_GRAY = ("1", "L")
_WIDE = ("I", "F")  # modes of one channel with more than 8 bits: I, I;16, I;16B and F
COPIES = 2  # once as they are read, once divided into training and test images


def pillow() -> Any:
    """Return Pillow's module Image; Pillow is an extra."""
    return import_extra("PIL.Image", "images", "reading image files")


class ImageBytes(NamedTuple):
    """An image file that lies in another one."""

    where: str  # for sentences
    content: bytes

    def __str__(self) -> str:
        return self.where


def decoded(paths: Sequence[Path | ImageBytes], color: bool = False) -> NDArray[np.uint8]:
    """Return [N, C, H, W] images of one size; in color if ``color`` is set or one of them is."""
    library = pillow()

    def opened(path: Path | ImageBytes) -> Any:
        if isinstance(path, ImageBytes):
            return library.open(BytesIO(path.content))
        check_ordinary(path)
        return library.open(path)

    workers = min(32, (os.cpu_count() or 1) + 4)  # Pillow decodes without Python's lock
    with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
        warnings.simplefilter("error", library.DecompressionBombWarning)  # an image of more than 89 million pixels
        headers = list(pool.map(lambda path: _read(opened, path, lambda image: (image.size, image.mode)), paths))
        _check_sizes(paths, [size for size, _ in headers])
        mode = "RGB" if color or any(kind not in _GRAY for _, kind in headers) else "L"
        (width, height), channels = headers[0][0], len(mode)
        numbers = len(paths) * channels * height * width
        what = f"{len(paths):,} images of {width:,} x {height:,}"
        check_fits(COPIES * numbers, what, "scale them down, or take fewer")
        images = np.empty((len(paths), channels, height, width), np.uint8)

        def fill(row: int) -> None:
            pixels, exact = _read(opened, paths[row], lambda image: _as_bytes(image, mode))
            _check_exact(paths[row], exact)
            images[row] = pixels.reshape(height, width, channels).transpose(2, 0, 1)

        shown = Console(stderr=True)
        work = pool.map(fill, range(len(paths)))
        for _ in track(work, "decoding images", len(paths), console=shown, disable=not shown.is_terminal):
            pass
    return images


def _as_bytes(image: Any, mode: str) -> tuple[NDArray[np.uint8], bool]:
    """Return an image's bytes, and whether they are its values: Pillow cuts off what is larger than a byte."""
    pixels = np.asarray(image.convert(mode))
    wide = image.mode.startswith(_WIDE)  # then the images are read in color, as others are that are not gray
    return pixels, not wide or bool((pixels == np.asarray(image)[..., None]).all())


def _check_exact(path: Path | ImageBytes, exact: bool) -> None:
    if not exact:
        raise UserError(
            f"the image {path} has values that are no bytes, 0 to 255, as 16-bit and floating images have: scale all "
            "of them alike and save 8-bit images, or save their numbers in an npz file"
        )


def _read(opened: Any, path: Path | ImageBytes, look: Callable[[Any], Any]) -> Any:
    """Return what ``look`` sees in an image file."""
    try:
        with opened(path) as image:
            return look(image)
    except Warning as error:
        raise UserError(f"the image {path} is too large ({error}): scale it down") from error
    except Exception as error:  # every format fails in its own way
        said = error.strerror if isinstance(error, NotOrdinaryError) else type(error).__name__
        raise UserError(f"the image {path} cannot be read ({said}): replace or remove it") from error


def _check_sizes(paths: Sequence[Path | ImageBytes], sizes: Sequence[tuple[int, int]]) -> None:
    other = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        one, two = (f"{paths[i]} is {sizes[i][0]} x {sizes[i][1]}" for i in (0, other))
        raise UserError(f"the images differ in size ({one}, {two}): bring them to one size first")
