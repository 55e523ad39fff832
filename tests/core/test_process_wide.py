"""What belongs to the whole process, such as torch's switches, is as it should be in all threads, and put back."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import Thread

import pytest
import torch

from coterie.core.process_wide import ProcessWide
from coterie.engines.capture import algorithms_apart, fastest_algorithms, no_collection
from coterie.engines.rounding import rounded
from coterie.engines.vectorized import plain_attention
from coterie.measure.evaluate import unfused_attention

SWITCHES: dict[str, tuple[Callable[[], AbstractContextManager[None]], Callable[[], object]]] = {
    "products": (partial(rounded, False), lambda: torch.backends.cudnn.allow_tf32),
    "inference": (unfused_attention, torch.backends.mha.get_fastpath_enabled),
    "algorithms": (fastest_algorithms, lambda: torch.backends.cudnn.benchmark),
    "algorithms of plain calls": (algorithms_apart, lambda: torch.backends.cudnn.deterministic),
    "attention": (plain_attention, torch.backends.cuda.flash_sdp_enabled),
    "collection": (no_collection, gc.isenabled),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_who_leaves_first_undoes_nothing_for_the_others(name: str) -> None:
    change, read = SWITCHES[name]
    before, first, second = read(), change(), change()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    try:
        assert read() != before
    finally:
        second.__exit__(None, None, None)
    assert read() == before


def test_who_wants_another_value_waits_until_all_have_left() -> None:
    value, seen = ["none"], list[str]()

    @ProcessWide
    @contextmanager
    def change(new: str) -> Iterator[None]:
        before, value[0] = value[0], new
        yield
        value[0] = before

    def other() -> None:
        with change("b"):
            seen.append(value[0])

    one = Thread(target=other)
    with change("a"):
        one.start()
        one.join(0.05)
        assert one.is_alive()
        with change("a"), pytest.raises(RuntimeError, match="wants"), change("b"):
            pass
        assert value == ["a"]
    one.join(5)
    assert seen == ["b"]
    assert value == ["none"]
