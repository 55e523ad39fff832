"""FedJAX's side: its federated averaging, clients as jitted steps on the CPU."""

from collections.abc import Iterator
from typing import Any

import fedjax
import haiku as hk
import jax
import numpy as np
from fedjax.algorithms import fed_avg

import work

Params = dict[str, dict[str, work.Array]]


def logreg(batch: dict[str, Any]) -> Any:
    """Multinomial logistic regression."""
    return hk.Sequential([hk.Flatten(), hk.Linear(10)])(batch["x"])


def cnn(batch: dict[str, Any]) -> Any:
    """The CNN of McMahan et al. 2017, channels last, as XLA likes them."""
    layers = [
        hk.Conv2D(32, 5, padding="VALID"),
        jax.nn.relu,
        hk.MaxPool((2, 2, 1), (2, 2, 1), "VALID"),
        hk.Conv2D(64, 5, padding="VALID"),
        jax.nn.relu,
        hk.MaxPool((2, 2, 1), (2, 2, 1), "VALID"),
        hk.Flatten(),
        hk.Linear(512),
        jax.nn.relu,
        hk.Linear(10),
    ]
    return hk.Sequential(layers)(batch["x"])


def channels_last(x: work.Array) -> work.Array:
    """[..., 1, 28, 28] as [..., 28, 28, 1]."""
    return np.moveaxis(x, -3, -1)


def build(w: work.Work) -> fedjax.Model:
    """The model, its loss and its measure."""
    return fedjax.create_model_from_haiku(
        hk.transform({"logreg": logreg, "cnn": cnn}[w.settings["model"]]),
        {"x": channels_last(w.test_x[:1]), "y": w.test_y[:1]},
        train_loss=lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
        eval_metrics={"loss": fedjax.metrics.CrossEntropyLoss()},
    )


def first_params(w: work.Work, model: fedjax.Model) -> Params:
    """PyTorch's weights in Haiku's layout, layer by layer: both name layers in the order of the network."""
    values = iter(w.weights.values())
    names = model.init(jax.random.PRNGKey(0))
    params: Params = {}
    channels = None
    for name in names:
        weight, bias = next(values), next(values)
        params[name] = {"w": converted(weight, channels), "b": bias}
        channels = len(weight) if weight.ndim == 4 else None
    return params


def converted(weight: work.Array, channels: int | None) -> work.Array:
    """One weight; ``channels``: of the images that were flattened before it, whose order differs."""
    if weight.ndim == 4:
        return weight.transpose(2, 3, 1, 0)
    if channels is not None:
        weight = np.moveaxis(weight.reshape(len(weight), channels, -1), 1, 2).reshape(weight.shape)
    return weight.T


def play(w: work.Work, model: fedjax.Model, params: Params, rounds: int, clock: work.Clock) -> Params:
    """All rounds."""
    clients = {i: {"x": channels_last(x), "y": y} for i, (x, y) in enumerate(zip(w.x, w.y, strict=True))}
    data = fedjax.InMemoryFederatedData(clients)
    batches = fedjax.ShuffleRepeatBatchHParams(w.settings["batch_size"], num_epochs=w.settings["epochs"])
    sgd = fedjax.optimizers.sgd(w.settings["lr"]), fedjax.optimizers.sgd(1.0)
    algorithm = fed_avg.federated_averaging(fedjax.model_grad(model), *sgd, batches)
    state = algorithm.init(params)
    clock.start()
    for t, cohort in enumerate(w.cohorts[:rounds]):
        keys = jax.random.split(jax.random.PRNGKey(t), len(cohort))
        members = data.get_clients(cohort.tolist())
        state, _ = algorithm.apply(state, [(i, samples, key) for (i, samples), key in zip(members, keys, strict=True)])
        jax.block_until_ready(state.params)
        clock.tick()
    return state.params


def test_loss(w: work.Work, model: fedjax.Model, params: Params) -> float:
    """The mean cross-entropy over all test samples."""

    def batches() -> Iterator[dict[str, work.Array]]:
        for i in range(0, len(w.test_y), work.EVALUATED):
            yield {"x": channels_last(w.test_x[i : i + work.EVALUATED]), "y": w.test_y[i : i + work.EVALUATED]}

    return float(fedjax.evaluate_model(model, params, batches())["loss"])


def main() -> None:
    """Plays the rounds and reports."""
    told = work.arguments()
    w, clock = work.load(told.folder), work.Clock()
    model = build(w)
    params = first_params(w, model)
    last = play(w, model, params, told.rounds, clock)
    losses = test_loss(w, model, params), test_loss(w, model, last)
    packages = ["fedjax", "jax", "jaxlib", "dm-haiku", "numpy"]
    work.report(told.report, clock, *losses, packages, "jit")


if __name__ == "__main__":
    main()
