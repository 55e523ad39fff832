"""Three kinds of files. Each whole model is loaded again from its file and must answer as the client's own."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.files import replace
from ..store.safetensors import save_tensors
from .deployed import Deployed, Scored

FormatName = Literal["safetensors", "onnx", "torchscript"]
METADATA = "coterie.json"  # where a TorchScript file has them
NEEDED = ("onnx", "onnxscript", "onnxruntime")
EXAMPLES, TRIED = 2, 3  # samples a model is recorded with, and tried with: another number, for batches may vary


@dataclass(frozen=True)
class Format:
    """The suffix of a kind of files, the function that writes them and the packages that it needs."""

    suffix: str
    write: Callable[[Deployed, Path], object]
    packages: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse where a package is missing."""
        missing = [name for name in self.packages if find_spec(name) is None]
        if missing:
            raise UserError(f"{', '.join(missing)} must be installed for ONNX: pip install 'coterie[export]'")


def write_safetensors(deployed: Deployed, path: Path) -> None:
    """Write the state dict by its names, for inputs that are normalized already; metadata say how."""
    save_tensors(path, deployed.module.state_dict(), deployed.about)


class OfBytes(nn.Module):
    """A module that refuses other samples than bytes: numbers from 0 to 1 would be answered, wrongly."""

    def __init__(self, traced: nn.Module) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of uint8 [B, C, H, W]."""
        if x.dtype != torch.uint8:
            raise ValueError("this model normalizes its images itself: give it uint8, from 0 to 255")
        return self.traced(x)  # type: ignore[no-any-return]


def write_torchscript(deployed: Deployed, path: Path) -> None:
    """Write a traced model; torch.jit.load needs nothing of Coterie."""
    about = {METADATA: json.dumps(deployed.described)}
    with silence():  # that TorchScript has successors, and that sizes were recorded: what comes out is tried
        made: Any = torch.jit.trace(deployed.with_preprocessing, deployed.samples(EXAMPLES), check_trace=False)  # type: ignore[no-untyped-call]
        if deployed.transform is not None:
            made = torch.jit.script(OfBytes(made))

        def write(file: Path) -> None:
            torch.jit.save(made, str(file), _extra_files=about)
            _try(deployed, torch.jit.load(str(file)), "torchscript")  # type: ignore[no-untyped-call]

        replace(path, write)


def write_onnx(deployed: Deployed, path: Path) -> None:
    """Write a graph with the input ``input``, the output ``scores`` and any number of samples."""
    program = _graph(deployed)
    program.model.metadata_props.update(deployed.described)

    def write(file: Path) -> None:
        program.save(file, external_data=False)
        _try(deployed, _session(file), "onnx")

    replace(path, write)


def _graph(deployed: Deployed) -> Any:
    """Export by torch.export: the older exporter, which traces, is not developed any more."""
    names: dict[str, Any] = {"input_names": deployed.input_names, "output_names": ["scores"]}
    example = deployed.samples(EXAMPLES)
    batches = tuple({0: "batch"} for _ in example)
    names["dynamic_shapes"] = {"inputs": batches} if isinstance(deployed.with_preprocessing, Scored) else batches
    with silence():  # of the exporter's own parts, and of torchvision, which nobody needs here
        try:
            return torch.onnx.export(deployed.with_preprocessing, example, dynamo=True, verbose=False, **names)
        except torch.onnx.OnnxExporterError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"the model has no ONNX form ({reason}): use --format torchscript") from error


def _session(file: Path) -> Callable[..., Tensor]:
    """Return the file as ONNX Runtime runs it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    names = [known.name for known in session.get_inputs()]
    return lambda *x: torch.from_numpy(session.run(None, {k: v.numpy() for k, v in zip(names, x, strict=True)})[0])


@contextmanager
def silence() -> Iterator[None]:
    """Silence warnings and logs: what is left to say is said in a sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _try(deployed: Deployed, answer: Callable[..., Tensor], format: str) -> None:
    """Refuse a file whose answers are others than the client's own."""
    x = deployed.samples(TRIED)
    with torch.no_grad():
        ours, theirs = deployed.with_preprocessing(*x), answer(*x)
    if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"the model answers otherwise as {format} (its forward pass is not the same for all samples): "
            "use --format safetensors"
        )


FORMATS: dict[FormatName, Format] = {
    "safetensors": Format(".safetensors", write_safetensors),
    "onnx": Format(".onnx", write_onnx, NEEDED),
    "torchscript": Format(".pt", write_torchscript),
}
