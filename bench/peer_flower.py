"""Flower's side: its FedAvg strategy and its simulation runtime, one Ray actor a core."""

import os
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import work
from torch_model import build, samples, test_loss

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's local work."""
    task = message.content["config"]
    w = work.load(task["folder"])
    module = build(w)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = TensorDataset(*samples(w, task["client"]))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(module.parameters(), lr=w.settings["lr"])
    module.train()
    for _ in range(w.settings["epochs"]):
        for x, y in DataLoader(data, batch_size=w.settings["batch_size"], shuffle=True):
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(data)})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


class Scheduled(FedAvg):
    """FedAvg with cohorts that are known beforehand, and a clock."""

    def __init__(self, folder: str, clock: work.Clock) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.folder, self.clock = folder, clock

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the model to as many nodes as the cohort has members, and tells each whose samples it holds.

        Which node holds which samples is Flower's to draw, so the cohort could not be fixed otherwise.
        """
        cohort = work.load(self.folder).cohorts[server_round - 1]
        nodes, _ = sample_nodes(grid, len(cohort), len(cohort))
        if server_round == 1:
            self.clock.start()
        tasks = [ConfigRecord({"folder": self.folder, "client": int(client)}) for client in cohort]
        contents = [RecordDict({"arrays": arrays, "config": task}) for task in tasks]
        pairs = zip(contents, nodes, strict=True)
        return [Message(content, dst_node_id=node, message_type=MessageType.TRAIN) for content, node in pairs]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        """The mean by number of samples; a member that failed would make the round another one."""
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        mean = super().aggregate_train(server_round, replies)
        self.clock.tick()
        return mean


def main() -> None:
    """Plays the rounds and reports."""
    told = work.arguments()
    w = work.load(told.folder)
    clock, module = work.Clock(), build(w)
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Scheduled(told.folder, clock)
        result = strategy.start(grid, ArrayRecord(module.state_dict()), num_rounds=told.rounds)
        module.load_state_dict(result.arrays.to_torch_state_dict())

    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=len(w.x), backend_config=one_core)
    engine = f"Ray, {os.cpu_count()} actors"
    work.report(
        told.report, clock, test_loss(build(w), w), test_loss(module, w), ["flwr", "ray", "torch", "numpy"], engine
    )


if __name__ == "__main__":
    # Under its own name, so that Ray hands the client's function over by name and not as code with every message.
    import peer_flower

    peer_flower.main()
