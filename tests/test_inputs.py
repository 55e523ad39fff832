"""What goes into a module, and what comes out: several inputs by name or in order, scores as an output's logits."""

from pathlib import Path

import torch
from torch import nn

import coterie as ct
from modules import Answering, Output


def linear(answer: type) -> nn.Module:
    """A linear layer with fixed values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Answering(answer)


def pairs(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Six numbers per sample, near their class."""
    g = torch.Generator().manual_seed(0)
    labels = [torch.randint(0, 3, (size,), generator=g) for size in sizes]
    return [(torch.randn(len(y), 6, generator=g) + y[:, None], y) for y in labels]


def measured(run: ct.Run) -> list[dict[str, object]]:
    """All that a run has measured, without times."""
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in run.history]


def test_scores_are_the_logits_of_an_output(tmp_path: Path) -> None:
    """In training, measurement, prediction and personalization."""
    drawn = pairs(8, 5, 4)
    fed = ct.data.from_tensors(train=drawn, test=drawn, classes=3)
    alg = ct.algorithms.fedper(personal="layer.bias", epochs=2, batch_size=4, finetune_epochs=1, participation=1.0)
    forms = torch.clone, Output
    bare, wrapped = (
        ct.fit(linear(form), fed, alg, rounds=2, record=["sharpness"], progress=False, out=tmp_path / form.__name__)
        for form in forms
    )
    assert measured(bare) == measured(wrapped)
    for one, other in zip(bare.clients, wrapped.clients, strict=True):
        assert torch.equal(one.predict(fed.x), other.predict(fed.x))
    scores = bare.clients[0].module()(fed.x)
    assert torch.equal(wrapped.clients[0].module()(fed.x).logits, scores)
    one, other = (ct.export.personalize(tmp_path / f.__name__, fed, model=linear(f)) for f in forms)
    assert [site.trained for site in one] == [site.trained for site in other]
