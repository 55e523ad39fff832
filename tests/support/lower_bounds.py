"""Whether Coterie works with the lowest versions that pyproject.toml allows: `make lowest` runs it.

Each dependency is installed in the first version that its bound admits, into an environment of its own; those of the
extras after those of the core, so that a mistake names its extra. Then every extra does what it is there for, once.

    python tests/support/lower_bounds.py .venvs/lowest [extra ...]
"""

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = "run dfedavg --clients 4 --rounds 2 --topology ring --quiet"
# What is typed to see that an extra works; RUN has made the folder a.
COMMANDS = {
    "": ["--version", "--help", "list", "topology ring --clients 4", f"{RUN} --out a", "run a --resume --quiet"],
    "report": ["report a --out a.html"],
    "images": ["data list"],
    "tables": ["run fedavg --data csv:t.csv,target=y,client=site --rounds 1 --quiet --out tables"],
    "huggingface": ["data list"],
    "ray": [f"{RUN} --engine ray --workers 2 --out ray"],
    "export": ["export a --client 0 --out a.onnx", "export a --client 0 --out a.pt"],
    "tensorboard": [f"{RUN} --tensorboard --out tensorboard"],
    "mlflow": [f"{RUN} --mlflow --out mlflow"],
    "wandb": [f"{RUN} --wandb --out wandb"],
    "tune": ["tune dfedavg --clients 4 --rounds 2 --grid lr=0.01,0.1 --sampler tpe --budget 2 --quiet --out tune"],
    "peers": ["certs init", "certs issue alpha", "certs show"],
}


def bounds(dependencies: list[str]) -> dict[str, str]:
    """Return the lowest version of each dependency that is asked for.

    >>> bounds(["torch>=2.11", "sqlalchemy>=2,<3", "mkdocstrings[python]>=1"])
    {'torch': '2.11', 'sqlalchemy': '2', 'mkdocstrings': '1'}
    """
    found = (re.match(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", dependency) for dependency in dependencies)
    return {match[1]: match[2] for match in found if match is not None}


def declared() -> dict[str, dict[str, str]]:
    """Return the lower bounds of the core, under the empty name, and of every extra that people run with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in ("all", "dev", "docs")}
    return {"": bounds(project["dependencies"])} | {k: bounds(v) for k, v in extras.items()}


def check(folder: Path, extras: list[str]) -> None:
    """Install and try the core and these extras; end with the first command that fails."""
    venv.create(folder, with_pip=True)
    programs = (folder / ("Scripts" if sys.platform == "win32" else "bin")).absolute()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"WANDB_MODE": "offline"}
    (folder / "t.csv").write_text("site,a,y\n" + "".join(f"{i % 3},{i},{i % 4 // 2}\n" for i in range(60)))
    pinned: dict[str, str] = {}
    for extra in ["", *extras]:
        pinned |= declared()[extra]
        versions = [f"{name}=={version}" for name, version in pinned.items()]
        install = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *versions], check=True)
        subprocess.run([*install, "--no-deps", ROOT], check=True)
        for command in COMMANDS[extra]:
            print("coterie", command, flush=True)
            typed = [programs / "coterie", *command.split()]
            subprocess.run(typed, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    print("works with", ", ".join(f"{name} {version}" for name, version in pinned.items()))


if __name__ == "__main__":
    check(Path(sys.argv[1]), sys.argv[2:] or [extra for extra in COMMANDS if extra])
