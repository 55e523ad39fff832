"""Clients as people call them: by the name that the data give, else by their number."""

import re
from collections.abc import Callable, Sequence
from operator import index
from typing import SupportsIndex, TypeVar, overload

from .errors import UserError
from .spec import whole_number

T = TypeVar("T")

NAMED = 8  # clients that a sentence names
IN_FILE = 80  # bytes of a name that are in the name of a file


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


def client_number(names: Sequence[str], clients: int, called: int | str, or_else: str = "") -> int:
    """Return the number of one of so many clients, which is called by its name or by that number.

    >>> client_number(("mayo", "nice"), 2, "Nice"), client_number((), 2, "0")
    (1, 0)
    """
    alike = [i for i, name in enumerate(names) if name.casefold() == str(called).casefold()]
    if called in names or len(alike) == 1:
        return names.index(str(called)) if called in names else alike[0]
    number = called if isinstance(called, int) else whole_number(called)
    if number is None or not 0 <= number < clients:
        named = f"one of {', '.join(names[:NAMED])}, or " if names else ""
        raise UserError(f"there is no client {called}: choose {named}a number from 0 to {clients - 1}{or_else}")
    return number


def in_file_name(names: Sequence[str], client: int) -> str:
    """Return a client's number and name as names of files have them.

    >>> in_file_name(("mayo", "st. john/2"), 1), in_file_name((), 3)
    ('client-0001-st._john_2', 'client-0003')
    """
    name = re.sub(r"[^\w.-]", "_", names[client]).encode()[:IN_FILE].decode(errors="ignore") if names else ""
    return f"client-{client:04d}{f'-{name}' if name else ''}"


def number_in_file_name(name: str) -> int | None:
    """Return the number of the client that the name of a file has, None for other files.

    >>> number_in_file_name("client-0001-mayo.safetensors"), number_in_file_name("common.safetensors")
    (1, None)
    """
    found = re.match(r"client-(\d+)[.-]", name)
    return None if found is None else int(found[1])


class OnDemand(Sequence[T]):
    """A sequence whose entries are made whenever they are asked for.

    >>> squares = OnDemand(4, lambda i: i * i)
    >>> squares[-1], squares[1:3], list(squares)
    (9, [1, 4], [0, 1, 4, 9])
    """

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._places, self._make = range(count), make

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, which: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, which: slice) -> list[T]: ...
    def __getitem__(self, which: SupportsIndex | slice) -> T | list[T]:
        """Make one entry, or several."""
        if isinstance(which, slice):
            return [self._make(i) for i in self._places[which]]
        return self._make(self._places[which])


class Clients(Sequence[T]):
    """What belongs to each client, in their order; a client is found by its name or by its number.

    >>> Clients([5, 7], ["mayo", "nice"])["nice"]
    7
    """

    def __init__(self, each: Sequence[T], names: Sequence[str] = ()) -> None:
        self.each, self.names = each, list(names)

    def __len__(self) -> int:
        return len(self.each)

    def __repr__(self) -> str:
        return f"Clients({len(self)})"

    @overload
    def __getitem__(self, which: SupportsIndex | str) -> T: ...
    @overload
    def __getitem__(self, which: slice) -> list[T]: ...
    def __getitem__(self, which: SupportsIndex | str | slice) -> T | list[T]:
        """Return what belongs to one client, or to several."""
        if isinstance(which, slice):
            return list(self.each[which])
        if not isinstance(which, str):
            return self.each[index(which)]
        if not len(self):
            raise UserError(f"there is no model of {which} here: coterie pack leaves the clients' models out")
        return self.each[client_number(self.names, len(self), which)]
