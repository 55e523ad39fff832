"""One process of pfl-research's side: its FederatedAveraging on its simulated backend."""

from itertools import chain
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, distributed, nn
from torch.nn import functional as F

import work
from torch_model import build, samples, test_loss


class Classifier(nn.Module):
    """A module with the two functions that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What is minimized."""
        return F.cross_entropy(self.module(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """What is measured, see ``algorithm_params``."""
        return {"loss": Weighted(float(F.cross_entropy(self.module(x), y, reduction="sum")), len(y))}


class Timer(TrainingProcessCallback[Any]):
    """Tells the clock of every round."""

    def __init__(self, clock: work.Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Before the first round."""
        self.clock.start()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """After every round."""
        self.clock.tick()
        return False, Metrics()


def simulated(w: work.Work) -> SimulatedBackend:
    """The clients, drawn in the order of the cohorts; every process draws all and trains its share."""
    members = chain.from_iterable(w.cohorts.tolist())
    data = FederatedDataset(lambda client: PyTorchTensorDataset(samples(w, client)), lambda: next(members))
    return SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])


def algorithm_params(w: work.Work, rounds: int) -> NNAlgorithmParams:
    """As many rounds as asked, evaluated as rarely as pfl allows: in the first one, on the cohort."""
    members = w.cohorts.shape[1]
    return NNAlgorithmParams(rounds, evaluation_frequency=rounds, train_cohort_size=members, val_cohort_size=None)


def main() -> None:
    """Plays the rounds; one process reports for all."""
    told = work.arguments()
    w = work.load(told.folder)
    clock, classifier = work.Clock(), Classifier(build(w))
    model = PyTorchModel(classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=algorithm_params(w, told.rounds),
        backend=simulated(w),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=w.settings["epochs"],
            local_learning_rate=w.settings["lr"],
            local_batch_size=w.settings["batch_size"],
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=work.EVALUATED),
        callbacks=[Timer(clock)],
    )
    if distributed.get_rank() == 0:
        losses = test_loss(build(w), w), test_loss(classifier.module, w)
        engine = f"{distributed.get_world_size()} processes"
        work.report(told.report, clock, *losses, ["pfl", "torch", "numpy"], engine)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
