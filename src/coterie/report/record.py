"""One run as a page has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.clients import Clients
from ..measure.compare import RunData
from ..training.run import History, Run, load


@dataclass(frozen=True, eq=False)
class Record(RunData):
    """One run, as its files or a Run in memory tell it."""

    folder: Path | None = None
    name: str | None = None  # of the method, where a recipe or a comparison gives it one of its own
    case: str | None = None  # of the recipe
    loaded: Run | None = None  # where there is one in memory
    data_dir: str | Path | None = None  # where its data are; None: where `coterie data dir` says
    parts: Sequence["Record"] = ()  # the members' own runs, where it is all of them together

    def run(self) -> Run:
        """Return the run with every client's own model, loaded now."""
        if self.loaded is not None:
            return self.loaded
        if self.parts:
            names = self.client_summary.get("names", ())
            clients = Clients([client for part in self.parts for client in part.run().clients], names)
            return Run(self.config, History(self.history), self.summary, clients, {}, self.client_summary)
        assert self.folder is not None
        return load(self.folder)
