"""The models of the workloads in plain PyTorch, for peers that train modules."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from work import EVALUATED, Work


def build(w: Work) -> nn.Module:
    """The module with its initial weights, parameters named as in Coterie's."""
    module = {"logreg": logreg, "cnn": cnn}[w.settings["model"]]()
    module.load_state_dict({name: torch.from_numpy(value) for name, value in w.weights.items()})
    return module


def logreg() -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def cnn() -> nn.Module:
    """The CNN of McMahan et al. 2017."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def samples(w: Work, client: int) -> tuple[Tensor, Tensor]:
    """What a client trains on."""
    return torch.from_numpy(w.x[client]), torch.from_numpy(w.y[client])


@torch.no_grad()
def test_loss(module: nn.Module, w: Work) -> float:
    """The mean cross-entropy over all test samples."""
    module.eval()
    parts = zip(*(torch.split(torch.from_numpy(v), EVALUATED) for v in (w.test_x, w.test_y)), strict=True)
    return sum(float(F.cross_entropy(module(x), y, reduction="sum")) for x, y in parts) / len(w.test_y)
