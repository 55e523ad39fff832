"""Clients as people call them: by the name that the data give, else by their number."""

from collections.abc import Sequence

NAMED = 8  # clients that a sentence names


def client_name(names: Sequence[str], client: int) -> str:
    """Return what a client is called; ``names``: of all clients, none where the data name nobody.

    >>> client_name(("mayo", "nice"), 1), client_name((), 1)
    ('nice', 'client 1')
    """
    return names[client] if names else f"client {client}"


def client_list(names: Sequence[str], which: Sequence[int]) -> str:
    """Return what some clients are called, the first of them where they are many.

    >>> client_list(("mayo", "nice"), [1]), client_list((), [3]), client_list((), range(9))
    ('nice', 'client 3', 'clients 0, 1, 2, 3, 4, 5, 6, 7 (9 in all)')

    A name that is a number would not be understood alone:

    >>> client_list(("17", "23"), [1])
    'client 23'
    """
    called = [names[i] if names else str(i) for i in which[:NAMED]]
    numbers = all(name.isdecimal() for name in called)
    if len(which) == 1:
        return f"{'client ' if numbers else ''}{called[0]}"
    return f"{'clients ' if numbers else ''}{', '.join(called)} ({len(which)} in all)"
