"""How many tokens a language model hesitates between, in the two definitions that are in use.

Both are taken over all positions of a sample, hidden or not, as FedLMT does. The numbers are not comparable: that of
the chunks is never the smaller one, and equal to the other only where all chunks are equally hard.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.tensors import Tensors
from ..data.batches import Amount, Batch, Batches, Samples, Stream
from ..engines.base import Engine
from ..models.model import Model, cross_entropy, sample_losses
from .evaluate import Measured, plain_inference


class Perplexity(NamedTuple):
    """One number per client, or one for all."""

    overall: Tensor  # exp of the mean cross-entropy over all positions of all samples: everybody else's
    chunks: Tensor  # the mean over samples of exp(the sample's mean cross-entropy): FedLMT's


def perplexities(engine: Engine, model: Model, models: Tensors, tests: Samples) -> Perplexity:
    """Return [n] that of each client's own model on its own test samples; NaN for a client without any."""

    def total(tensors: Tensors, stream: Stream) -> Tensor:
        sums = torch.zeros(2, dtype=torch.float64, device=stream.index.device)
        for k in range(stream.steps):
            batch = stream.batch(k)
            both = _both(model, tensors, batch)
            sums = sums + (both if batch.mask is None else torch.where(batch.mask, both, 0.0)).sum(1)
        return sums

    clients = np.arange(len(tests.owned))
    batches = Batches(tests, clients, Amount(epochs=1), tests.evaluation_batch, key=None)
    with plain_inference(model):
        sums: Tensor = engine.map(total, models, batches, keys=[0] * len(clients))
    return _perplexity(sums.cpu() / torch.from_numpy(tests.sizes)[:, None])


def global_perplexity(model: Model, tensors: Tensors, tests: Samples) -> Perplexity:
    """Return that of one model on all test samples together."""
    with plain_inference(model):
        parts = [_both(model, tensors, batch) for batch in tests.parts(tests.evaluation_batch)]
    return _perplexity(torch.cat(parts, 1).mean(1).cpu())


def _both(model: Model, tensors: Tensors, batch: Batch) -> Tensor:
    """Return [2, B] the cross-entropy of every sample, and its exponential."""
    losses = sample_losses(cross_entropy, model.outputs(tensors, batch.x, batch.mask), batch.y).to(torch.float64)
    return torch.stack([losses, losses.exp()])


def _perplexity(means: Tensor) -> Perplexity:
    """Return both from the means of [..., 2] cross-entropies and their exponentials."""
    return Perplexity(means[..., 0].exp(), means[..., 1])


def record_perplexity(experiment: Measured, state: Any) -> dict[str, float]:
    """Measure the clients' models after aggregation, mean over the clients, and the one model they agree on."""
    e, tests = experiment, experiment.tests
    if tests.y.dim() != 2 or tests.y.is_floating_point() or not tests.sizes.any():
        raise UserError("perplexity needs test samples with a token at every place: take the source text")
    own = perplexities(e.engine, e.model, e.program.models(state), tests)
    common = global_perplexity(e.model, e.consensus_model(state), tests)
    return {
        "perplexity": float(own.overall.nanmean()),
        "perplexity_chunks": float(own.chunks.nanmean()),
        "global_perplexity": float(common.overall),
        "global_perplexity_chunks": float(common.chunks),
    }
