"""``python -m coterie``: the command where it is not installed on the path."""

from coterie.cli import main

main()
