"""How much memory 100 clients with a ResNet-18 each take on a CPU, saved and evaluated in every round.

    python docs/evidence/large_models.py [--clients 100] [--rounds 2]

DFedAlt with the topology of its paper, on random images: everybody trains, mixes with ten others, is evaluated and
saved. Steps are few, because memory does not depend on their number.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import torch

import coterie as ct
from coterie.core.tensors import size_in_bytes
from measure import resident_peak


def federation(clients: int) -> ct.data.Federation:
    """Noise, a batch of training images a client."""
    torch.manual_seed(0)

    def draw(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.randn(count, 3, 32, 32), torch.randint(10, (count,))) for _ in range(clients)]

    return ct.data.from_tensors(train=draw(8), test=draw(4), classes=10)


def main() -> None:
    """Runs, and prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    typed = parser.parse_args()
    fed = federation(typed.clients)
    algorithm = ct.algorithms.dfedalt(epochs=1, personal_epochs=1, batch_size=8)
    with tempfile.TemporaryDirectory() as folder:
        run = ct.fit(
            ct.models.build("resnet18-gn", fed, seed=0), fed, algorithm, rounds=typed.rounds, out=Path(folder) / "run"
        )
    one = {**run.clients[0].shared, **run.clients[0].personal}
    state = typed.clients * size_in_bytes(one.values())
    print(f"engine {run.config['engine']}; the models of all clients: {state / 2**30:.2f} GiB")
    print(f"resident at most: {resident_peak() / 2**30:.2f} GiB")
    print("seconds a round:", [round(row["seconds"], 1) for row in run.history])


if __name__ == "__main__":
    main()
