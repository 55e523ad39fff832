"""The masked language model at FedLMT's own size, on a GPU: writes masked_lm_full.json beside itself.

python docs/evidence/masked_lm_full.py --text valid.txt --test test.txt [--rounds 200] [--out FOLDER]

10,357,119 parameters (33,279 tokens, of which the text uses fewer), 100 clients, 5 in a round, batches of 1 x 64
tokens, a cosine from 0.01 to 1e-5. Only the text is smaller: the validation file serves for training.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
from masked_lm import LOW, without_learning

import coterie as ct

CLIENTS, TOKENS = 100, 33_279
TRAINING: dict[str, Any] = {
    "participation": 5,
    "lr": 0.01,
    "lr_min": 1e-5,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "batch_size": 1,
    "epochs": 1,
    "clip": None,
}
SHOWN = ("round", "perplexity", "perplexity_chunks", "global_perplexity", "global_perplexity_chunks", "train_loss")


def play(method: str, train: Path, test: Path, rounds: int) -> dict[str, Any]:
    """One run with its curve."""
    options = {"path": str(train), "test": str(test), "rows": CLIENTS, "vocabulary": TOKENS}
    fed = ct.data.federate("text", CLIENTS, "pathological:1", 0, **options)
    module = ct.models.build("transformer-mlm", classes=TOKENS, input_shape=(64,), seed=0)
    algorithm = ct.algorithms.build(method, **TRAINING, **(LOW if method == "fedlmt" else {}))
    settings = {"rounds": rounds, "engine": "vectorized:5", "evaluate_every": rounds, "record": ["perplexity"]}
    run = ct.fit(module, fed, algorithm, **settings)
    own = run.clients[0].module()
    measured = [row for row in run.history if "perplexity" in row]
    return {
        "method": method,
        "parameters": sum(p.numel() for p in own.parameters()),
        "parameters_sent": run.summary["parameters_sent"],
        "tokens_in_the_text": fed.classes,
        "curve": [{k: row[k] for k in SHOWN} | {"accuracy": row["personal_accuracy_after_mix"]} for row in measured],
        "without_learning": without_learning(fed),
        "seconds": run.summary["seconds"],
        "engine": run.summary["engine"],
    }


def main() -> None:
    """All runs, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedlmt"])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    wanted = parser.parse_args()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "coterie": ct.__version__}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    file = wanted.out / "masked_lm_full.json"
    known = json.loads(file.read_text())["runs"] if file.exists() else []
    for method in wanted.methods:
        known = [run for run in known if run["method"] != method] + [
            play(method, wanted.text, wanted.test, wanted.rounds)
        ]
        results = {"versions": versions, "device": device, "training": TRAINING, "fedlmt": LOW, "runs": known}
        file.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(known[-1]), flush=True)


if __name__ == "__main__":
    main()
