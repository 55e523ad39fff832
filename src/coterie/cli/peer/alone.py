"""``coterie peer alone``: whether the federation helps a member, against its own training without the others."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import UserError
from ...core.files import private, write_text
from ...core.spec import counted
from ...measure.compare import Comparison
from ...net.operations.alone import with_others, without_others
from ...net.setup.config import PeerConfig, load
from ...net.setup.start import participant
from ...report.collect import Collected, collect
from ...report.groups import setups
from ...report.library import compressed_library
from ...report.page import page
from ...store import RunFolder
from ..common.results import print_table
from ..common.typed import INTERRUPTED
from ..results.report import PAGE

SUFFIX = "-alone"  # of the folder beside the member's own


def compare_alone(path: Path, trust: Sequence[str], out: Path | None) -> None:
    """Train the member alone for as many rounds as it has with the others, print the comparison, and make its page."""
    config = load(path, trust)
    folder = out or config.folder.with_name(config.folder.name + SUFFIX)
    member = participant(config)
    with private():
        together = with_others(member)
        rounds = len(RunFolder(config.folder).rows()) if isinstance(together, Path) else len(together.history)
        unfinished = _unfinished(config, rounds) if rounds < config.federation.rounds else None
        if unfinished is not None:
            print(f"coterie: {unfinished}", file=sys.stderr)
        try:
            alone = without_others(config, member, folder, rounds)
        except KeyboardInterrupt:
            again = shlex.join(["coterie", *sys.argv[1:]])
            print(f"stopped; finished rounds are saved. Continue with:\n  {again}", file=sys.stderr)
            sys.exit(INTERRUPTED)
        collected = collect([together, alone])
        if unfinished is not None:
            collected = collected._replace(notes=[*collected.notes, unfinished])
        _show(collected, folder)


def _unfinished(config: PeerConfig, rounds: int) -> str:
    """Say that the federation goes on."""
    left = f"{config.name} has {rounds} of {counted(config.federation.rounds, 'round')} with the others"
    return f"The federation has not finished: {left}, so both are compared after round {rounds}."


def _show(collected: Collected, folder: Path) -> None:
    """Print the comparison, and write the page; without plotly say so."""
    (setup,) = setups(collected.records)
    print_table(Comparison(setup.methods, None, collected.notes))
    try:
        library = compressed_library()
    except UserError as error:
        print(f"coterie: no report: {error}, then the same command", file=sys.stderr)
        return
    file = folder / PAGE
    write_text(file, page(collected, library, lambda _: None, None, False, None))
    print(f"report: {file}")
