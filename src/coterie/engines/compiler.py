"""Graphs into programs: several at a time, by processes of their own, once per machine."""

import gc
import hashlib
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, fx

from ..core.files import cache_folder
from .pieces import Piece, Program, cut, in_turn

# One launch for small kernels that do not wait for each other: 3.2 instead of 3.5 ms for a step of ResNet-18. Each
# keeps block sizes of its own: with common ones the reductions among them lose more than the launches gain.
# Reductions over rows and over columns are not merged: the statistics of BatchNorm make torch 2.11 fail at that, and
# with GroupNorm a step takes as long without (3.0 ms).
OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "combo_kernels": True,
    "combo_kernel_per_subkernel_blocks": True,
    "triton.mix_order_reduction": False,
}
COMPILED = "COTERIE_COMPILED"  # names the folder of compiled programs, which all runs share
KEPT = "TORCHINDUCTOR_CACHE_DIR"  # torch's name for it
LARGE = 200  # operations, from which on a piece of a graph is worth a process: starting one takes some seconds
IMPORTED_WITH_IT = ("sympy", "networkx", "mpmath")  # packages of which torch's compiler imports much
NEVER_IMPORTED = r"[\\/](tests?|testing)[\\/]"  # folders of theirs, as compileall wants them
AT_ONCE = 8  # processes: each of them takes some of the GPU's memory while it compiles


