"""What the command line assumes where nothing is said: small set-ups for the data that ships with the package.

The builders' own defaults are those of the papers (100 clients, ResNet-18, CIFAR), far too large for 1,797 digits.
Helps show some of it, so nothing here waits for torch.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..algorithms.method import Kind

DATA = "digits"  # what is trained on where nothing is said
VALIDATION = 0.2  # of the training samples, where settings are chosen and no other part is given
SMALLEST_IMAGE = 4  # pixels of a side, below which small-cnn pools everything away


class Preset(NamedTuple):
    """A set-up that suits one data source."""

    model: str
    partition: str | None  # None: the one that the data come with, or that suits their targets
    clients: int
    rounds: int
    settings: Mapping[str, Any]  # a method takes those it has
    kinds: "tuple[Kind, ...]"  # whose settings of a method's own take the place of those, the last one first
    staged: str  # the model, where a method needs one that is built in stages
    images: str | None = None  # the data source whose models suit samples that turn out to be images


_SMALL = {
    "lr": 0.02,
    "personal_lr": 0.02,
    "lr_decay": 1.0,
    "weight_decay": 0.0,
    "batch_size": 16,
    "epochs": 5,
    "personal_epochs": 5,
    "participation": 1.0,
    "topology": "random:5",
    "outer_lr": 1.0,
    "personal_outer_lr": 1.0,
    "rank_ratio": 0.25,
    "keep_layers": 1,
}

_TEXT = {
    **_SMALL,
    **dict.fromkeys(("lr", "personal_lr"), 0.1),
    **dict.fromkeys(("epochs", "personal_epochs"), 1),
    "batch_size": 8,
    "keep_layers": "*.attention.*",
}

# The builders' own defaults are those of the papers on these sets; the graph is named to be fitted to few clients.
_PAPERS = {"topology": "random-pull:10"}


def _papers(model: str, staged: str) -> Preset:
    return Preset(model, "dirichlet:0.3", 100, 500, _PAPERS, ("papers",), staged)


PRESETS = {
    "digits": Preset("small-cnn", "dirichlet:0.1", 20, 10, _SMALL, ("small",), "resnet8-bn"),
    "synthetic": Preset("mlp", "dirichlet:0.3", 20, 10, _SMALL, ("small",), "mlp"),
    "text": Preset(
        "transformer-mlm:dim=64,hidden=256,layers=2",
        "pathological:1",
        20,
        10,
        _TEXT,
        ("small", "text"),
        "transformer-mlm",
    ),
    "mnist": _papers("cnn", "resnet8-bn"),
    "mnist-halves": Preset("split-logreg", "iid", 10, 200, {**_SMALL, "personal": "v"}, ("small",), "mlp"),
    "fashion-mnist": _papers("cnn", "resnet8-bn"),
    "cifar10": _papers("resnet18-gn", "resnet18-bn"),
    "cifar100": _papers("resnet18-gn", "resnet18-bn"),
    "svhn": _papers("resnet18-gn", "resnet18-bn"),
    "tiny-imagenet": _papers("resnet18-gn", "resnet18-bn"),
    "image-folder": Preset("small-cnn", None, 20, 10, _SMALL, ("small",), "resnet8-bn"),
    "npz": Preset("mlp", None, 20, 10, _SMALL, ("small",), "mlp", "image-folder"),
}
PRESETS["csv"] = PRESETS["parquet"] = PRESETS["huggingface"] = PRESETS["npz"]
PRESETS["wikitext2"] = PRESETS["text"]


def models_for(preset: Preset, shape: Any) -> Preset:
    """Return the preset with models that suit samples of this shape: convolutional ones for images."""
    image = isinstance(shape, tuple) and len(shape) == 3 and all(isinstance(side, int) for side in shape)
    if preset.images is None or not image or min(shape[1:]) < SMALLEST_IMAGE:
        return preset
    suited = PRESETS[preset.images]
    return preset._replace(model=suited.model, staged=suited.staged)
