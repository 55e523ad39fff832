"""What the command line assumes where nothing is said: small set-ups for the data that ships with the package.

The builders' own defaults are those of the papers (100 clients, ResNet-18, CIFAR), far too large for 1,797 digits.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A set-up that suits one data source."""

    model: str
    partition: str
    clients: int
    rounds: int
    settings: Mapping[str, Any]  # a method takes those it has
    special: Mapping[str, Mapping[str, Any]]  # by method, instead of those
    staged: str  # the model, where a method needs one that is built in stages


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
    "rho": 0.05,
    "outer_lr": 1.0,
    "personal_outer_lr": 1.0,
    "rank_ratio": 0.25,
    "keep_layers": 1,
}

_SPECIAL: dict[str, dict[str, Any]] = {
    "dpsgd": {"epochs": 1},  # what makes it another method than dfedavg
    "dfedpgp": {"topology": "random-push:5"},  # push-sum is made for directed graphs
    "osgp": {"topology": "random-push:5"},
    "fedlmt": {"clip": 10.0},  # factors multiply: without it push-sum's uneven steps diverge
    "pfedlmt": {"clip": 10.0},
    "dfedavgm-p": {"personal_epochs": None},  # one phase for both parts
    "depthfl": {"capacities": "3-2-1"},  # a small network has three stages
    "flanc": {"capacities": "1-0.75-0.5"},
    "fedbabu": {"finetune_lr": None},  # as fast as it trains
}
_TEXT = {
    **_SMALL,
    **dict.fromkeys(("lr", "personal_lr"), 0.1),
    **dict.fromkeys(("epochs", "personal_epochs"), 1),
    "batch_size": 8,
    "keep_layers": "*.attention.*",
}
_TEXT_SPECIAL = {
    **_SPECIAL,
    "fedlmt": {"init": "spectral"},  # as the released code starts its transformer
    "pfedlmt": {"keep_layers": "tokens,positions,layers.*"},  # the decoder alone is personal
}

# The builders' own defaults are those of the papers on these sets; the graph is named to be fitted to few clients.
_PAPERS = {"topology": "random-pull:10"}
# Their paper runs a convex problem on MNIST; for networks: equal products lr outer_lr of both parts, as it assumes.
_PARTLY = {"lr": 0.1, "personal_lr": 0.1, "outer_lr": 1.0, "personal_outer_lr": 1.0, "batch_size": 128}
_PAPERS_SPECIAL: dict[str, dict[str, Any]] = {
    **{method: {"topology": "random-push:10"} for method in ("dfedpgp", "osgp")},
    **dict.fromkeys(("fedavg-p", "scaffold-p"), _PARTLY),
    **{method: {"topology": "random:10"} for method in ("dfedsam", "dfedsam-mgs", "dfedavgm-p")},
}


def _papers(model: str, staged: str) -> Preset:
    return Preset(model, "dirichlet:0.3", 100, 500, _PAPERS, _PAPERS_SPECIAL, staged)


STAGED = ("flanc", "depthfl", "progfed")

PRESETS = {
    "digits": Preset("small-cnn", "dirichlet:0.1", 20, 10, _SMALL, _SPECIAL, "resnet8-bn"),
    "synthetic": Preset("mlp", "dirichlet:0.3", 20, 10, _SMALL, _SPECIAL, "mlp"),
    "text": Preset(
        "transformer-mlm:dim=64,hidden=256,layers=2",
        "pathological:1",
        20,
        10,
        _TEXT,
        _TEXT_SPECIAL,
        "transformer-mlm",
    ),
    "mnist": _papers("cnn", "resnet8-bn"),
    "mnist-halves": Preset("split-logreg", "iid", 10, 200, {**_SMALL, "personal": "v"}, _SPECIAL, "mlp"),
    "fashion-mnist": _papers("cnn", "resnet8-bn"),
    "cifar10": _papers("resnet18-gn", "resnet18-bn"),
    "cifar100": _papers("resnet18-gn", "resnet18-bn"),
    "svhn": _papers("resnet18-gn", "resnet18-bn"),
    "tiny-imagenet": _papers("resnet18-gn", "resnet18-bn"),
    "image-folder": Preset("small-cnn", "dirichlet:0.3", 20, 10, _SMALL, _SPECIAL, "resnet8-bn"),
    "npz": Preset("mlp", "dirichlet:0.3", 20, 10, _SMALL, _SPECIAL, "mlp"),
}
PRESETS["wikitext2"] = PRESETS["text"]
