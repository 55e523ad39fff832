"""The entry point of the command line with captured output."""

import sys

import pytest

from coterie import cli


def coterie(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """The real entry point, in this process: (status, standard output, standard error)."""
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err