class Compiler:
    """Compiles graphs while others are still being traced.

    Compiling is mostly Python, so graphs are cut, and large pieces go to processes of their own, which leave what they
    compiled in the folder of compiled programs. Here it is taken from there.
    """

    def __init__(self) -> None:
        os.environ.setdefault(KEPT, str(compiled_folder()))
        self._begun: list[tuple[fx.GraphModule, list[Piece]]] = []
        self._waiting: list[Path] = []
        self._idle: list[CompilerProcess] = []
        self._workers: list[CompilerProcess] = []

    def __enter__(self) -> "Compiler":
        self._files = TemporaryDirectory()
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers + self._idle:
            worker.end()
        self._files.cleanup()

    def expect(self, tensors: Sequence[Tensor]) -> None:
        """Start processes if a large graph of such tensors is new here: they import the compiler while this one traces.

        There are ten operations and more for every tensor.
        """
        if 10 * len(tensors) >= LARGE and not seen(tensors).exists():
            while len(self._idle) < min(processors() // 2, AT_ONCE):
                self._idle.append(CompilerProcess(Path(self._files.name, f"{len(self._idle)}.log")))

    def begin(self, graph: fx.GraphModule) -> None:
        """Begin to compile a graph, unless that was done before on this machine."""
        pieces = cut(graph)
        self._begun.append((graph, pieces))
        for number, piece in enumerate(pieces):
            if len(piece.module.graph.nodes) >= LARGE and not mark(piece.module).exists():
                self._waiting.append(Path(self._files.name, f"{len(self._begun)}-{number}"))
                self._waiting[-1].write_bytes(pickle.dumps((rounding(), pickled(piece.module))))
        self._start()

    def programs(self) -> list[Program]:
        """Return the programs of all graphs, in the order in which they were begun."""
        while self._waiting or self._running():
            self._start()
            time.sleep(0.05)  # in short turns, so that Ctrl-C is heard
        for worker in self._workers:
            if worker.process.returncode != 0:
                said = worker.log.read_text(errors="replace").strip().splitlines()
                reason = said[-1] if said else f"status {worker.process.returncode}"
                warnings.warn(f"a program is compiled again, since its process failed: {reason}", stacklevel=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's advice: what may be rounded, ``precision`` says
            made = [in_turn(g, pieces, [compiled(piece.module) for piece in pieces]) for g, pieces in self._begun]
        for graph, _ in self._begun:
            touch(seen(inputs(graph)))
        return made

    def _start(self) -> None:
        while self._waiting and self._running() < min(processors(), AT_ONCE):
            file = self._waiting.pop(0)
            self._workers.append(self._idle.pop() if self._idle else CompilerProcess(file.with_suffix(".log")))
            self._workers[-1].compile(file)

    def _running(self) -> int:
        return sum(worker.process.poll() is None for worker in self._workers)


class CompilerProcess:
    """A process that compiles the graph of one file, once it is told which."""

    def __init__(self, log: Path) -> None:
        self.log = log
        code = "from coterie.engines.compiler import compile_file; compile_file()"
        env = {**with_bytecode(), "PYTHONPATH": os.pathsep.join(sys.path)}
        with log.open("wb") as said:
            self.process = Popen([sys.executable, "-c", code], env=env, stdin=PIPE, stdout=DEVNULL, stderr=said)

    def compile(self, file: Path) -> None:
        """Let it compile a graph; one that has ended meanwhile has left a reason."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as told:
            told.write(os.fsencode(file))

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        with self.process:  # closes what is open, and waits
            pass


def compiled(graph: fx.GraphModule) -> Program:
    """Compile a graph of plain operations, or take it from the folder of what was compiled before.

    It goes to the second half of ``torch.compile`` at once: the first half, which makes such a graph of Python and of
    autograd, would do what is done already, and took longer than all the rest.
    """
    from torch._guards import TracingContext, tracing  # slow to import, and only needed here
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    given, noted = inputs(graph), mark(graph)
    with torch.no_grad(), tracing(TracingContext(given[0].fake_mode)), config.patch(OPTIONS):
        made = compile_fx_inner(graph, given, static_input_idxs=list(range(len(given))), is_inference=True)
    touch(noted)
    return cast(Program, made)


@contextmanager
def bytecode_kept() -> Iterator[None]:
    """Let Python keep what it makes of the compiler's sources, where nobody else has: an installation may be read-only.

    These are 1,300 modules. Importing them from sources takes 8 s more, in each process. So all cores make their
    bytecode, while the first imports are under way.
    """
    before = sys.pycache_prefix, sys.dont_write_bytecode
    source, making = Path(torch.__file__).with_name("_inductor") / "lowering.py", list[Popen[bytes]]()
    try:
        if not Path(cache_from_source(str(source))).exists():
            sys.pycache_prefix, sys.dont_write_bytecode = str(compiled_folder() / "bytecode"), False
            if not Path(cache_from_source(str(source))).exists():
                making = make_bytecode()
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before
        for process in making:
            process.wait()


def make_bytecode() -> list[Popen[bytes]]:
    """Let all cores make the bytecode of the compiler and of what it imports; what is left out, an import makes."""
    others = [spec.origin for spec in map(find_spec, IMPORTED_WITH_IT) if spec is not None and spec.origin is not None]
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", "-x", NEVER_IMPORTED]
    return [
        Popen([*command, str(Path(package).parent)], env=with_bytecode(), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
        for package in (torch.__file__, *others)
    ]


def with_bytecode() -> dict[str, str]:
    """Return the environment of a process that reads and keeps bytecode where this one does."""
    if sys.pycache_prefix is None:
        return dict(os.environ)
    return {**os.environ, "PYTHONPYCACHEPREFIX": sys.pycache_prefix, "PYTHONDONTWRITEBYTECODE": ""}


def compile_file() -> None:
    """Compile the graph of a file, whose name comes by the standard input, and end this process."""
    gc.disable()  # the process ends soon, and looking for cycles is a quarter of the time of an import
    import torch._inductor.compile_fx  # noqa: F401  slow to import, so before there is something to do
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.warm_pool()  # the compiler's own processes start meanwhile, too
    file = Path(os.fsdecode(sys.stdin.buffer.read()))
    said, data = pickle.loads(file.read_bytes())
    round_as(said)
    graph = unpickled(data)
    tune(compiled(graph), inputs(graph))
    os._exit(0)  # all that was made is in files by now, and taking down the compiler's own processes takes four seconds


def tune(program: Program, given: Sequence[Tensor]) -> None:
    """Run a program once over zeros: it tries what is fastest on this GPU, which is kept with it.

    Where memory does not suffice, it is left to the first real run.
    """
    if not given[0].is_cuda:
        return
    with gpu_to_itself(), suppress(torch.cuda.OutOfMemoryError):
        program([zeros_for(v)() for v in given])
        torch.cuda.synchronize()


def zeros_for(v: Tensor) -> Callable[[], Tensor]:
    """Return what makes zeros of this kind; ``v`` may stand for a tensor, and is not looked at later."""
    shape, stride, kind, device = v.shape, v.stride(), v.dtype, v.device
    return lambda: torch.empty_strided(shape, stride, dtype=kind, device=device).zero_()


@contextmanager
def gpu_to_itself() -> Iterator[None]:
    """Let one process at a time try what is fastest: they would disturb each other's measurements."""
    from torch.utils._filelock import FileLock  # only needed here

    mark_folder().mkdir(parents=True, exist_ok=True)
    with FileLock(str(mark_folder() / "tuning.lock")):
        yield


def compiled_folder() -> Path:
    """Return the folder of the user's that holds compiled programs."""
    return Path(os.environ.get(COMPILED) or cache_folder() / "compiled")


def mark(graph: fx.GraphModule) -> Path:
    """Return the file that says that this graph was compiled on this machine; what it says wrongly costs time only."""
    return _mark(inputs(graph), graph.code)


def seen(tensors: Sequence[Tensor]) -> Path:
    """Return the file that says that some graph of such tensors was compiled; what it says wrongly costs time only."""
    return _mark(tensors, "")


def _mark(tensors: Sequence[Tensor], code: str) -> Path:
    kinds = [(tuple(v.shape), v.stride(), v.dtype, v.device) for v in tensors]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    text = repr((torch.__version__, gpu, rounding(), OPTIONS, kinds, code))
    return mark_folder() / hashlib.sha256(text.encode()).hexdigest()


def mark_folder() -> Path:
    """Return the folder of what is noted of compiled programs."""
    return Path(os.environ.get(KEPT) or compiled_folder(), "coterie")


def touch(noted: Path) -> None:
    """Make an empty file."""
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.touch()


def inputs(graph: fx.GraphModule) -> list[Any]:
    """Return what stands for the tensors that a graph is given, which have their kinds but no values."""
    return [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]


def processors() -> int:
    """Count the cores of this machine."""
    return os.cpu_count() or 1


def rounding() -> str:
    """Return how matrix products of single precision are rounded, which is a part of a compiled program."""
    return str(torch.backends.cuda.matmul.fp32_precision)


def round_as(said: str) -> None:
    """Round matrix products as another process does; the compiler may read the older switch, too."""
    torch.backends.cuda.matmul.allow_tf32 = said == "tf32"
    torch.backends.cuda.matmul.fp32_precision = said


def pickled(graph: fx.GraphModule) -> bytes:
    """Return a graph as another process can read it."""
    from torch.fx._graph_pickler import GraphPickler, Options

    return GraphPickler.dumps(graph, Options(ops_filter=None))


def unpickled(graph: bytes) -> fx.GraphModule:
    """Return a graph that another process wrote."""
    import torch._inductor.lowering  # noqa: F401  it defines operations that a traced graph may hold
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    made: Any = GraphPickler.loads(graph, FakeTensorMode(shape_env=ShapeEnv()))
    return cast(fx.GraphModule, made)
