"""What belongs to a whole process, and is changed for a while in threads of it."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Condition, get_ident
from typing import Generic, TypeVarTuple

Ts = TypeVarTuple("Ts")


class ProcessWide(Generic[*Ts]):
    """A change that threads share: the first one to come makes it, and the last one to leave undoes it.

    Otherwise who leaves first would undo it for those who are still inside, and who leaves last would leave behind what
    it had found there: the change of another. Who wants another change waits until all have left; a thread that is
    inside would wait for itself, and is refused.

    >>> @ProcessWide
    ... @contextmanager
    ... def greet(name):
    ...     print("hello", name)
    ...     yield
    ...     print("bye", name)
    >>> with greet("Ann"), greet("Ann"):
    ...     print("two inside")
    hello Ann
    two inside
    bye Ann
    """

    def __init__(self, change: Callable[[*Ts], AbstractContextManager[object]]) -> None:
        self._change, self._undo = change, ExitStack()
        self._turn, self._inside = Condition(), Counter[int]()  # how often each thread is inside
        self._made: tuple[*Ts] | None = None

    @contextmanager
    def __call__(self, *wanted: *Ts) -> Iterator[None]:
        """Have the change made meanwhile."""
        thread = get_ident()
        with self._turn:
            if thread in self._inside and wanted != self._made:
                raise RuntimeError(f"this thread is inside of {self._made}, and wants {wanted}")
            self._turn.wait_for(lambda: self._made in (None, wanted))
            if self._made is None:
                self._undo.enter_context(self._change(*wanted))
                self._made = wanted
            self._inside[thread] += 1
        try:
            yield
        finally:
            with self._turn:
                self._inside[thread] -= 1
                self._inside += Counter()  # those alone who are still there
                if not self._inside:
                    self._made = None
                    self._turn.notify_all()
                    self._undo.close()
